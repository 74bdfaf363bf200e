package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// polled makes the setting one that polls its table, which has what walpost setup makes.
func (s *setting) polled(pg *testenv.PG, keys string) {
	s.t.Helper()
	s.source = ", kind: poll, order_column: n, time_column: created_at, poll: {xid_column: xid, interval: 50ms" + keys + "}"
	s.setUp(pg)
	if code, out := s.command("setup"); code != 0 || out != "-- Everything is there.\n" {
		s.t.Fatalf("setup again: code %d\n%s", code, out)
	}
	s.counters(pg)
}

// setUp makes what walpost setup --apply makes, and the indexes that it leaves to a person.
func (s *setting) setUp(pg *testenv.PG) {
	s.t.Helper()
	if code, out := s.command("setup", "--apply"); code != 0 {
		s.t.Fatalf("setup: code %d\n%s", code, out)
	}
	_, left := s.command("setup")
	for line := range strings.Lines(left) {
		if strings.HasPrefix(line, "CREATE INDEX ") {
			pg.Exec(s.t, s.dsn, line)
		}
	}
}

// counters makes the table of keys that a crowd writes for.
func (s *setting) counters(pg *testenv.PG) {
	s.t.Helper()
	pg.Exec(s.t, s.dsn, "CREATE TABLE counters (key text PRIMARY KEY, n bigint NOT NULL DEFAULT 0)",
		"INSERT INTO counters SELECT 'k' || i FROM generate_series(1, 12) i")
}

// A crowd of writers takes turns at few keys. They take the ids of their transactions early or late, write within savepoints, take back what
// they wrote, and commit with and without waiting for the disk: so neither ids nor numbers come in the order of the commits.
type crowd struct{ stop func() }

func (s *setting) crowd(writers int, seed uint64) *crowd {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range writers {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = s.writeSome(ctx, rnd) // the server may be gone
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	c := &crowd{stop: sync.OnceFunc(func() { cancel(); wg.Wait() })}
	s.t.Cleanup(c.stop)
	return c
}

func (s *setting) writeSome(ctx context.Context, rnd *rand.Rand) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	// When a test stops its writers, each finishes its transaction. Otherwise the server could commit one after the test has counted
	// what was committed.
	stopping := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(stopping))
	defer cancel()
	defer context.AfterFunc(stopping, func() { time.AfterFunc(time.Minute, cancel) })()
	for stopping.Err() == nil {
		if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		if rnd.IntN(2) == 0 {
			if _, err := conn.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
				return err
			}
		}
		if rnd.IntN(4) == 0 {
			if _, err := conn.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
				return err
			}
		}
		time.Sleep(s.pause + time.Duration(rnd.IntN(150))*time.Millisecond)
		key := fmt.Sprintf("k%d", 1+rnd.IntN(12))
		savepoint := rnd.IntN(3) == 0
		if savepoint {
			if _, err := conn.Exec(ctx, "SAVEPOINT s"); err != nil {
				return err
			}
		}
		for range 1 + rnd.IntN(3) {
			if _, err := conn.Exec(ctx, `WITH c AS (UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n)
 INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', $1, 'Changed', json_build_object('n', n) FROM c`, key); err != nil {
				return err
			}
		}
		end := "COMMIT"
		switch {
		case savepoint && rnd.IntN(2) == 0:
			end = "ROLLBACK TO s; COMMIT"
		case savepoint:
			end = "RELEASE s; COMMIT"
		case rnd.IntN(10) == 0:
			end = "ROLLBACK"
		}
		time.Sleep(time.Duration(rnd.IntN(25)) * time.Millisecond)
		if _, err := conn.Exec(ctx, end); err != nil {
			return err
		}
	}
	return nil
}

// What happens to the WAL source in other tests: nothing is lost, and the order per key is kept. Without a crash nothing comes twice.
func TestPollingKeepsItsPromiseThroughFaults(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("max_prepared_transactions", "2"))
	kafka := testenv.KafkaPrivate(t, 1, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.polled(pg, "")
	w := s.follow()
	writers, rounds := 16, 1
	numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers, "WALPOST_POLL_ROUNDS": &rounds})
	r := s.startReady()
	c := s.crowd(writers, 1)
	terminate := func() {
		pg.Exec(t, s.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walpost'")
	}
	for range rounds {
		w.more(t, time.Minute, 50)
		terminate()
		w.more(t, time.Minute, 50)
		r.stopsClean()
		r = s.startReady()
		w.more(t, time.Minute, 50)
		if err := kafka.Pause(); err != nil {
			t.Fatal(err)
		}
		terminate()
		time.Sleep(2 * time.Second)
		if err := kafka.Resume(); err != nil {
			t.Fatal(err)
		}
		w.more(t, 2*time.Minute, 50)
		long, err := pgx.Connect(t.Context(), s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Run(t, long, "BEGIN", "SELECT pg_current_xact_id()")
		terminate()
		time.Sleep(time.Second)
		testenv.Run(t, long, "COMMIT")
		_ = long.Close(t.Context()) // it was used
		w.more(t, time.Minute, 50)
	}
	c.stop()
	s.onceEach(w, 2*time.Minute)

	c = s.crowd(writers, 2)
	second := s.start()
	for range rounds {
		for range 2 {
			w.more(t, 2*time.Minute, 50)
			r.kill()
			r, second = second, s.start()
		}
		w.more(t, 2*time.Minute, 50)
		if err := pg.Stop("immediate", time.Minute); err != nil {
			t.Fatal(err)
		}
		pg.Start(t)
		w.more(t, 2*time.Minute, 50)
	}
	c.stop()
	// After a crash the ranges are cut anew, so only the events of each key are repeated in their order.
	if rep := s.settle(w, 2*time.Minute); rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 {
		t.Errorf("broken promises: %s", &rep)
	}
	r.stopsClean()
	second.stopsClean()
}

// A promoted standby that has everything goes on without a person. One that lacks what was delivered, or the ids from which on the relay
// delivers, is refused.
func TestPollingAfterAFailover(t *testing.T) {
	t.Parallel()
	kafka := testenv.Kafka(t)
	for _, lacks := range []string{"nothing", "an event", "the beginning"} {
		t.Run("the standby lacks "+lacks, func(t *testing.T) {
			lossy := lacks != "nothing"
			primary := testenv.Postgres(t, "17", testenv.Private())
			standby := primary.Standby(t)
			s := newSetting(t, primary, primary.Database(t), kafka)
			s.polled(primary, "")
			w := s.follow()
			insert := func(pg *testenv.PG, key string, n int) {
				pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', 'Changed', '{\"n\": %d}')", key, n))
			}
			snapshot := "initial"
			insert(primary, "a", 1)
			standby.CatchUp(t, primary)
			if lossy {
				if err := standby.Stop("fast", time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			if lacks == "the beginning" {
				snapshot = s.bound()
			}
			s.source += `, snapshot: "` + snapshot + `"`
			r := s.startReady()
			if lacks == "an event" {
				insert(primary, "a", 2)
			}
			events := map[string]int{"nothing": 1, "an event": 2}[lacks]
			eventually(t, time.Minute, "the events", func() bool { return w.count() == events })
			r.stopsClean()
			if err := primary.Stop("immediate", time.Minute); err != nil {
				t.Fatal(err)
			}
			if lossy {
				standby.Start(t)
			}
			standby.Promote(t)
			s.dsn = strings.Replace(s.dsn, fmt.Sprintf(":%d/", primary.Port()), fmt.Sprintf(":%d/", standby.Port()), 1)
			if lossy {
				s.extra = "halt_linger: 0s\n"
				r = s.start()
				if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "left timeline 1 at") {
					t.Fatalf("code %d:\n%s", code, r.log)
				}
				if code, out := s.command("verify"); snapshot == "initial" && code != 0 || !strings.Contains(out, "note: walpost run would not start: the server's history left timeline 1 at") {
					t.Errorf("verify: code %d\n%s", code, out)
				}
				r = s.startReady("--accept-gap=" + tokenInHint.FindStringSubmatch(r.log.String())[1])
			} else {
				r = s.startReady()
			}
			insert(standby, "a", 3)
			eventually(t, time.Minute, "the event on the new primary", func() bool {
				return w.ledger.Seen(standby.Value(t, s.dsn, "SELECT id::text FROM outbox WHERE payload->>'n' = '3'")) == 1
			})
			// A row that the bound leaves out has no record.
			if code, out := s.command("verify"); snapshot == "initial" && code != 0 || strings.Contains(out, "note:") {
				t.Errorf("verify on the new primary: code %d\n%s", code, out)
			}
			r.stopsClean()
		})
	}
}
