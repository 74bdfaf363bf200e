package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/wire"
)

// What goes wrong around a relay, while 16 writers go on whose transactions commit in another order than their ids: connections that are cut or
// stand still, a server without connections, cancelled statements, a lock on the table, restarts, and then crashes.
func TestEachSourceKeepsItsPromiseThroughFaults(t *testing.T) {
	t.Parallel()
	// One broker for all. Each kind has a listener of it, behind a proxy of its own.
	props, proxies := map[string]string{}, map[string]*wire.Wire{}
	add := func(key, entry string) { props[key] = strings.TrimPrefix(props[key]+","+entry, ",") }
	for _, k := range kinds {
		port, err := localpg.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		p, name, listener := wire.New(t), strings.ToUpper(k.name), fmt.Sprintf("127.0.0.1:%d", port)
		p.ServeKafka(listener)
		proxies[k.name] = p
		add("+listeners", name+"://"+listener)
		add("+advertised.listeners", name+"://"+p.Address())
		add("+listener.security.protocol.map", name+":PLAINTEXT")
	}
	kafka := testenv.KafkaPrivate(t, 1, props)
	eachKind(t, func(t *testing.T, k kind) {
		pg := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("max_connections", "40"), testenv.Param("track_commit_timestamp", "on"))
		toKafka := proxies[k.name]
		s := k.newSetting(t, pg, kafka)
		s.brokers = []string{toKafka.Address()}
		s.source = strings.Replace(s.source, "lease: 15s", "lease: 30s", 1) // no lease ends but by a crash
		toPG := s.wired(pg)
		writers, rounds := 16, 1
		numbers(t, map[string]*int{"WALPOST_POLL_WRITERS": &writers, "WALPOST_POLL_ROUNDS": &rounds})
		w := s.follow()
		r := s.startReady()
		c := s.crowd(writers, 11)
		const processes = " FROM pg_stat_activity WHERE application_name = 'walpost'"
		for range rounds {
			for _, fault := range []struct {
				name  string
				fewer bool // a kind with fewer faults has this one, too
				do    func(t *testing.T)
			}{
				{"cut to Postgres", true, func(*testing.T) { toPG.Cut() }},
				{"Postgres out of reach", false, func(*testing.T) {
					toPG.Off()
					r.notReady(30*time.Second, "")
					toPG.On()
				}},
				{"silence to Postgres", false, func(*testing.T) {
					toPG.Stand()
					time.Sleep(3 * time.Second)
					toPG.Move()
				}},
				{"silence to Postgres that ends in a cut", true, func(*testing.T) {
					toPG.Stand()
					time.Sleep(time.Second)
					toPG.Cut()
					toPG.Move()
				}},
				{"cut to Kafka", true, func(*testing.T) { toKafka.Cut() }},
				{"lost answers of Kafka", true, func(t *testing.T) {
					toKafka.LoseAnswers(3)
					eventually(t, time.Minute, "answers were lost", func() bool { left, _ := toKafka.Answers(); return left == 0 })
				}},
				{"cancelled statements", true, func(t *testing.T) {
					for range 20 {
						pg.Exec(t, s.dsn, "SELECT pg_cancel_backend(pid)"+processes)
						time.Sleep(20 * time.Millisecond)
					}
				}},
				{"terminated backends", true, func(t *testing.T) { pg.Exec(t, s.dsn, "SELECT pg_terminate_backend(pid)"+processes) }},
				{"no connections left", false, func(t *testing.T) {
					var held []*pgx.Conn
					for give := time.Now().Add(20 * time.Second); time.Now().Before(give); {
						conn, err := pgx.Connect(t.Context(), s.dsn)
						if err != nil {
							break
						}
						held = append(held, conn)
						if len(held) == 1 {
							continue
						}
						_, _ = held[0].Exec(t.Context(), "SELECT pg_terminate_backend(pid)"+processes) // it makes room for another one of ours
					}
					time.Sleep(2 * time.Second)
					for _, conn := range held {
						_ = conn.Close(t.Context()) // it was used
					}
				}},
				{"a lock on the table", false, func(t *testing.T) {
					conn := testenv.Conn(t, s.dsn)
					testenv.Run(t, conn, "BEGIN", "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
					time.Sleep(7 * time.Second) // longer than the relay waits for a lock
					testenv.Run(t, conn, "COMMIT")
				}},
				{"a restart of Postgres", true, func(t *testing.T) { pg.Restart(t) }},
				{"a restart of walpost", true, func(t *testing.T) {
					eventually(t, time.Minute, "ready", r.ready) // without a session, a stop cannot write what is delivered
					r.stopsClean()
					r = s.startReady()
				}},
			} {
				if k.fewer && !fault.fewer {
					t.Logf("%s: left out, see kind.fewer", fault.name)
					continue
				}
				began := time.Now()
				fault.do(t)
				w.more(t, time.Minute, 50)
				if r.ended() {
					t.Fatalf("%s ended the relay", fault.name)
				}
				t.Logf("%s: events flow after %s", fault.name, time.Since(began).Round(time.Millisecond))
			}
		}
		c.stop()
		eventually(t, time.Minute, "ready", r.ready)
		k.holds(s, w, false)

		if k.claims { // a worker that is killed is waited for
			r.stopsClean()
			s.source = strings.Replace(s.source, "lease: 30s", "lease: 10s", 1)
			r = s.startReady()
		}
		goesOn := func() {
			t.Helper()
			want := w.count() + 50
			eventually(t, time.Minute, "50 more records arrived", func() bool {
				if k.claims && r.ended() { // its records were in flight near the end of a lease
					r = s.start()
				}
				return w.count() >= want
			})
		}
		c = s.crowd(writers, 12)
		kills := 2
		if k.fewer {
			kills = 1
		}
		for range rounds {
			for range kills {
				goesOn()
				r.kill()
				r = s.startReady()
			}
			goesOn()
			if err := pg.Stop("immediate", time.Minute); err != nil {
				t.Fatal(err)
			}
			pg.Start(t)
			goesOn()
		}
		c.stop()
		k.holds(s, w, true)
		r.stopsClean()
	})
}

// An older copy of the checkpoint file is put back, as a restored volume would have it. A relay with the strategy cursor delivers the events
// since then again. Workers that claim rows repeat nothing. A slot no longer has the events, so a relay that reads one refuses to start.
// Nothing is lost silently.
func TestEachSourceAfterAnOlderCheckpoint(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		pg, kafka := testenv.Postgres(t, "17", testenv.Param("track_commit_timestamp", "on")), testenv.Kafka(t)
		s := k.newSetting(t, pg, kafka)
		file := filepath.Join(t.TempDir(), "checkpoint")
		s.extra = "checkpoint: {store: file, path: " + file + "}\nhalt_linger: 0s\n"
		w := s.follow()
		r := s.startReady()
		for n := 1; n <= 5; n++ {
			s.insert(pg, "a", n)
		}
		w.total(t, time.Minute, 5)
		r.stopsClean()
		older, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r = s.startReady()
		for n := 6; n <= 9; n++ {
			s.insert(pg, "a", n)
		}
		w.total(t, time.Minute, 9)
		r.stopsClean()
		if err := os.WriteFile(file, older, 0o600); err != nil {
			t.Fatal(err)
		}
		r = s.start()
		if k.poll == "" { // the slot is beyond the checkpoint: the server no longer has what is between
			if code := r.wait(time.Minute); code != 3 || !strings.Contains(r.log.String(), "walpost recover") {
				t.Errorf("code %d\n%s", code, r.log)
			}
			return
		}
		if !k.claims {
			w.total(t, time.Minute, 13) // the four newest come again
		}
		s.insert(pg, "a", 10)
		k.holds(s, w, !k.claims)
		r.stopsClean()
	})
}
