package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// orders are the two ways in which rows of a table can be ordered.
var orders = []struct {
	version, name string
	params        []testenv.PGOption
	sql           string
	source        string
}{
	{ // and by a column what one statement wrote
		version: "17", name: "by commit time", params: []testenv.PGOption{testenv.Param("track_commit_timestamp", "on")},
		sql: "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY", source: ", order_column: n",
	},
	{version: "15", name: "by a column", sql: "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY", source: ", order_column: n"},
}

// initial is a setting whose first start publishes what is in the table.
func initial(t *testing.T, i int, options ...testenv.PGOption) *setting {
	t.Helper()
	o := orders[i]
	pg := testenv.Postgres(t, o.version, append(options, o.params...)...)
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	if o.sql != "" {
		pg.Exec(t, s.dsn, o.sql)
	}
	s.source = o.source + ", snapshot: initial, slot: " + s.slot()
	return s
}

// slot is a name of a slot that no other test has on a server that is shared.
func (s *setting) slot() string { return strings.ReplaceAll(s.name, "-", "_") }

// An originWatch counts records by their header walpost.origin; "" is the stream's.
type originWatch struct {
	mu    sync.Mutex
	count map[string]int
}

func (s *setting) origins() *originWatch {
	o := &originWatch{count: map[string]int{}}
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.ConsumeTopics(s.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	s.t.Cleanup(func() { cl.Close(); <-done })
	go func() {
		defer close(done)
		for {
			fs := cl.PollFetches(s.t.Context())
			if fs.IsClientClosed() || s.t.Context().Err() != nil {
				return
			}
			o.mu.Lock()
			fs.EachRecord(func(r *kgo.Record) {
				origin := ""
				for _, h := range r.Headers {
					if h.Key == "walpost.origin" {
						origin = string(h.Value)
					}
				}
				o.count[origin]++
			})
			o.mu.Unlock()
		}
	}()
	return o
}

func (o *originWatch) of(origin string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count[origin]
}

// nothingLost settles and wants everything to have arrived, first in its key's order. What came twice may differ: by the header that says
// that it comes from the table.
func (s *setting) nothingLost(w *watch, limit time.Duration) (duplicates int) {
	s.t.Helper()
	rep := s.settle(w, limit)
	if rep.Lost+rep.Invented+rep.Disordered+rep.Moved > 0 {
		s.t.Errorf("broken promises: %s", &rep)
	}
	return rep.Duplicates
}

// Eight writers go on all the while. What is in the snapshot is not in the stream, and the other way around.
func TestSnapshotAndStreamGiveEveryRowOnce(t *testing.T) {
	t.Parallel()
	for i, o := range orders {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			s := initial(t, i)
			before := s.load(&shop.Shop{Writers: 4, Rows: 20_000, Seed: 1, Tag: "a"})
			<-before.done
			during := s.load(&shop.Shop{Writers: 8, Seed: 2, Tag: "b", Pause: 5 * time.Millisecond})
			during.reach(t, 500)
			origins := s.origins()
			w := s.follow()
			r := s.startReady()
			during.reach(t, during.Committed()+2000)
			during.stop()
			s.onceEach(w, time.Minute)
			eventually(t, time.Minute, "all origins counted", func() bool { return origins.of("snapshot")+origins.of("") == w.count() })
			if snapshot, stream := origins.of("snapshot"), origins.of(""); snapshot < 20_500 || stream < 100 {
				t.Errorf("%d records are of the snapshot, %d of the stream", snapshot, stream)
			}
			r.stopsClean()
			// And the second start is an ordinary one.
			last := s.load(&shop.Shop{Writers: 1, Rows: 100, Seed: 3, Tag: "c"})
			<-last.done
			r = s.startReady()
			s.onceEach(w, time.Minute)
			r.stopsClean()
		})
	}
}

// A stop in the middle of a snapshot is no crash: the next start goes on behind the last row that was acknowledged.
func TestAStoppedSnapshotGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	for i, o := range orders {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			s := initial(t, i)
			s.extra = "delivery: {window: {events: 50}}"
			<-s.load(&shop.Shop{Writers: 4, Rows: 30_000, Seed: 1, MaxRows: 300}).done
			w := s.follow()
			interrupted := 0
			for range 4 {
				r := s.start()
				eventually(t, time.Minute, "rows are delivered", func() bool { return r.metric("walpost_events_total") > 0 || r.ended() })
				r.stopsClean()
				if strings.Contains(r.log.String(), "the rows of the table are published") {
					break
				}
				interrupted++
			}
			if interrupted < 2 {
				t.Errorf("only %d starts were stopped in the middle: this says nothing", interrupted)
			}
			r := s.startReady()
			s.onceEach(w, time.Minute)
			r.stopsClean()
		})
	}
}

// Killed at any moment of its first minutes: before the slot, in making it, between it and its first record, while rows are sent.
func TestAKilledSnapshotLosesNothing(t *testing.T) {
	t.Parallel()
	for i, o := range orders {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			s := initial(t, i)
			s.extra = "delivery: {window: {events: 100}}"
			<-s.load(&shop.Shop{Writers: 4, Rows: 20_000, Seed: 1, Tag: "a", MaxRows: 300}).done
			work := s.load(&shop.Shop{Writers: 4, Rows: 20_000, Seed: 2, Tag: "b", Pause: 20 * time.Millisecond})
			w := s.follow()
			seed := uint64(time.Now().UnixNano())
			t.Logf("moments of the kills from seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			unfinished := 0
			for range 12 {
				r := s.start()
				time.Sleep(time.Duration(rnd.Int64N(int64(700 * time.Millisecond))))
				r.kill()
				if !strings.Contains(r.log.String(), "the rows of the table are published") {
					unfinished++
				}
			}
			r := s.startReady()
			<-work.done
			t.Logf("%d duplicates after 12 kills, %d of them in the snapshot", s.nothingLost(w, 2*time.Minute), unfinished)
			if unfinished < 3 {
				t.Errorf("only %d kills came before the snapshot was finished: this says nothing", unfinished)
			}
			r.stopsClean()
		})
	}
}

func TestASnapshotIsRefusedWhereItCannotBeRight(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "15")
	fresh := func(t *testing.T, source string) *setting {
		s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
		s.source, s.extra = source+", slot: "+s.slot(), "halt_linger: 0s"
		pg.Exec(t, s.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'made', '{\"n\": 1}')")
		return s
	}
	ends := func(t *testing.T, s *setting, code int, words ...string) {
		t.Helper()
		r := s.start()
		if got := r.wait(time.Minute); got != code {
			t.Errorf("exit code %d, must be %d", got, code)
		}
		for _, word := range words {
			if !strings.Contains(r.log.String(), word) {
				t.Errorf("it did not say %q:\n%s", word, r.log)
			}
		}
	}
	slots := func(s *setting) string {
		return pg.Value(t, s.dsn, "SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()")
	}
	t.Run("no order", func(t *testing.T) {
		s := fresh(t, ", snapshot: initial")
		ends(t, s, 2, "source.order_column is not set", "track_commit_timestamp is off", "--unordered")
		if slots(s) != "0" {
			t.Error("a slot was made all the same")
		}
		w := s.follow()
		r := s.startReady("--unordered")
		s.onceEach(w, time.Minute)
		r.stopsClean()
	})
	t.Run("a NULL in the order", func(t *testing.T) {
		s := fresh(t, ", snapshot: initial, order_column: at")
		pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN at int")
		ends(t, s, 2, "rows with a NULL in at")
	})
	t.Run("one statement that wrote several rows of a key", func(t *testing.T) {
		old := pg
		pg = testenv.Postgres(t, "17", testenv.Param("track_commit_timestamp", "on"))
		defer func() { pg = old }()
		s := fresh(t, ", snapshot: initial")
		pg.Exec(t, s.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', k, 'made', '{\"n\": 2}' FROM unnest('{a,b,b}'::text[]) k")
		ends(t, s, 2, "rows of one key that were written by one statement", "order_column")
		pg.Exec(t, s.dsn, "DELETE FROM outbox WHERE ctid = (SELECT max(ctid) FROM outbox)") // a and b of one statement are of two keys
		r := s.startReady()
		r.stopsClean()
	})
	t.Run("no such column", func(t *testing.T) {
		ends(t, fresh(t, ", snapshot: initial, order_column: nowhere"), 2, `no published column \"nowhere\"`)
	})
	t.Run("a slot that was there", func(t *testing.T) {
		s := fresh(t, ", snapshot: initial, order_column: created_at")
		pg.Exec(t, s.dsn, "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')", "SELECT pg_create_logical_replication_slot('"+s.slot()+"', 'pgoutput')")
		t.Cleanup(func() {
			pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
		})
		ends(t, s, 2, "slot "+s.slot()+" exists, but no checkpoint belongs to it", `set source.snapshot to \"never\"`, "Only if no relay has ever read the slot, drop it (SELECT pg_drop_replication_slot")
		w := s.follow() // a relay that ran before goes on with what the slot has
		s.insert(pg, "z", 1)
		s.source = strings.Replace(s.source, "snapshot: initial", "snapshot: never", 1)
		r := s.startReady()
		eventually(t, time.Minute, "the row that the slot has", func() bool { return w.count() == 1 })
		r.stopsClean()
	})
	t.Run("a snapshot that is not wanted any more", func(t *testing.T) {
		s := fresh(t, ", snapshot: initial, order_column: created_at")
		s.prefix = "nowhere." // the topics are missing, so it cannot be finished
		r := s.start()
		eventually(t, time.Minute, "rows are read", func() bool { return strings.Contains(r.log.String(), "publishing rows of the table") })
		if code, body := r.get("/readyz"); code != 503 || !strings.Contains(body, "publishing rows of the table (snapshot)") && !strings.Contains(body, "nowhere.order") {
			t.Errorf("readiness: %d %s", code, body)
		}
		s.extra += "\nshutdown_grace: 0s"
		r.kill()
		s.source = ", slot: " + s.slot()
		ends(t, s, 2, "the snapshot that was begun is not finished", "leave out the remaining rows")
		s.source = ", snapshot: never, slot: " + s.slot()
		s.prefix = s.name + "."
		w := s.follow()
		r = s.startReady()
		pg.Exec(t, s.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'b', 'made', '{\"n\": 1}')")
		w.total(t, time.Minute, 1)
		if !strings.Contains(r.log.String(), "THE SNAPSHOT IS GIVEN UP") || w.count() != 1 {
			t.Errorf("%d records arrived\n%s", w.count(), r.log)
		}
		r.stopsClean()
	})
}

// Each start in the middle of a snapshot may have the tables in another order. A table that was begun must stay until its rows are published.
func TestASnapshotOfSeveralTablesGoesOnInAnotherOrder(t *testing.T) {
	t.Parallel()
	const rows = 8000 // of each table
	s := initial(t, 1)
	pg := testenv.Postgres(t, orders[1].version)
	pg.Exec(t, s.dsn, "CREATE TABLE other (LIKE outbox INCLUDING ALL)")
	for _, table := range []string{"outbox", "other"} {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO %s (aggregate_type, aggregate_id, event_type, payload)
 SELECT 'order', g %% 50, 'made', '{}' FROM generate_series(1, %d) g`, table, rows))
	}
	start := func(tables string) *relay {
		s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, tables: [%s]%s}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s]}
delivery: {window: {events: 20}}
halt_linger: 0s`, s.name, s.dsn, tables, s.source, s.prefix, strings.Join(s.brokers, ", "))
		return s.start()
	}
	w := s.follow()
	r := start("public.outbox, public.other")
	w.more(t, time.Minute, 300)
	r.stopsClean()
	r = start("public.other")
	if code := r.wait(time.Minute); code != 2 || !strings.Contains(r.log.String(), "table public.outbox is no longer in source.tables, but its snapshot is not finished") {
		t.Errorf("without the table that was begun: exit code %d\n%s", code, r.log)
	}
	r = start("public.other, public.outbox")
	w.more(t, time.Minute, 300)
	r.stopsClean()
	if strings.Contains(r.log.String(), "the rows of the table are published") {
		t.Error("the snapshot was finished too soon: this says nothing")
	}
	r = start("public.other, public.outbox")
	eventually(t, time.Minute, "ready", r.ready)
	eventually(t, time.Minute, "every row arrived", func() bool { return w.count() >= 2*rows })
	r.stopsClean()
	if n := w.count(); n != 2*rows {
		t.Errorf("%d records of %d rows", n, 2*rows)
	}
}
