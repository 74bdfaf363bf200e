package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
)

var errHandler = errors.New("the handler says no")

func TestEveryFormOfOnceHasOneEffect(t *testing.T) {
	p := newPlace(t, "")
	type once func(ctx context.Context, id string, fn func(exec func(string, ...any) error) error) (bool, error)
	pgxOnce := func(ctx context.Context, id string, fn func(func(string, ...any) error) error) (bool, error) {
		return inbox.Pgx(p.pool).Once(ctx, "pgx", event(id), func(ctx context.Context, tx pgx.Tx) error {
			return fn(func(sql string, args ...any) error { _, err := tx.Exec(ctx, sql, args...); return err })
		})
	}
	forms := map[string]once{"pgx": pgxOnce}
	for _, driver := range []string{"pgx", "postgres"} {
		db := p.openSQL(driver)
		forms["sql "+driver] = func(ctx context.Context, id string, fn func(func(string, ...any) error) error) (fresh bool, err error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return false, err
			}
			defer func() { _ = tx.Rollback() }()
			fresh, err = inbox.Once(ctx, tx, "sql "+driver, event(id), func(ctx context.Context) error {
				return fn(func(sql string, args ...any) error { _, err := tx.ExecContext(ctx, sql, args...); return err })
			})
			if err != nil {
				if tx.Commit() == nil {
					t.Error("the transaction of a failed handler could be committed")
				}
				return fresh, err
			}
			return fresh, tx.Commit()
		}
	}
	for name, once := range forms {
		t.Run(name, func(t *testing.T) {
			write := func(id string) func(func(string, ...any) error) error {
				return func(exec func(string, ...any) error) error {
					return exec("INSERT INTO effects (id, consumer) VALUES ($1, $2)", id, name)
				}
			}
			if _, err := once(t.Context(), "a", func(exec func(string, ...any) error) error {
				return errors.Join(write("a")(exec), errHandler)
			}); !errors.Is(err, errHandler) {
				t.Errorf("the handler's error is %v", err)
			}
			for i := range 3 {
				if fresh, err := once(t.Context(), "a", write("a")); err != nil || fresh != (i == 0) {
					t.Errorf("delivery %d: %t, %v", i, fresh, err)
				}
			}
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					if _, err := once(t.Context(), fmt.Sprint("c", i%4), write("c")); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			p.expect("5", "SELECT count(*) FROM effects WHERE consumer = $1", name)
		})
	}
}

// In a pool, the mark would be committed alone.
func TestOnceRefusesWhatIsNoTransaction(t *testing.T) {
	p := newPlace(t, "")
	conn, err := p.openSQL("pgx").Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, handle := range []any{p.pool, p.openSQL("pgx"), conn, 7} {
		if fresh, err := inbox.Once(t.Context(), handle, "c", event("a"), nil); fresh || err == nil {
			t.Errorf("Once on %T: %t, %v", handle, fresh, err)
		}
		if n, err := inbox.Store(t.Context(), handle, "c", event("a")); n != 0 || err == nil {
			t.Errorf("Store on %T: %d, %v", handle, n, err)
		}
	}
	p.expect("0", "SELECT count(*) FROM inbox_processed")
}

// The second delivery must not answer before the first has ended.
func TestASecondDeliveryWaitsForTheFirst(t *testing.T) {
	p := newPlace(t, "")
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprint(level, commits), func(t *testing.T) {
				id := fmt.Sprint(level, commits)
				first, second := p.begin(level), p.begin(level)
				if fresh, err := inbox.Once(t.Context(), first, "c", event(id), func(ctx context.Context) error { return effect(ctx, first, id, "first") }); !fresh || err != nil {
					t.Fatal(fresh, err)
				}
				var fresh bool
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					fresh, err = inbox.Once(t.Context(), second, "c", event(id), func(ctx context.Context) error { return effect(ctx, second, id, "second") })
				}()
				p.untilBlocked(1)
				end := first.Rollback
				if commits {
					end = first.Commit
				}
				if err := end(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-done
				switch {
				case !commits && (!fresh || err != nil):
					t.Errorf("after the rollback of the first: %t, %v", fresh, err)
				case commits && level == pgx.ReadCommitted && (fresh || err != nil):
					t.Errorf("after the commit of the first: %t, %v", fresh, err)
				case commits && level != pgx.ReadCommitted && sqlState(err) != "40001":
					t.Errorf("after the commit of the first: %t, %v, want 40001", fresh, err)
				}
				if err == nil {
					err = second.Commit(t.Context())
				} else {
					err = second.Rollback(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
				again := p.begin(level) // the caller's retry
				if fresh, err := inbox.Once(t.Context(), again, "c", event(id), nil); fresh || err != nil {
					t.Errorf("the retry: %t, %v", fresh, err)
				}
				p.expect("1", "SELECT count(*) FROM effects WHERE id = $1", id)
			})
		}
	}
}

func TestAFailedHandlerCannotBeCommitted(t *testing.T) {
	p := newPlace(t, "")
	for name, fail := range map[string]func(context.Context) error{
		"error": func(context.Context) error { return errHandler },
		"panic": func(context.Context) error { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			tx := p.begin(pgx.ReadCommitted)
			func() {
				defer func() {
					if v := recover(); (v != nil) != (name == "panic") {
						t.Errorf("recovered %v", v)
					}
				}()
				_, err := inbox.Once(ctx, tx, "c", event("a"), func(ctx context.Context) error {
					cancel() // must not spare the transaction
					return fail(ctx)
				})
				if !errors.Is(err, errHandler) {
					t.Errorf("the error is %v", err)
				}
			}()
			if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
				t.Errorf("the commit gives %v", err)
			}
			p.expect("0", "SELECT count(*) FROM inbox_processed")
		})
	}
}

func TestASavepointTakesTheMarkBack(t *testing.T) {
	p := newPlace(t, "")
	tx := p.begin(pgx.ReadCommitted)
	attempt := func(want bool, fail error) {
		t.Helper()
		sub, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fresh, err := inbox.Once(t.Context(), sub, "c", event("a"), func(ctx context.Context) error { return errors.Join(effect(ctx, sub, "a", ""), fail) })
		if fresh != want || !errors.Is(err, fail) {
			t.Errorf("%t, %v", fresh, err)
		}
		end := sub.Commit
		if fail != nil {
			end = sub.Rollback
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	attempt(true, errHandler)
	attempt(true, nil)
	attempt(false, nil)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.expect("1", "SELECT count(*) FROM effects")
}

func TestRunReturnsAPanicAndTheFailureOfTheCommit(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	var handler *inbox.HandlerError
	var panicked *inbox.PanicError
	fresh, err := db.Once(t.Context(), "c", event("a"), func(context.Context, pgx.Tx) error { panic("no") })
	if fresh || !errors.As(err, &handler) || !errors.As(err, &panicked) || panicked.Value != "no" || !strings.Contains(string(panicked.Stack), "once_test.go") {
		t.Errorf("a panic gives %t, %v", fresh, err)
	}
	p.exec("CREATE TABLE strict (id int PRIMARY KEY, other int REFERENCES strict DEFERRABLE INITIALLY DEFERRED)")
	_, err = db.Once(t.Context(), "c", event("a"), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO strict VALUES (1, 2)")
		return err
	})
	if handler = nil; !errors.As(err, &handler) || sqlState(err) != "23503" {
		t.Errorf("a commit that the server refuses gives %v", err)
	}
	_, err = db.Once(t.Context(), "c", event("a"), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	})
	if handler = nil; err == nil || errors.As(err, &handler) {
		t.Errorf("a lost connection is the handler's fault: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = db.Once(ctx, "c", event("a"), func(ctx context.Context, tx pgx.Tx) error {
		cancel()
		return effect(ctx, tx, "a", "")
	})
	if handler = nil; !errors.Is(err, context.Canceled) || errors.As(err, &handler) {
		t.Errorf("the end of the context is the handler's fault: %v", err)
	}
	p.expect("0", "SELECT count(*) FROM inbox_processed")
	if fresh, err := db.Once(t.Context(), "c", event("a"), func(context.Context, pgx.Tx) error { return nil }); !fresh || err != nil {
		t.Errorf("in the end: %t, %v", fresh, err)
	}
}

func TestABatchGetsTheNewEventsInTheirOrder(t *testing.T) {
	p := newPlace(t, "")
	sqlDB := p.openSQL("postgres")
	for i, c := range []struct{ ids, fresh []string }{
		{[]string{"c", "a", "c", `q"\{}`, "b"}, []string{"c", "a", `q"\{}`, "b"}},
		{[]string{"x", "a", "<&é ", "b", "d"}, []string{"x", "<&é ", "d"}},
		{[]string{"a", "x"}, nil},
		{nil, nil},
	} {
		var msgs []inbox.Message
		for _, id := range c.ids {
			msgs = append(msgs, event(id))
		}
		check := func(form string, fresh []inbox.Message, err error) {
			var got []string
			for _, m := range fresh {
				got = append(got, m.ID)
			}
			if !slices.Equal(got, c.fresh) || err != nil {
				t.Errorf("%s: batch %d gave %q to the handler, want %q (%v)", form, i, got, c.fresh, err)
			}
		}
		fresh, err := handleBatch(t.Context(), inbox.Pgx(p.pool), "c", msgs...)
		check("pgx", fresh, err)
		fresh, err = handleBatch(t.Context(), inbox.SQL(sqlDB), "sql", msgs...)
		check("lib/pq", fresh, err)
	}
}

// countedPool counts the transactions. The first one is first, if it is set.
type countedPool struct {
	*pgxpool.Pool
	first pgx.Tx
	begun atomic.Int32
}

func (p *countedPool) Begin(ctx context.Context) (pgx.Tx, error) {
	if n := p.begun.Add(1); n == 1 && p.first != nil {
		return p.first, nil
	}
	return p.Pool.Begin(ctx)
}

// A BatchHandler repeats a transaction after a deadlock, so each one that is not the first shows one.
func TestBatchesInDifferentOrderDoNotDeadlock(t *testing.T) {
	p := newPlace(t, "")
	var events []inbox.Message
	for i := range 200 {
		events = append(events, event(fmt.Sprint("event ", i)))
	}
	pool := &countedPool{Pool: p.pool}
	for round := range 5 {
		consumer, fresh := fmt.Sprint("c", round), atomic.Int32{}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				mixed := slices.Clone(events)
				rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
				got, err := handleBatch(t.Context(), inbox.Pgx(pool), consumer, mixed...)
				if err != nil {
					t.Error(err)
				}
				fresh.Add(int32(len(got)))
			})
		}
		wg.Wait()
		if n := fresh.Load(); n != int32(len(events)) {
			t.Errorf("%d effects of %d events", n, len(events))
		}
	}
	if n := pool.begun.Load(); n != 5*8 {
		t.Errorf("%d batches took %d transactions", 5*8, n)
	}
}

func TestADatabaseWithoutACurrentGenerationIsNoDuplicate(t *testing.T) {
	p := newPlace(t, "")
	p.exec("UPDATE inbox_generations SET ended_at = now()")
	if fresh, err := inbox.Pgx(p.pool).Once(t.Context(), "c", event("a"), nil); fresh || sqlState(err) != "23514" && sqlState(err) != "23502" {
		t.Errorf("%t, %v", fresh, err)
	}
}

func TestBadIDsAreRefusedBeforeTheDatabase(t *testing.T) {
	p := newPlace(t, "")
	tx := p.begin(pgx.ReadCommitted)
	for _, c := range []struct {
		consumer, id string
		name         bool // the consumer's name is wrong, which is not the message's fault
	}{{"", "a", true}, {"c", "", false}, {"c", "a\x00", false}, {"c\xff", "a", true}} {
		_, once := inbox.Once(t.Context(), tx, c.consumer, event(c.id), nil)
		_, stored := inbox.Store(t.Context(), tx, c.consumer, event(c.id))
		_, batch := handleBatch(t.Context(), inbox.Pgx(p.pool), c.consumer, event("good"), event(c.id))
		for form, err := range map[string]error{"once": once, "store": stored, "batch": batch} {
			if err == nil || strings.Contains(err.Error(), "cannot be the name of a consumer") != c.name || errors.As(err, new(*inbox.IDError)) == c.name {
				t.Errorf("%s %+v: %T %v", form, c, err, err)
			}
		}
	}
	if fresh, err := inbox.Once(t.Context(), tx, strings.Repeat("c", 1024), inbox.Message{ID: strings.Repeat("é", 512), Scope: strings.Repeat("s", 255)}, func(context.Context) error { return nil }); !fresh || err != nil {
		t.Errorf("the transaction of refused events: %t, %v", fresh, err)
	}
}

// 100 events are delivered in random order, concurrently, in every isolation level, while
// generations change all the time.
func TestOneEffectWhileGenerationsChange(t *testing.T) {
	p := newPlace(t, "")
	p.moreGenerations(30)
	const events, deliveries = 100, 800
	ctx, stop := context.WithCancel(t.Context())
	var turns atomic.Int32
	turner := make(chan struct{})
	go func() {
		defer close(turner)
		for ctx.Err() == nil {
			_, err := p.pool.Exec(ctx, "UPDATE inbox_generations SET started_at = now() - interval '2 hours' WHERE ended_at IS NULL")
			if err == nil {
				_, err = p.pool.Exec(ctx, "UPDATE inbox_retention SET pause_until = '-infinity'")
			}
			if err != nil {
				continue
			}
			done, err := inbox.Pgx(p.pool).Retain(ctx, inbox.Retention{Keep: time.Hour, LockWait: 50 * time.Millisecond})
			var busy *inbox.BusyError
			if err != nil && !errors.As(err, &busy) && sqlState(err) != "40001" && ctx.Err() == nil {
				t.Error(err)
			}
			if done.Began > 0 {
				turns.Add(1)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	work := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for n := range work {
				id, level := fmt.Sprint("event ", n), levels[rand.IntN(len(levels))]
				for {
					err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
						// The snapshot of the higher levels begins here.
						if _, err := tx.Exec(ctx, "SELECT count(*) FROM effects"); err != nil {
							return err
						}
						time.Sleep(rand.N(4 * time.Millisecond))
						_, err := inbox.Once(ctx, tx, "c", event(id), func(ctx context.Context) error { return effect(ctx, tx, id, "") })
						return err
					})
					if state := sqlState(err); state != "40001" && state != "40P01" {
						if err != nil {
							t.Error(err)
						}
						break
					}
				}
			}
		})
	}
	for round := 0; round < deliveries/events || turns.Load() < 3 && round < 1000; round++ {
		for _, event := range rand.Perm(events) {
			work <- event
		}
	}
	close(work)
	wg.Wait()
	stop()
	<-turner
	p.expect(fmt.Sprint(events), "SELECT count(*) FROM effects")
	p.expect(fmt.Sprint(events), "SELECT count(DISTINCT id) FROM effects")
	if turns.Load() < 3 {
		t.Errorf("%d generations began: this says little", turns.Load())
	}
	t.Logf("%d generations began", turns.Load())
}

// Two topics number their events, and a third one has the events of the first under a new name.
func TestTheSameIDInAnotherScopeIsAnotherEvent(t *testing.T) {
	p := newPlace(t, "")
	db := inbox.Pgx(p.pool)
	orders, customers := inbox.Message{ID: "17", Topic: "orders"}, inbox.Message{ID: "17", Topic: "customers"}
	renamed := inbox.Message{ID: "17", Topic: "orders_v2", Scope: "orders"}
	for form, deliver := range map[string]func(consumer string, m inbox.Message) (fresh bool, err error){
		"once": func(consumer string, m inbox.Message) (bool, error) {
			return db.Once(t.Context(), consumer, m, nothing)
		},
		"batch": func(consumer string, m inbox.Message) (bool, error) {
			fresh, err := handleBatch(t.Context(), db, consumer, m, m)
			return len(fresh) == 1, err
		},
		"store": func(consumer string, m inbox.Message) (bool, error) {
			n, err := db.Store(t.Context(), consumer, m, m)
			return n == 1, err
		},
	} {
		for i, c := range []struct {
			m    inbox.Message
			want bool
		}{{orders, true}, {customers, true}, {renamed, false}, {orders, false}, {customers, false}} {
			if fresh, err := deliver(form, c.m); fresh != c.want || err != nil {
				t.Errorf("%s, delivery %d: %t, %v, want %t", form, i, fresh, err, c.want)
			}
		}
		if _, err := deliver(form, inbox.Message{ID: "17"}); !errors.As(err, new(*inbox.IDError)) {
			t.Errorf("%s without a scope: %v", form, err)
		}
	}
	if got, err := handleBatch(t.Context(), db, "both", orders, customers, renamed); len(got) != 2 || got[0].Topic != "orders" || got[1].Topic != "customers" || err != nil {
		t.Errorf("one batch with both: %+v, %v", got, err)
	}
	p.exec("UPDATE inbox_messages SET state = 'dead'")
	if n, err := db.RetryDead(t.Context(), "store", "orders", "17"); n != 1 || err != nil {
		t.Errorf("RetryDead: %d, %v", n, err)
	}
}
