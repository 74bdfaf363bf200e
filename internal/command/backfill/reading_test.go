package backfill

import (
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/poll"
)

// Only the strategy cursor has a position in the table. Behind the record of another strategy, any row may be missing.
func TestAFormerPositionCountsForTheCursorOnly(t *testing.T) {
	for strategy, want := range map[string]bool{"cursor": true, "claim": false, "delete": false} {
		r := &reading{Tables: &Tables{}, spec: checkpoint.Copy{Former: &checkpoint.Record{Polled: (&poll.Config{Strategy: strategy, XIDColumn: "xid"}).Counts(), Position: cdc.Numbered(9)}}}
		if sel := r.asked(); (sel.Behind != nil) != want || !sel.Since.IsZero() {
			t.Errorf("%s: %+v", strategy, sel)
		}
	}
}
