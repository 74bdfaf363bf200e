package poll

import (
	"context"
	"fmt"
	"log/slog"
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

// trust has the worker have seen for a whole lease that the server's clock goes as its own.
func (k *worker) trust() { k.claims.clock.since = time.Now().Add(-k.claims.set.Lease) }

// wantTrust checks that the worker trusts the server's clock, and takes no row but one whose lease has ended for any clock.
func (k *worker) wantTrust(w *world, id string) {
	k.Helper()
	w.exec(fmt.Sprintf("INSERT INTO outbox (id, key, claimed_by, claimed_until) VALUES ('%[1]s', '%[1]s', 'dead#1', now() - interval '1 day')", id))
	eventually(k.TB, func() bool { // an answer that took long says nothing
		got := k.take()
		if got != "" && got != id {
			k.Fatalf("claimed %q, must be %q", got, id)
		}
		return got == id
	})
	k.ack(id)
}

// When the server's clock jumps ahead, all leases have ended at once. Workers that live renew theirs before another worker takes a row.
func TestAClockThatJumpsEndsNoLeaseOfALivingWorker(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.movableClock()
	w.exec(insert("k", "k1", "k2"))
	a := w.worker(nil).movable()
	a.want("k1 k2")
	b := w.worker(nil).movable()
	eventually(t, func() bool { b.want(""); return !b.claims.clock.since.IsZero() })
	b.trust()
	b.wantTrust(w, "d1")
	w.exec("UPDATE shift SET by = '1 hour'")
	jump := time.Now()
	eventually(t, func() bool { b.want(""); return b.claims.clock.since.After(jump) })
	if err := a.claims.Overdue(); err != nil {
		t.Fatal(err)
	}
	a.claims.until = time.Now().Add(w.set.Lease / 2) // half a lease later, a renews
	a.confirm()
	b.trust()
	b.wantTrust(w, "d2")
	if err := a.claims.Overdue(); err != nil {
		t.Fatal(err)
	}
	a.ack("k1", "k2")
	w.wantState("k1+ k2+ d1+ d2+")
}

// Another session has locked a row: only this row waits.
func TestALockOnOneRowDelaysOnlyThisRow(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{Claim, Delete} {
		w := strategyWorld(t, testenv.Postgres(t, "17"), strategy)
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
		if l := backlog.Claims.Locked; len(l) != 1 || l[0].ID != "k1" || !strings.Contains(l[0].End, fmt.Sprintf("(%d)", conn.PgConn().PID())) {
			t.Errorf("locked rows %+v, must be k1 by %d", l, conn.PgConn().PID())
		}
		// The lease ends, and the worker goes on to hold the row, which nobody else can claim.
		testenv.Run(t, conn, "UPDATE outbox SET claimed_until = now() WHERE id = 'k1'", "COMMIT", "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
		w.exec(insert("k", "k3"))
		a.confirm()
		b.trust()
		b.want("")
		// b is not asked from here on: it could claim k1 before a finishes it, as docs/polling-reference.md says.
		testenv.Run(t, conn, "COMMIT")
		a.claims.again = time.Now().Add(time.Hour)
		a.trust()
		a.want("") // it has k1 already
		a.claims.again = time.Time{}
		want := map[string]string{Claim: "k1+ k2+ j1+ k3-", Delete: "k3-"}[strategy]
		eventually(t, func() bool { a.confirm(); return w.state() == want })
		eventually(t, func() bool { return a.take() == "k3" })
	}
}

// While a row that was locked is not finished, another worker can claim it. So the worker does not wait for its next look.
func TestARowThatWasLockedIsFinishedWithoutALook(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1"))
	a := w.worker(nil)
	a.want("k1")
	a.set.Interval = time.Hour
	conn := testenv.Conn(t, w.dsn)
	testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
	a.ack("k1")
	looks := a.Status().Looks
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := a.session.Next(ctx, time.Hour)
		done <- err
	}()
	eventually(t, func() bool { return a.Status().Looks > looks }) // the last one
	testenv.Run(t, conn, "COMMIT")
	eventually(t, func() bool { return w.state() == "k1+" })
	cancel()
	<-done
}

// Somebody waits for rows of a worker that died. The log says why another one does not take them over.
func TestTheLogSaysWhyAnEndedLeaseIsNotTakenOver(t *testing.T) {
	t.Parallel()
	for why, lease := range map[string]time.Duration{
		"at the same speed": time.Hour,
		"answers take":      time.Microsecond,
	} {
		w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
		var log strings.Builder
		w.set.Logger, w.set.Lease = slog.New(slog.NewJSONHandler(&log, nil)), lease
		a := w.worker(nil)
		if a.want(""); strings.Contains(log.String(), "leases") {
			t.Errorf("no lease has ended: %s", &log)
		}
		a.claims.logged = time.Time{}
		w.exec("INSERT INTO outbox (id, claimed_by, claimed_until) VALUES ('1', 'dead#1', now())")
		a.want("")
		a.want("")
		if n := strings.Count(log.String(), "leases of other workers have ended"); n == 0 || lease == time.Hour && n > 1 || !strings.Contains(log.String(), why) {
			t.Errorf("%s: the log has %s", why, &log)
		}
	}
}

// A record is on its way when another session locks its row. Nothing can renew the lease of the row, so the worker stops before its end.
func TestALockedRowInFlightBoundsTheWorker(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	var bound time.Time
	w.set.Bound = func(until time.Time) { bound = until }
	w.exec(insert("k", "k1"), insert("j", "j1"))
	a := w.worker(nil)
	a.want("k1 j1")
	conn := testenv.Conn(t, w.dsn)
	testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
	ends := time.Now().Add(w.set.Lease / 2)
	a.claims.until = ends
	a.confirm()
	l := a.claims.locked
	if len(l) != 1 || !l[0].until.Equal(ends) || !a.claims.until.After(ends) {
		t.Fatal("the lease of the other row was not renewed")
	}
	if !bound.Equal(ends.Add(-a.claims.margin())) {
		t.Errorf("the sink may send until %v before the end of the lease", ends.Sub(bound))
	}
	if err := a.claims.Overdue(); err != nil {
		t.Error(err)
	}
	l[0].until = time.Now().Add(a.claims.margin())
	if err := a.claims.Overdue(); err == nil || !strings.Contains(err.Error(), "another session has locked") {
		t.Error(err)
	}
	l[0].until, a.claims.until = ends, time.Now().Add(a.claims.margin()) // no renewal was possible
	if err := a.claims.Overdue(); err == nil || !strings.Contains(err.Error(), "could not renew") {
		t.Error(err)
	}
}

// A stop waits a moment for a locked row, and writes the others.
func TestAStopBesideALockedRow(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
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
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec("ALTER TABLE outbox ADD COLUMN other bigint NOT NULL DEFAULT 0, ADD COLUMN more text")
	w.worker(nil)
	more := func(*cdc.Relation) string { return "more" }
	w.refuses(map[string]func(*Settings){
		`whose order column is not "other"`:   func(s *Settings) { s.OrderColumn = "other" },
		`whose key column is not "more"`:      func(s *Settings) { s.Key = more },
		`whose event id column is not "more"`: func(s *Settings) { s.ID = more },
	})
	w.worker(nil).want("")
}

// A pooler in transaction mode gives the server process to other clients. The process may be another one, or the other clients leave it as
// they want.
func TestAPoolerInTransactionModeIsRefused(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
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
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	var bound time.Time
	apart := func(s *Settings) {
		s.Unreachable, s.Bound = func() bool { return true }, func(until time.Time) { bound = until }
	}
	w.exec(insert("k", "k1"), insert("j", "j1"))
	a := w.worker(apart)
	a.want("k1 j1")
	half := w.set.Lease / 2
	later := func() { // a has no acknowledgement for twice the lease, and half of the present one has passed
		a.claims.moved, a.claims.until = time.Now().Add(-stallLeases*w.set.Lease), time.Now().Add(half)
		a.confirm()
	}
	for range 3 {
		if later(); a.claims.Overdue() != nil || time.Until(a.claims.until) <= half {
			t.Fatalf("the only worker gives up: its lease ends in %s, %v", time.Until(a.claims.until), a.claims.Overdue())
		}
	}
	w.exec(insert("l", "l1"))
	a.want("") // it has enough
	b := w.worker(nil)
	b.want("l1")
	later()
	if err := a.claims.Overdue(); err == nil || !strings.Contains(err.Error(), "gives up its rows") {
		t.Error(err)
	}
	if bound.IsZero() || bound.After(time.Now()) {
		t.Errorf("the sink may go on to send until %v", bound)
	}
	a.close()
	a.endLease(w)
	eventually(t, func() bool {
		b.trust()
		got := b.take()
		if got != "" && got != "k1 j1" {
			t.Fatalf("claimed %q", got)
		}
		return got != ""
	})
}

// eventually waits until ok reports true.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("not in a minute")
		}
	}
}
