package poll

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// Without a record and without source.snapshot, rows that nobody has ever claimed are refused. The hint must not throw away rows. A worker
// that comes to others, or after them, goes on with what they left.
func TestAWorkerWithoutARecordGoesOnAfterOthers(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("a", "a1"), insert("b", "b1"))
	set := w.set
	set.Snapshot = ""
	s, err := NewSource(set).Open(t.Context(), true, false)
	if err == nil {
		defer s.conn.Close(t.Context()) //nolint:errcheck // the test is over
		_, err = s.beginning(t.Context(), false)
	}
	if !fault.Misconfigured(err) || !strings.Contains(err.Error(), "neither a row nor a checkpoint says that a relay has claimed any") || strings.Contains(fault.Hint(err), "UPDATE") {
		t.Fatalf("%v (hint: %s)", err, fault.Hint(err))
	}
	a := w.worker(nil)
	a.want("a1 b1")
	a.ack("a1")
	a.kill()
	w.exec("UPDATE outbox SET claimed_by = NULL, claimed_until = NULL", insert("c", "c1"))
	b := w.worker(func(s *Settings) { s.Snapshot = "" })
	b.want("b1 c1")
}
