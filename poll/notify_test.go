package poll

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// given returns the id of the next row. It looks at the table only when a notification or the interval says so.
func (w *world) given() string {
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		ev, err := w.session.Next(ctx, time.Minute)
		if err != nil {
			return err.Error()
		}
		if ev.Kind == cdc.Insert {
			return string(ev.Row.Values[ev.Row.Relation.Index("id")].Bytes)
		}
	}
	return "nothing"
}

// waits has the session look at the table once, which finds nothing, and wait for a minute: the next look must have another cause.
func (w *world) waits() (done chan string) {
	w.Helper()
	looks := w.Status().Looks
	done = make(chan string, 1)
	go func() { done <- w.given() }()
	for w.Status().Looks == looks {
		time.Sleep(time.Millisecond)
	}
	return done
}

func (w *world) every(interval time.Duration) {
	w.set.Interval = interval
	w.Source = NewSource(w.set)
	w.begin()
}

// The trigger wakes the source long before the interval is over, also after the connection that listens was lost. A notification that was
// lost with the connection does no harm.
func TestTheTriggerWakesTheSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t, "17"))
	w.every(time.Hour)
	for i := range 3 {
		id := fmt.Sprint("a", i)
		came := w.waits()
		w.exec(insert("k", id))
		if got := <-came; got != id {
			t.Fatalf("got %s", got)
		}
		w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()", insert("k", id+" lost"))
		for {
			if _, err := w.session.Next(t.Context(), time.Millisecond); err != nil {
				break
			}
		}
		w.open(false)
		w.session.Continue()
		if got := w.given(); got != id+" lost" {
			t.Errorf("got %s", got)
		}
	}
}

// A row that waits for a transaction comes when that has ended, long before the interval is over, although nothing notifies of the end.
func TestADelayedRowComesWhenItsDelayEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t, "17"))
	w.every(time.Hour)
	other := testenv.Conn(t, w.dsn)
	testenv.Run(t, other, "BEGIN", "SELECT pg_current_xact_id()")
	came := w.waits()
	looks := w.Status().Looks
	w.exec(insert("k", "a"))
	for w.Status().Looks == looks { // it has found the row, and waits
		time.Sleep(time.Millisecond)
	}
	testenv.Run(t, other, "COMMIT")
	if got := <-came; got != "a" {
		t.Errorf("got %s", got)
	}
}

// Without the trigger the interval is the floor.
func TestTheIntervalFindsRowsWithoutATrigger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t, "17"))
	w.exec("DO $$ BEGIN EXECUTE (SELECT 'DROP TRIGGER ' || quote_ident(tgname) || ' ON outbox' FROM pg_trigger WHERE tgrelid = 'outbox'::regclass); END $$")
	w.every(20 * time.Millisecond)
	came := w.waits()
	w.exec(insert("k", "a"))
	if got := <-came; got != "a" {
		t.Errorf("got %s", got)
	}
	// With a longer interval nothing comes before it is over.
	w.session.Close(t.Context())
	w.every(time.Hour)
	for looks := w.Status().Looks; w.Status().Looks < looks+2; { // it gives "a" again, and then finds nothing
		if _, err := w.session.Next(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(insert("k", "b"))
	if ev, err := w.session.Next(t.Context(), time.Second); err != nil || ev.Kind != cdc.Idle {
		t.Errorf("%v, %v", ev, err)
	}
}
