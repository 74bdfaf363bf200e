package show

import (
	"strings"
	"testing"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/verify"
)

// The command publishes only the rows that are shown. Closing a gap afterwards would give up the others.
func TestVerifySaysWhichRowsItsCommandPublishes(t *testing.T) {
	for _, c := range []struct {
		found int64
		shown []string
		want  string
	}{
		{2, []string{"a", "b"}, "  to publish them after newer events of their keys: walpost replay --id a --id b\n"},
		{3, []string{"a", "b"}, "  to publish these 2 (then run verify again) after newer events of their keys: walpost replay --id a --id b\n"},
		{3, nil, "  to publish them after newer events of their keys: walpost replay --id ID\n"}, // --limit 0
	} {
		r := &walpost.VerifyReport{Counts: map[verify.Kind]int64{verify.Missing: c.found}}
		for _, id := range c.shown {
			r.Findings = append(r.Findings, verify.Finding{Kind: verify.Missing, EventID: id})
		}
		if got := Verify(r); !strings.Contains(got, c.want) {
			t.Errorf("%d found, %d shown:\n%swant %s", c.found, len(c.shown), got, c.want)
		}
	}
}
