package walpost

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// Cleanup removes nothing unless both answers are certain.
func TestOpenEventsAreCertainOrAnError(t *testing.T) {
	failed := errors.New("refused")
	answer := func(id string, err error) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) { return []string{id}, err }
	}
	for _, errs := range [][2]error{{nil, nil}, {failed, nil}, {nil, failed}, {failed, failed}} {
		ids, err := openEvents(answer("d", errs[0]), answer("p", errs[1]))(t.Context())
		if certain := errs == [2]error{}; certain != slices.Equal(ids, []string{"d", "p"}) || (err == nil) != certain || !certain && ids != nil {
			t.Errorf("%v: %q, %v", errs, ids, err)
		}
	}
}
