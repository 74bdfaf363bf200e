package poll

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// The server's clock decides when a lease has ended. A worker trusts it when it has gone as the worker's own for a whole lease.
func TestAClockIsTrustedAfterALease(t *testing.T) {
	t.Parallel()
	const lease = 32 * time.Second
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for name, looks := range map[string][]struct {
		at, took, ahead float64 // seconds
		trusted         bool
	}{
		"a clock that goes":        {{0, 0, 0, false}, {31, 0, 0, false}, {32, 0, 0, true}, {90, 0, 0.5, true}},
		"another zone":             {{0, 0, -7200, false}, {32, 0, -7200, true}},
		"a jump ahead":             {{0, 0, 0, false}, {33, 0, 0, true}, {34, 0, 40, false}, {65, 0, 40, false}, {66, 0, 40, true}},
		"a jump back":              {{0, 0, 0, false}, {33, 0, -3600, false}, {64, 0, -3600, false}, {65, 0, -3600, true}},
		"a jump back and ahead":    {{0, 0, 0, false}, {33, 0, -60, false}, {34, 0, 0, false}, {67, 0, 0, true}},
		"a clock that goes wrong":  {{0, 0, 0, false}, {20, 0, 0.9, false}, {33, 0, 1.8, false}, {50, 0, 2.7, false}, {66, 0, 2.7, true}},
		"an answer that took long": {{0, 2, 0, false}, {1, 0, 0, false}, {33, 2, 0, false}, {34, 0, 0, true}},
	} {
		var c steady
		for _, l := range looks {
			if got := c.observe(at(l.at+l.ahead), at(l.at), at(l.at+l.took), lease); got != l.trusted {
				t.Errorf("%s: trusted at %v s: %v", name, l.at, got)
			}
		}
	}
}

// movableClock gives the database a clock that the test can move, and clocks makes a worker's session read it.
func (w *world) movableClock() {
	w.Helper()
	w.exec("CREATE TABLE shift (by interval)", "INSERT INTO shift VALUES ('0')")
	for _, f := range []string{"now", "clock_timestamp", "statement_timestamp"} {
		w.exec(fmt.Sprintf("CREATE FUNCTION public.%[1]s() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_catalog.%[1]s() + (SELECT by FROM public.shift)'", f))
	}
}

func (k *worker) movable() *worker {
	k.Helper()
	if err := k.session.exec(k.Context(), "take the clock", "SET search_path = public, pg_catalog"); err != nil {
		k.Fatal(err)
	}
	return k
}

// When the server's clock jumps ahead, all leases have ended at once. Workers that live renew theirs before another worker takes a row.
func TestAClockThatJumpsEndsNoLeaseOfALivingWorker(t *testing.T) {
	t.Parallel()
	w := claimWorld(t, testenv.Postgres(t, "17"), Claim)
	w.set.Lease = 8 * time.Second
	w.movableClock()
	w.exec(insert("k", "k1", "k2"))
	a := w.worker(nil).movable()
	a.want("k1 k2")
	b := w.worker(nil).movable()
	start := time.Now()
	for time.Since(start) < w.set.Lease+time.Second { // so that b trusts the clock
		a.confirm()
		b.want("")
	}
	w.exec("UPDATE shift SET by = '1 hour'")
	b.want("")
	if err := a.claims.Overdue(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(w.set.Lease * 3 / 2); time.Now().Before(until); { // b trusts the clock again, and a has renewed
		a.confirm()
		b.want("")
		if err := a.claims.Overdue(); err != nil {
			t.Fatal(err)
		}
	}
	a.ack("k1", "k2")
	w.wantState("k1+ k2+")
}

// Another session has locked a row: only this row waits.
func TestALockOnOneRowDelaysOnlyThisRow(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{Claim, Delete} {
		w := claimWorld(t, testenv.Postgres(t, "17"), strategy)
		w.set.Lease = 4 * time.Second
		w.exec(insert("k", "k1", "k2"), insert("j", "j1"))
		a, b := w.worker(nil), w.worker(nil)
		a.want("k1 k2 j1")
		conn := testenv.Conn(t, w.dsn)
		testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
		a.ack("k1", "k2", "j1")
		if got, want := w.state(), map[string]string{Claim: "k1* k2+ j1+", Delete: "k1*"}[strategy]; got != want {
			t.Errorf("the table has %q, must have %q", got, want)
		}
		b.want("")
		backlog, err := b.Backlog(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if l := backlog.Claims.Locked; len(l) != 1 || l[0].ID != "k1" || uint32(l[0].By.PID) != conn.PgConn().PID() {
			t.Errorf("locked rows %+v, must be k1 by %d", l, conn.PgConn().PID())
		}
		// The lease ends, and the worker goes on to hold the row, which nobody else can claim.
		eventually(t, func() bool {
			a.confirm()
			return w.pg.Value(t, w.dsn, "SELECT claimed_until < now() FROM outbox WHERE id = 'k1'") == "true"
		})
		w.exec(insert("k", "k3"))
		b.want("")
		testenv.Run(t, conn, "COMMIT")
		time.Sleep(heldPause)
		a.confirm()
		if got, want := w.state(), map[string]string{Claim: "k1+ k2+ j1+ k3-", Delete: "k3-"}[strategy]; got != want {
			t.Errorf("the table has %q, must have %q", got, want)
		}
		a.want("k3")
	}
}

// A record is on its way when another session locks its row. Nothing can renew the lease of the row, so the worker stops before its end.
func TestALockedRowInFlightBoundsTheWorker(t *testing.T) {
	t.Parallel()
	w := claimWorld(t, testenv.Postgres(t, "17"), Claim)
	w.set.Lease = 4 * time.Second
	var bound time.Time
	w.set.Bound = func(until time.Time) { bound = until }
	w.exec(insert("k", "k1"), insert("j", "j1"))
	a := w.worker(nil)
	a.want("k1 j1")
	conn := testenv.Conn(t, w.dsn)
	testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
	eventually(t, func() bool { a.confirm(); return a.claims.Overdue() != nil })
	if time.Now().Before(bound) {
		t.Errorf("the worker stops %v before the sink", time.Until(bound))
	}
	if l := a.claims.locked; len(l) != 1 || !a.claims.until.After(l[0].until) {
		t.Error("the lease of the other row was not renewed")
	}
}

// A stop waits a moment for a locked row, and writes the others.
func TestAStopBesideALockedRow(t *testing.T) {
	t.Parallel()
	w := claimWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1"), insert("j", "j1"), insert("l", "l1"))
	a := w.worker(nil)
	a.want("k1 j1 l1")
	conn := testenv.Conn(t, w.dsn)
	testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
	for _, id := range []string{"k1", "j1"} {
		a.claims.Delivered(a.numbers[id])
	}
	a.close()
	w.wantState("k1* j1+ l1*")
}

// Workers whose settings differ have other queues of a key.
func TestWorkersWithOtherColumnsAreRefused(t *testing.T) {
	t.Parallel()
	w := claimWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec("ALTER TABLE outbox ADD COLUMN other bigint NOT NULL DEFAULT 0, ADD COLUMN more text")
	w.worker(nil)
	more := func(*cdc.Relation) string { return "more" }
	for what, change := range map[string]func(*Settings){
		`another order column than "other"`:   func(s *Settings) { s.OrderColumn = "other" },
		`another key column than "more"`:      func(s *Settings) { s.Key = more },
		`another event id column than "more"`: func(s *Settings) { s.ID = more },
	} {
		set := w.set
		change(&set)
		s, err := NewSource(set).Open(t.Context(), true, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context(), 1); !fault.Misconfigured(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		_ = s.conn.Close(t.Context())
	}
	w.worker(nil).want("")
}

// A pooler in transaction mode gives the server process to other clients. The process may be another one, or the other clients leave it as
// they want.
func TestAPoolerInTransactionModeIsRefused(t *testing.T) {
	t.Parallel()
	w := claimWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1"))
	for what, pool := range map[string]func(a, b *worker){
		"the connection changed": func(a, b *worker) { a.session.conn, b.session.conn = b.session.conn, a.session.conn },
		"another client uses":    func(a, _ *worker) { _ = a.session.exec(t.Context(), "reset", "DISCARD ALL") },
		"between the transactions": func(a, b *worker) {
			b.session.conn = a.session.conn
			_ = b.session.strategy.(*claimer).setUp(t.Context())
		},
	} {
		a, b := w.worker(nil), w.worker(nil)
		pool(a, b)
		_, err := a.session.Next(t.Context(), time.Second)
		if !fault.Misconfigured(err) || !strings.Contains(err.Error(), what) || !strings.Contains(fault.Hint(err), "session mode") {
			t.Errorf("%s: %v (hint: %s)", what, err, fault.Hint(err))
		}
		a.kill()
		b.kill()
	}
	w.wantState("k1-")
}

// A worker that does not reach the brokers gives up its rows, but only to a worker that may reach them.
func TestAWorkerWithoutBrokersGivesUpItsRows(t *testing.T) {
	t.Parallel()
	w := claimWorld(t, testenv.Postgres(t, "17"), Claim)
	w.set.Lease = 2 * time.Second
	apart := func(s *Settings) { s.Unreachable = func() bool { return true } }
	w.exec(insert("k", "k1"), insert("j", "j1"))
	a := w.worker(apart)
	a.want("k1 j1")
	alone := time.Now()
	for time.Since(alone) < 4*w.set.Lease {
		if a.confirm(); a.claims.Overdue() != nil {
			t.Fatalf("the only worker gives up: %v", a.claims.Overdue())
		}
	}
	w.exec(insert("l", "l1"))
	a.want("") // it has enough
	b := w.worker(nil)
	b.want("l1")
	eventually(t, func() bool { a.confirm(); return a.claims.Overdue() != nil })
	if err := a.claims.Overdue(); !strings.Contains(err.Error(), "gives up its rows") {
		t.Error(err)
	}
	if a.claims.bound.After(time.Now()) {
		t.Error("the sink may go on to send")
	}
	a.close()
	eventually(t, func() bool { return b.take() == "k1 j1" })
}

// eventually waits until ok reports true.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("not in a minute")
		}
	}
}
