package e2e

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

var cleanupKills = flag.Int("cleanup.kills", 15, "how often the relay is killed beside its cleanup")

// Rows are removed as soon as they may be, while the relay is killed again and again: each was in Kafka before it was removed, by the
// brokers' own clock, and in the end nothing is missing.
func TestCleanupRemovesNothingThatIsNotDelivered(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.Kafka(t)
	s := &setting{
		t: t, dsn: pg.Database(t), brokers: kafka.Brokers(), name: unique("relay"),
		source: ", time_column: created_at", extra: "cleanup: {mode: delete, keep: 0s}",
	}
	s.prefix = s.name + "."
	pg.Exec(t, s.dsn, shop.Schema, "CREATE INDEX ON outbox (created_at)",
		"CREATE TABLE removed (LIKE outbox, removed_at timestamptz)",
		`CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removed SELECT OLD.*, clock_timestamp(); RETURN NULL; END $$`,
		"CREATE TRIGGER remember AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION remember()")
	for _, typ := range shop.Types {
		s.topics = append(s.topics, s.prefix+typ)
		kafka.CreateTopic(t, s.prefix+typ, 3, map[string]string{"message.timestamp.type": "LogAppendTime"})
	}
	r := s.startReady()
	w := s.follow()
	work := s.load(&shop.Shop{Writers: 4, Seed: 3, Tag: "c", Pause: 100 * time.Millisecond})
	removed := func() string { return pg.Value(t, s.dsn, "SELECT count(*)::text FROM removed") }

	seed := uint64(time.Now().UnixNano())
	t.Logf("moments of the kills from seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	removing := 0
	for i := range *cleanupKills {
		before := removed()
		eventually(t, time.Minute, "ready", r.ready)
		if i%3 == 0 { // else as likely before it could remove anything
			eventually(t, time.Minute, "rows are removed", func() bool { return removed() != before })
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(2500 * time.Millisecond))))
		r.kill()
		if removed() != before {
			removing++
		}
		r = s.start()
	}
	work.stop()
	<-work.done
	eventually(t, time.Minute, "everything is removed", func() bool {
		return pg.Value(t, s.dsn, "SELECT count(*)::text FROM outbox") == "0"
	})
	if v := r.metric("walpost_cleanup_rows_total"); v < 1 {
		t.Errorf("walpost_cleanup_rows_total is %v", v)
	}
	r.stopsClean()
	t.Logf("%d kills, %d of them after rows were removed; %s rows in all", *cleanupKills, removing, removed())

	first := appended(t, kafka, s)
	conn, err := pgx.Connect(t.Context(), s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // it was read
	rows, err := conn.Query(t.Context(), "SELECT id::text, removed_at FROM removed")
	if err != nil {
		t.Fatal(err)
	}
	var id string
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		switch was, ok := first[id]; {
		case !ok:
			t.Errorf("row %s was removed and never came", id)
		case was.After(at):
			t.Errorf("row %s was removed %s before it came", id, was.Sub(at))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, s.dsn, "ALTER TABLE removed DROP removed_at", "INSERT INTO outbox SELECT * FROM removed") // for the ledger
	rep := s.settle(w, time.Minute)
	rep.Changed = 0 // a duplicate has the time of its own arrival here
	if !rep.OK() {
		t.Errorf("broken promises: %s", &rep)
	}
}

// A process that is halted ends with code 3 beside its cleanup too: else nobody would start it again.
func TestAHaltEndsTheCleanup(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "15")
	s := newSetting(t, pg, pg.Database(t), testenv.Kafka(t))
	s.source, s.extra = ", time_column: created_at, slot: "+s.slot(), "halt_linger: 0s\ncleanup: {mode: delete, keep: 0s}"
	pg.Exec(t, s.dsn, "CREATE INDEX ON outbox (created_at)")
	r := s.startReady()
	pg.Exec(t, s.dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('two words', 'a', 'made', '{}')")
	if code := r.wait(time.Minute); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

// appended reads the topics from their start to their end: when the brokers took each event first.
func appended(t *testing.T, kafka *testenv.KafkaCluster, s *setting) map[string]time.Time {
	t.Helper()
	first := map[string]time.Time{}
	c := kafka.Client(t, kgo.ConsumeTopics(s.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()) // a partition may end with the marker of a transaction
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, s.topics...)
	if err = cmp.Or(err, ends.Error()); err != nil {
		t.Fatal(err)
	}
	type place struct {
		topic     string
		partition int32
	}
	left := map[place]int64{} // the last offset
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[place{o.Topic, o.Partition}] = o.Offset - 1
		}
	})
	for len(left) > 0 {
		fs := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d partitions are not read to their ends: %v", len(left), fs.Err())
		}
		fs.EachRecord(func(r *kgo.Record) {
			if at := (place{r.Topic, r.Partition}); r.Offset >= left[at] {
				delete(left, at)
			}
			for _, h := range r.Headers {
				if was, ok := first[string(h.Value)]; h.Key == "id" && (!ok || r.Timestamp.Before(was)) {
					first[string(h.Value)] = r.Timestamp
				}
			}
		})
	}
	return first
}
