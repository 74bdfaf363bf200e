package inbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
)

func nothing(context.Context, pgx.Tx) error { return nil }

func TestEventsAreRememberedForTheirTimeAndDroppedWithTheirGeneration(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	deliver := func(id string, want bool) {
		t.Helper()
		if fresh, err := db.Once(t.Context(), "c", event(id), nothing); fresh != want || err != nil {
			t.Errorf("event %s is new: %t, %v; want %t", id, fresh, err, want)
		}
	}
	deliver("a", true)
	if done, err := db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour}); err != nil || done.Began != 0 || done.Dropped != nil {
		t.Errorf("a young generation: %+v, %v", done, err)
	}
	for range 4 { // the first ended 6 hours ago in the end, and 7 are to be kept
		p.turn()
		deliver("a", false)
	}
	deliver("b", true)
	if done := p.turn(); !slices.Equal(done.Dropped, []int64{1}) {
		t.Errorf("dropped %v", done.Dropped)
	}
	deliver("a", true) // it was forgotten
	deliver("b", false)
	p.expect("2,3,4,5,6", "SELECT string_agg(generation::text, ',' ORDER BY generation) FROM inbox_generations WHERE started_at > '-infinity'")
	p.expect("6", "SELECT count(*) FROM pg_inherits WHERE inhparent = 'inbox_processed'::regclass")
}

// Two services share the tables. The one that keeps less does not forget the other's events.
func TestTheGreatestKeepOfAllCallersHolds(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	if fresh, err := db.Once(t.Context(), "c", event("a"), nothing); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	if _, err := db.Retain(t.Context(), inbox.Retention{Keep: 40 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	for range 5 { // turn keeps 7 hours
		if done := p.turn(); len(done.Dropped) > 0 {
			t.Errorf("dropped %v", done.Dropped)
		}
	}
	if fresh, err := db.Once(t.Context(), "c", event("a"), nothing); fresh || err != nil {
		t.Errorf("the event comes again: %t, %v", fresh, err)
	}
	p.exec("UPDATE inbox_retention SET keep = '0'") // this is how to lower it
	if done, err := db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour}); err != nil || !slices.Equal(done.Dropped, []int64{1}) {
		t.Errorf("dropped %v, %v", done.Dropped, err)
	}
	p.expect("07:00:00", "SELECT keep::text FROM inbox_retention")
}

// The snapshot of the transaction is older than the mark and than the new generation.
func TestAnOldSnapshotCannotMissAMarkOfAnEndedGeneration(t *testing.T) {
	p := newPlace(t, "")
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, form := range []string{"single", "batch", "single, marked after the turn", "batch, marked after the turn"} {
			id := form + string(level)
			old := p.begin(level)
			if _, err := old.Exec(t.Context(), "SELECT FROM effects"); err != nil {
				t.Fatal(err)
			}
			after := strings.HasSuffix(form, "turn")
			if after {
				p.turn()
			}
			if fresh, err := inbox.Pgx(p.pool).Once(t.Context(), "c", event(id), nothing); !fresh || err != nil {
				t.Fatal(fresh, err)
			}
			if !after {
				p.turn()
			}
			if strings.HasPrefix(form, "single") {
				if _, err := inbox.Once(t.Context(), old, "c", event(id), func(context.Context) error { return nil }); sqlState(err) != "40001" {
					t.Errorf("%s, %s: %v, want 40001", level, form, err)
				}
			} else { // the second transaction has a new snapshot
				pool := &countedPool{Pool: p.pool, first: old}
				if fresh, err := handleBatch(t.Context(), inbox.Pgx(pool), "c", event(id)); len(fresh) != 0 || err != nil || pool.begun.Load() != 2 {
					t.Errorf("%s, %s: %+v, %v after %d transactions", level, form, fresh, err, pool.begun.Load())
				}
			}
			_ = old.Rollback(t.Context())
		}
	}
}

// A transaction that has marked an event keeps its generation open. A delivery that comes while
// Retain waits must find the mark, although it then marks into the next generation.
func TestAGenerationEndsAfterTheTransactionsThatMarkedInIt(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	first := p.begin(pgx.ReadCommitted)
	if fresh, err := inbox.Once(t.Context(), first, "c", event("a"), func(context.Context) error { return nil }); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	p.exec("UPDATE inbox_generations SET started_at = now() - interval '5 days'")
	var busy *inbox.BusyError
	if _, err := db.Retain(t.Context(), inbox.Retention{LockWait: 10 * time.Millisecond}); !errors.As(err, &busy) {
		t.Fatalf("Retain beside an open transaction: %v", err)
	}
	p.exec("UPDATE inbox_retention SET pause_until = '-infinity'")
	for range 3 { // have the statement prepared with the plan of before
		if _, err := db.Once(t.Context(), "c", event("other"), nothing); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if done, err := db.Retain(t.Context(), inbox.Retention{LockWait: time.Minute}); err != nil || done.Began != 2 {
			t.Errorf("Retain did %+v, %v", done, err)
		}
	})
	p.untilBlocked(1)
	wg.Go(func() {
		if fresh, err := db.Once(t.Context(), "c", event("a"), nothing); fresh || err != nil {
			t.Errorf("the second delivery is new: %t, %v", fresh, err)
		}
	})
	p.untilBlocked(2)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	p.expect("1", "SELECT count(*) FROM inbox_processed WHERE event_id = 'a'")
}

func TestConcurrentRetentionEndsAGenerationOnce(t *testing.T) {
	p := newPlace(t, "")
	p.exec("CREATE SCHEMA elsewhere; ALTER TABLE inbox_processed SET SCHEMA elsewhere; ALTER TABLE inbox_processed_1 SET SCHEMA elsewhere")
	p.exec("UPDATE inbox_generations SET started_at = now() - interval '5 days' WHERE ended_at IS NULL")
	pool := open(t, p.dsn+"&search_path=public,elsewhere", 10)
	var wg sync.WaitGroup
	var mu sync.Mutex
	began := 0
	for range 8 {
		wg.Go(func() {
			done, err := inbox.Pgx(pool).Retain(t.Context(), inbox.Retention{LockWait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			began += int(done.Began)
		})
	}
	wg.Wait()
	if began != 2 {
		t.Errorf("the sum of the numbers of new generations is %d, want 2", began)
	}
	p.expect("2", "SELECT count(*) FROM inbox_generations WHERE started_at > '-infinity'")
}

// A transaction has marked an event, and 60 pods want to begin a generation. One of them waits for the lock,
// which holds up all marks, and then all of them leave the table alone for a while.
func TestCallersOfRetainShareTheirPause(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	long := p.begin(pgx.ReadCommitted)
	if _, err := inbox.Once(t.Context(), long, "c", event("a"), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	p.exec("UPDATE inbox_generations SET started_at = now() - interval '5 days'")
	var mu sync.Mutex
	busy := 0
	retain := func() {
		done, err := db.Retain(t.Context(), inbox.Retention{})
		if done.Began != 0 || err != nil && !errors.As(err, new(*inbox.BusyError)) {
			t.Errorf("Retain beside an open transaction: %+v, %v", done, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			busy++
		}
	}
	for attempt, pause := range []string{"1 min", "2 min", "4 min"} {
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(retain)
		}
		wg.Wait()
		retain()
		if busy != attempt+1 {
			t.Errorf("after attempt %d, %d callers waited for the lock", attempt+1, busy)
		}
		p.expect("true", "SELECT pause_until - now() BETWEEN $1::interval * 0.5 AND $1::interval FROM inbox_retention", pause)
		p.exec("UPDATE inbox_retention SET pause_until = now()")
	}
	if err := long.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := db.Retain(t.Context(), inbox.Retention{}); done.Began != 2 || err != nil {
		t.Errorf("after the transaction: %+v, %v", done, err)
	}
	p.expect("0", "SELECT failures FROM inbox_retention")
}
