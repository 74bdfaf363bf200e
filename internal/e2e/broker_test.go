package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// The rows of the topic that refuses are not confirmed because those of the other, committed later, are delivered.
func TestOneTopicRefusesWhileTheOtherAccepts(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.Kafka(t)
	s := &setting{t: t, dsn: pg.Database(t), brokers: kafka.Brokers(), name: unique("relay")}
	s.prefix = s.name + "."
	pg.Exec(t, s.dsn, shop.Schema)
	for _, typ := range shop.Types {
		s.topics = append(s.topics, s.prefix+typ)
	}
	accepts, refuses := s.topics[0], s.topics[1]
	kafka.CreateTopic(t, accepts, 3, nil)

	r := s.start()
	eventually(t, time.Minute, "it streams", func() bool { return s.walsender(pg) != "" })
	work := s.load(&shop.Shop{Writers: 4, Rows: 5000, Seed: 5})
	<-work.done
	reason := r.notReady(30*time.Second, refuses)
	t.Logf("not ready: %s", reason)
	if strings.Contains(reason, accepts) {
		t.Errorf("the reason names %s, which accepts", accepts)
	}
	events := func() float64 { return r.metric(`walpost_events_total{topic="` + accepts + `"}`) }
	eventually(t, 30*time.Second, "the other topic accepts", func() bool { return events() > 1000 })
	// Later rows of the topic that accepts, for longer than it takes to write a checkpoint: one of them would leave out the others.
	before := events()
	for i := range 25 {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'order', 'late', 'Changed', jsonb_build_object('n', i) FROM generate_series(%d, %d) i`, 4*i+1, 4*i+4))
		time.Sleep(100 * time.Millisecond)
	}
	eventually(t, 30*time.Second, "later rows arrive", func() bool { return events() >= before+100 })
	r.kill()

	r = s.start()
	reason = r.notReady(30*time.Second, refuses)
	t.Logf("not ready after kill -9: %s", reason)
	kafka.CreateTopic(t, refuses, 3, nil)
	w := s.follow()
	t.Logf("%d duplicates", s.noLoss(w, time.Minute))
	eventually(t, 30*time.Second, "ready", r.ready)
	r.stopsClean()
}

func TestThreeBrokersFailOneAfterAnother(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "15", testenv.Private()), testenv.KafkaPrivate(t, 3, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	r := s.startReady()
	w := s.follow()
	work := s.load(&shop.Shop{Writers: 4, Seed: 7, Pause: 50 * time.Millisecond})
	w.more(t, time.Minute, 500)
	pause := func(what string, from time.Time) {
		t.Helper()
		t.Logf("%s: delivery goes on after %s", what, time.Since(from).Round(time.Millisecond))
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// arriveAnew waits for a row that is committed after now.
	arriveAnew := func(what string) {
		t.Helper()
		from := time.Now()
		s.arrives(pg, w, strings.ReplaceAll(what, " ", "-"))
		pause(what, from)
	}

	leader := leaderOf(t, kafka, s.topics[0])
	do(kafka.Kill(leader))
	arriveAnew("leader killed")
	kafka.Start(t, leader)
	arriveAnew("leader back")

	leader = leaderOf(t, kafka, s.topics[0])
	do(kafka.Pause(leader))
	arriveAnew("leader frozen")
	do(kafka.Resume(leader))
	arriveAnew("leader thawed")

	// One after the other in good order, so that the last one knows that it is alone.
	do(kafka.Stop(2))
	do(kafka.Stop(3))
	down := time.Now()
	reason := r.notReady(time.Minute, "NOT_ENOUGH_REPLICAS")
	t.Logf("not ready %s after two of three were down: %s", time.Since(down).Round(time.Millisecond), reason)
	kafka.Start(t, 2, 3)
	arriveAnew("two back")

	work.stop()
	s.onceEach(w, 2*time.Minute)
	eventually(t, time.Minute, "ready", r.ready)
	r.stopsClean()
}

// arrives commits a row of each topic with keys of their own, and waits until both were delivered.
func (s *setting) arrives(pg *testenv.PG, w *watch, tag string) {
	s.t.Helper()
	for _, typ := range shop.Types {
		key := tag + "-" + typ
		w.expect(key)
		pg.Exec(s.t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('`+typ+`', '`+key+`', 'Changed', '{"n": 1}')`)
	}
	eventually(s.t, 90*time.Second, tag+": rows committed after it arrive", func() bool { return w.expected() == 0 })
}

// leaderOf returns the node that leads the topic's first partition.
func leaderOf(t *testing.T, kafka *testenv.KafkaCluster, topic string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	adm := kadm.NewClient(kafka.Client(t))
	for {
		topics, err := adm.ListTopics(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		if p := topics[topic].Partitions[0]; p.Err == nil && p.Leader > 0 {
			return int(p.Leader)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
