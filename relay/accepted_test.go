package relay

import (
	"slices"
	"testing"

	"github.com/walpost/walpost/checkpoint"
)

// A session may be lost between the acceptance of a gap and the record that has it. What another process closed meanwhile stays closed.
func TestAGapStaysAcceptedThoughNoRecordHasItYet(t *testing.T) {
	gaps := func(tokens ...string) (all []checkpoint.Accepted) {
		for _, token := range tokens {
			all = append(all, checkpoint.Accepted{Token: token})
		}
		return all
	}
	c := &checkpointer{durable: &checkpoint.Record{Accepted: gaps("closed", "open")}}
	c.accepted = gaps("closed", "open", "new")
	c.taken(&checkpoint.Record{Accepted: gaps("open")}, nil)
	if want := gaps("open", "new"); !slices.Equal(c.accepted, want) {
		t.Errorf("%v are accepted, want %v", c.accepted, want)
	}
}
