package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// claimed makes the setting one whose workers claim rows. The table kept has what the outbox had, because workers may delete rows.
func (s *setting) claimed(pg *testenv.PG, strategy, keys string) {
	s.t.Helper()
	s.polled(pg, ", strategy: "+strategy+", lease: 20s"+keys)
	s.keepRows(pg)
}

// Workers share a table while 16 writers go on whose transactions commit in another order than their ids. Connections are lost, workers stop,
// are killed and stand still for longer than a lease, the broker is killed, and Postgres crashes: nothing is lost, and the order per key is kept.
// Without a crash nothing comes twice.
func TestClaimingKeepsItsPromiseThroughFaults(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17", testenv.Private())
	kafka := testenv.KafkaPrivate(t, 1, nil)
	for i, strategy := range []string{"claim", "delete"} {
		t.Run(strategy, func(t *testing.T) {
			s := newSetting(t, pg, pg.Database(t), kafka)
			s.claimed(pg, strategy, "")
			w := s.follow()
			writers, rounds := 16, 1
			numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers, "WALPOST_POLL_ROUNDS": &rounds})
			workers := make([]*relay, 3)
			for i := range workers {
				workers[i] = s.startReady()
			}
			c := s.crowd(writers, uint64(10+i))
			terminate := func() {
				pg.Exec(t, s.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walpost' AND datname = current_database()")
			}
			for range rounds {
				w.more(t, time.Minute, 50)
				terminate()
				w.more(t, time.Minute, 50)
				eventually(t, time.Minute, "the worker has a session again", workers[0].ready) // without one, a stop cannot write what is delivered
				workers[0].stopsClean()
				workers[0] = s.startReady()
				w.more(t, time.Minute, 50)
			}
			c.stop()
			s.onceEach(w, 2*time.Minute)

			// From here on leases end.
			s.source = strings.Replace(s.source, "lease: 20s", "lease: 5s", 1)
			for i := range workers {
				workers[i].stopsClean()
				workers[i] = s.start()
			}
			tend := func() { // a worker ends if its records were in flight near the end of a lease
				for i := range workers {
					if workers[i].ended() {
						workers[i] = s.start()
					}
				}
			}
			goesOn := func() {
				t.Helper()
				want := w.count() + 50
				eventually(t, 2*time.Minute, "50 more records arrived", func() bool { tend(); return w.count() >= want })
			}
			c = s.crowd(writers, uint64(20+i))
			for range rounds {
				for i := range workers {
					goesOn()
					workers[i].kill()
					goesOn()
				}
				workers[0].signal(syscall.SIGSTOP) // it may end at this moment
				time.Sleep(6 * time.Second)
				goesOn()
				workers[0].signal(syscall.SIGCONT)
				goesOn()
				if err := kafka.Kill(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				kafka.Start(t)
				goesOn()
				if err := pg.Stop("immediate", time.Minute); err != nil {
					t.Fatal(err)
				}
				pg.Start(t)
				goesOn()
			}
			c.stop()
			tend()
			if rep := s.settle(w, 2*time.Minute); rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 {
				t.Errorf("broken promises: %s", &rep)
			}
			eventually(t, time.Minute, "every row is finished", func() bool {
				return pg.Value(t, s.dsn, "SELECT count(*) FROM outbox WHERE finished_at IS NULL") == "0"
			})
			for _, k := range workers {
				if !k.ended() {
					_ = k.cmd.Process.Signal(syscall.SIGTERM) // it may end at this moment
				}
				if code := k.wait(90 * time.Second); code != 0 && !strings.Contains(k.log.String(), "events may be delivered twice") {
					t.Errorf("exit code %d", code)
				}
			}
			if strategy == "delete" {
				if left := pg.Value(t, s.dsn, "SELECT count(*) FROM outbox"); left != "0" {
					t.Errorf("%s rows are left", left)
				}
			}
		})
	}
}

// A row that cannot be routed has its attempts and its error, the younger rows of its key wait, and all others flow. Then the policy decides.
func TestARefusedRowWaitsWhileOthersFlow(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17")
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	s.extra = "halt_linger: 0s\n"
	s.claimed(pg, "claim", ", attempts: 3")
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL")
	w := s.follow()
	insert := func(typ, key string, n int) string {
		return pg.Value(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (%s, '%s', 'Changed', '{\"n\": %d}') RETURNING id::text", typ, key, n))
	}
	r := s.startReady()
	bad := insert("NULL", "a", 1)
	behind := insert("'order'", "a", 2)
	other := insert("'order'", "b", 1)
	eventually(t, time.Minute, "a neighbour", func() bool { return w.ledger.Seen(other) == 1 })
	row := func() string {
		return pg.Value(t, s.dsn, "SELECT attempts || ' ' || coalesce(last_error, '') || coalesce(' ' || (next_attempt_at > claimed_until)::text, '') FROM outbox WHERE id = '"+bad+"'")
	}
	eventually(t, time.Minute, "two attempts", func() bool { return strings.HasPrefix(row(), "2 ") })
	if got := row(); !strings.Contains(got, "aggregate_type") {
		t.Errorf("the row says %q", got)
	}
	if code, out := s.command("status"); !strings.Contains(out, bad) {
		t.Errorf("status: code %d\n%s", code, out)
	}
	if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), bad) || w.ledger.Seen(behind) != 0 {
		t.Fatalf("after 3 attempts: code %d\n%s", code, r.log)
	}
	if code, out := s.command("skip", "token"); code != 2 || !strings.Contains(out, "finished_at") {
		t.Errorf("skip: code %d\n%s", code, out)
	}
	pg.Exec(t, s.dsn, "UPDATE outbox SET aggregate_type = 'order' WHERE aggregate_type IS NULL")
	r = s.startReady()
	eventually(t, time.Minute, "the rows of the key", func() bool { return w.ledger.Seen(bad) == 1 && w.ledger.Seen(behind) == 1 })
	r.stopsClean()

	s.extra += "delivery: {on_poison: dead_letter, dead_letter_topic: " + s.prefix + "dead}\n"
	r = s.start("--create-topics")
	insert("NULL", "c", 1)
	last := insert("'order'", "c", 2)
	eventually(t, time.Minute, "the row behind a dead letter", func() bool { return w.ledger.Seen(last) == 1 })
	eventually(t, time.Minute, "the row is finished", func() bool {
		return pg.Value(t, s.dsn, "SELECT count(*) FROM outbox WHERE finished_at IS NULL") == "0"
	})
	r.stopsClean()
}

// From cursor to claim, to delete, and back to cursor, while 16 writers go on: nothing is lost, and the order per key is kept. Only the change to
// cursor delivers rows twice. A relay with another strategy than before is refused.
func TestChangingTheStrategy(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "16")
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	s.extra = "halt_linger: 0s\n"
	s.claimed(pg, "cursor", "")
	w := s.follow()
	writers := 16
	numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers})
	r := s.startReady()
	c := s.crowd(writers, 30)
	change := func(from, to string) {
		t.Helper()
		w.more(t, time.Minute, 50)
		former := s.source
		s.source = strings.Replace(s.source, "strategy: "+from, "strategy: "+to, 1)
		s.setUp(pg)
		if code, out := s.command("recover", "--yes"); code != 2 || !strings.Contains(out, "the relay runs with its former configuration") {
			t.Fatalf("beside the former relay: code %d\n%s", code, out)
		}
		next := s.source
		s.source = former
		r.stopsClean()
		s.source = next
		r = s.start()
		if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "To change source.poll.strategy on purpose") || strings.Contains(r.log.String(), "accept-gap") {
			t.Fatalf("run without a recover: code %d\n%s", code, r.log)
		}
		if code, out := s.command("recover", "--yes"); code != 0 || !strings.Contains(out, "walpost run goes on with source.poll.strategy "+to) {
			t.Fatalf("recover: code %d\n%s", code, out)
		}
		r = s.startReady()
		w.more(t, time.Minute, 50)
	}
	change("cursor", "claim")
	change("claim", "delete")
	change("delete", "claim")
	c.stop()
	s.onceEach(w, 2*time.Minute)
	c = s.crowd(writers, 31)
	change("claim", "cursor")
	c.stop()
	if rep := s.settle(w, 2*time.Minute); rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 {
		t.Errorf("broken promises: %s", &rep)
	}
	r.stopsClean()
}
