package kafka

import "testing"

// Kafka's levels of metadata.version: 29 is 4.2-IV1, 30 is 4.3-IV0, 33 is 4.4-IV2, and 34 is 4.5-IV0.
func TestTheReleasesThatLeaveTransactionsOpen(t *testing.T) {
	for level, want := range map[int16]bool{0: false, 29: false, 30: true, 31: true, 33: true, 34: false} {
		if got := (Features{Metadata: level}).LeavesTransactionsOpen(); got != want {
			t.Errorf("level %d: %t", level, got)
		}
	}
}
