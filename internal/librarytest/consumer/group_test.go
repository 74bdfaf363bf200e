//go:build linux || darwin

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/testenv"
)

// members are the ids of the group's members.
func (w *world) members() (ids []string) {
	w.t.Helper()
	w.ask(func(adm *kadm.Client) error {
		groups, err := adm.DescribeGroups(w.t.Context(), w.name)
		ids = nil
		for _, m := range groups[w.name].Members {
			ids = append(ids, m.MemberID)
		}
		return errors.Join(err, groups[w.name].Err)
	})
	return ids
}

func (m *member) owns(partitions int) func() bool {
	return func() bool { return len(m.Stats().Partitions) == partitions }
}

// A member that gives a partition up first ends what it handles there, and commits it. So the next
// owner does not get it again.
func TestARevokedPartitionIsDrainedAndCommitted(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 2)
	w.send(0, "a:1", "a:2")
	w.send(1, "b:1", "b:2")
	open := make(gate)
	slow := func(ctx context.Context, m inbox.Message) error {
		if strings.HasSuffix(string(m.Value), ":1") {
			return open.wait(ctx)
		}
		return nil
	}
	cfg := w.config(slow)
	cfg.Grace, cfg.RebalanceTimeout = patience, 2*patience
	a := w.start(cfg)
	w.sees("a:1", "b:1")
	b := w.start(cfg)
	w.eventually("two members", func() bool { return len(w.members()) == 2 })
	w.eventually("A starts nothing new in a partition", func() bool { return a.closing() == 1 })
	close(open)
	w.eventually("one partition each", func() bool { return a.owns(1)() && b.owns(1)() })
	w.commits(0, 2)
	w.commits(1, 2)
	for _, v := range []string{"a:1", "b:1", "a:2", "b:2"} {
		if n := w.count(v); n != 1 {
			t.Errorf("%s was handled %d times", v, n)
		}
	}
}

// A handler that does not end within the grace is cancelled, and the next owner repeats its message.
// The former owner goes on to no later message of the key.
func TestASlowHandlerIsCancelledWhenItsPartitionGoes(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 2)
	w.send(0, "a:1", "a:2")
	w.send(1, "b:1", "b:2")
	stuck := func(name string) consumer.Config {
		cfg := w.config(func(ctx context.Context, m inbox.Message) error {
			w.saw(name + " " + string(m.Value))
			if name == "A" && strings.HasSuffix(string(m.Value), ":1") {
				<-ctx.Done()
				w.saw("cancelled " + string(m.Value))
				return ctx.Err()
			}
			return nil
		})
		cfg.Grace = 200 * time.Millisecond
		return cfg
	}
	a := w.start(stuck("A"))
	w.sees("A a:1", "A b:1")
	w.start(stuck("B"))
	var gone string
	w.eventually("B handles one partition", func() bool {
		for _, key := range []string{"a", "b"} {
			if w.count("B "+key+":2") > 0 {
				gone = key
			}
		}
		return gone != ""
	})
	if w.count("cancelled "+gone+":1") != 1 || w.count("B "+gone+":1") != 1 || w.count("A "+gone+":2") != 0 {
		t.Errorf("partition of %s: %q", gone, w.all())
	}
	if s := a.Stats(); s.Failed != 0 {
		t.Errorf("the cancelled attempt counts: %+v", s)
	}
}

// The group throws the member out. What it still handles is not its own any more: it commits nothing
// of it, even if the handler succeeds.
func TestNothingIsCommittedForALostPartition(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 2)
	w.send(0, "a:1")
	var calls atomic.Int32
	open := make(gate)
	a := w.start(w.config(func(ctx context.Context, m inbox.Message) error {
		if string(m.Value) != "a:1" {
			return nil
		}
		if calls.Add(1) == 1 {
			<-ctx.Done()
			return nil // too late, but it does not know
		}
		return open.wait(ctx)
	}))
	w.sees("a:1")
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = w.name
	for _, id := range w.members() {
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = id
		req.Members = append(req.Members, m)
	}
	if _, err := req.RequestWith(t.Context(), w.cl); err != nil {
		t.Fatal(err)
	}
	w.eventually("a:1 is handled again", func() bool { return calls.Load() == 2 })
	w.send(1, "b:1")
	w.commits(1, 1)
	if at := w.committed(0); at >= 0 {
		t.Errorf("offset %d is committed while a:1 is handled", at)
	}
	close(open)
	w.commits(0, 1)
	if !strings.Contains(w.log.String(), "partitions were lost") || a.Stats().Failed > 0 {
		t.Errorf("%+v", a.Stats())
	}
}

func TestAStopDrainsCommitsAndLeaves(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "a:2", "b:1")
	open := make(gate)
	cfg := w.config(func(ctx context.Context, m inbox.Message) error { return open.wait(ctx) })
	cfg.Grace, cfg.RebalanceTimeout, cfg.Concurrency, cfg.CommitInterval = patience, 2*patience, 1, time.Hour
	a := w.start(cfg)
	w.sees("a:1")
	a.stop()
	w.eventually("A starts nothing new", func() bool { return a.closing() == 1 })
	close(open)
	if err := a.end(); err != nil {
		t.Error(err)
	}
	if seen := w.all(); len(seen) != 1 || w.committed(0) != 1 || len(w.members()) > 0 {
		t.Errorf("seen %q, committed %d, members %q", seen, w.committed(0), w.members())
	}
}

func TestAStopDoesNotWaitForeverAndCommitsNothingUnfinished(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "b:1")
	cfg := w.config(func(ctx context.Context, m inbox.Message) error {
		if string(m.Value) == "b:1" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	cfg.Grace = 100 * time.Millisecond
	a := w.start(cfg)
	w.sees("a:1", "b:1")
	if err := a.end(); err != nil {
		t.Error(err)
	}
	w.commits(0, 1)
}

// Commits fail while the brokers are away. Handled messages stay handled, and nothing counts as a
// failure of a message.
func outageOfBrokers(t *testing.T, k *testenv.KafkaCluster) {
	w := newWorld(t, k, 1)
	w.send(0, "a:1", "a:2")
	open := make(gate)
	cfg := w.config(func(ctx context.Context, m inbox.Message) error {
		if string(m.Value) == "a:2" {
			return open.wait(ctx)
		}
		return nil
	})
	cfg.Grace = time.Second
	m := w.start(cfg)
	w.sees("a:2")
	w.commits(0, 1)
	if err := k.Kill(); err != nil {
		t.Fatal(err)
	}
	close(open)
	w.eventually("a complaint", func() bool { return strings.Contains(w.log.String(), "a commit of offsets failed") })
	k.Start(t)
	w.send(0, "a:3")
	w.sees("a:3")
	w.commits(0, 3)
	if s := m.Stats(); s.Failed+s.Dead+s.Missed > 0 {
		t.Errorf("%+v", s)
	}
}

// A failure because Postgres is away does not count, however many connections of the pool break.
func TestAnOutageOfPostgresKillsNoMessage(t *testing.T) {
	pg := testenv.Postgres(t, "17", testenv.Private())
	dsn := pg.Database(t)
	pg.Exec(t, dsn, "CREATE TABLE effects (id text)")
	pool := newPool(t, dsn)
	w := newWorld(t, testenv.Kafka(t), 1)
	m := w.start(w.config(func(ctx context.Context, m inbox.Message) error { return effect(ctx, pool, m) }))
	for round := range 2 {
		var words []string
		for i := range 20 {
			words = append(words, fmt.Sprintf("k%d:%d", i, round))
		}
		w.send(0, words...)
		w.sees(words...)
		if round == 1 {
			break
		}
		w.commits(0, 20)
		if err := pg.Stop("immediate", patience); err != nil {
			t.Fatal(err)
		}
		w.send(0, "down:1")
		w.eventually("some attempts", func() bool { return m.Stats().Uncounted > 5 })
		pg.Start(t)
	}
	w.commits(0, 41)
	if s := m.Stats(); s.Failed+s.Dead > 0 || pg.Value(t, dsn, "SELECT count(*) FROM effects") != "41" {
		t.Errorf("%+v", s)
	}
}

func effect(ctx context.Context, pool *pgxpool.Pool, m inbox.Message) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", m.ID); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// Both tests need a cluster of their own.
func TestOfAPrivateCluster(t *testing.T) {
	k, asked := testenv.KafkaWithACLs(t, map[string]string{"shop": "secret"}, nil)
	t.Run("a missing right for the dead letter topic is waited for", func(t *testing.T) { missingRight(t, k, asked) })
	t.Run("an outage of the brokers is waited out", func(t *testing.T) { outageOfBrokers(t, k) })
	t.Run("a stop does not wait for brokers that hang", func(t *testing.T) { stopWithoutBrokers(t, k) })
}

// Every step of a stop has its own end: a handler that does not return, the commit, the leaving of the group, the closing of the
// client.
func stopWithoutBrokers(t *testing.T, k *testenv.KafkaCluster) {
	w := newWorld(t, k, 1)
	w.send(0, "a:1", "b:1")
	open := make(gate)
	cfg := w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" {
			<-open
		}
		return nil
	})
	cfg.Grace = 100 * time.Millisecond
	m := w.start(cfg)
	w.eventually("b:1 is handled", func() bool { return m.Stats().Handled == 1 })
	if err := k.Pause(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := m.end(); !errors.As(err, new(*consumer.UncommittedError)) {
		t.Errorf("Run returns %v", err)
	}
	t.Logf("the stop took %s", time.Since(begin).Round(time.Millisecond))
	close(open)
	if err := k.Resume(); err != nil {
		t.Error(err)
	}
}

func missingRight(t *testing.T, k *testenv.KafkaCluster, asked string) {
	w := newWorld(t, k, 1)
	adm := kadm.NewClient(w.cl)
	allow := func(b *kadm.ACLBuilder, ops ...kadm.ACLOperation) {
		t.Helper()
		if _, err := adm.CreateACLs(t.Context(), b.Allow("User:shop").ResourcePatternType(kadm.ACLPatternLiteral).Operations(ops...)); err != nil {
			t.Fatal(err)
		}
	}
	allow(kadm.NewACLs().Topics(w.topic), kadm.OpRead)
	allow(kadm.NewACLs().Groups(w.name), kadm.OpRead)
	w.send(0, "a:1", "b:1", "a:2")
	cfg := w.config(func(_ context.Context, m inbox.Message) error {
		if string(m.Value) == "a:1" {
			return errBroken
		}
		return nil
	})
	cfg.Brokers = []string{asked}
	cfg.ClientOptions = append(cfg.ClientOptions, kgo.SASL(plain.Auth{User: "shop", Pass: "secret"}.AsMechanism()))
	w.start(cfg)
	w.sees("b:1")
	w.eventually("a complaint", func() bool { return strings.Contains(w.log.String(), "TOPIC_AUTHORIZATION_FAILED") })
	if w.count("a:2") > 0 || w.committed(0) > 0 {
		t.Errorf("a:2 was handled %d times, offset %d is committed", w.count("a:2"), w.committed(0))
	}
	allow(kadm.NewACLs().Topics(w.dead), kadm.OpWrite, kadm.OpDescribe)
	w.letters(1)
	w.commits(0, 3)
}

// Retention that is shorter than an outage of the group loses messages. It is not silent.
func TestMessagesThatKafkaRemovedUnreadAreReported(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1")
	first := w.start(w.config(nil))
	w.commits(0, 1)
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	w.send(0, "a:2", "a:3", "a:4")
	var upTo kadm.Offsets
	upTo.Add(kadm.Offset{Topic: w.topic, Partition: 0, At: 3})
	if _, err := kadm.NewClient(w.cl).DeleteRecords(t.Context(), upTo); err != nil {
		t.Fatal(err)
	}
	m := w.start(w.config(nil))
	w.sees("a:4")
	if n := m.Stats().Missed; n != 2 || !strings.Contains(w.log.String(), "Kafka removed messages before this group read them") {
		t.Errorf("%d missed", n)
	}
}

func TestBrokersThatDoNotAnswerAreReported(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	cfg := w.config(nil)
	cfg.Brokers = []string{"127.0.0.1:1"}
	w.start(cfg)
	w.eventually("a complaint", func() bool { return strings.Contains(w.log.String(), "connection refused") })
}

// An answers counts the answers of the brokers to one kind of request, and to all kinds.
type answers struct {
	key    int16
	n, all atomic.Int64
}

func (a *answers) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err == nil && key == a.key {
		a.n.Add(1)
	}
	a.all.Add(1)
}

func TestAPatternWithoutATopicDoesNotAskForTheEndsOfAllTopics(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	ends := &answers{key: kmsg.ListOffsets.Int16()}
	cfg := w.config(nil)
	cfg.Topics = []string{"^" + w.topic + "-none$"}
	cfg.ClientOptions = append(cfg.ClientOptions, kgo.ConsumeRegex(), kgo.WithHooks(ends))
	w.start(cfg)
	w.eventually("an answer", func() bool { return ends.all.Load() > 2 })
	time.Sleep(time.Second)
	if n := ends.n.Load(); n != 0 {
		t.Errorf("asked %d times", n)
	}
}

func TestAWrongConfigurationIsRefused(t *testing.T) {
	_, err := consumer.New(consumer.Config{Topics: []string{"a"}, DeadLetterTopic: "a", Buffer: -1, Grace: -1, CommitInterval: -1, BackoffMin: time.Second, BackoffMax: time.Millisecond})
	for _, want := range []string{
		"consumer: Group: must be set", "Handler, BatchHandler: exactly one of them", "Buffer: must be at least 1 (got -1)",
		"Grace: must not be negative (got -1ns)", "BackoffMax: must be at least BackoffMin (got 1ms and 1s)",
		`DeadLetterTopic: must not be one of Topics (got "a")`, "Brokers: must have at least one address",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	// The group would throw a member out that is still waiting for its handlers.
	handler := func(context.Context, inbox.Message) error { return nil }
	cfg := consumer.Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"a"}, Handler: handler, Grace: 50 * time.Second}
	if _, err := consumer.New(cfg); err == nil || !strings.Contains(err.Error(), "Grace: must be at least 14s shorter than RebalanceTimeout (got 50s and 1m0s)") {
		t.Errorf("a long grace: %v", err)
	}
	cfg.RebalanceTimeout = 64 * time.Second
	if _, err := consumer.New(cfg); err != nil {
		t.Error(err)
	}
}

// Nil says that what was handled is committed, so a service can trust it.
func TestRunSaysThatHandledMessagesAreNotCommitted(t *testing.T) {
	for name, handler := range map[string]func(ctx context.Context, m inbox.Message) error{
		"an earlier message waits for its next attempt": func(_ context.Context, m inbox.Message) error {
			if string(m.Value) == "a:1" {
				return inbox.Retryable(errBroken)
			}
			return nil
		},
		"a handler does not return": func(_ context.Context, m inbox.Message) error {
			if string(m.Value) == "a:1" {
				select {}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testenv.Kafka(t), 1)
			w.send(0, "a:1", "b:1")
			cfg := w.config(handler)
			cfg.Grace = time.Millisecond
			m := w.start(cfg)
			w.sees("a:1", "b:1")
			w.eventually("b:1 is handled", func() bool { return m.Stats().Handled == 1 })
			var uncommitted *consumer.UncommittedError
			if err := m.end(); !errors.As(err, &uncommitted) || fmt.Sprint(uncommitted.Partitions) != fmt.Sprintf("map[%s:[0]]", w.topic) {
				t.Errorf("Run returns %v", err)
			}
		})
	}
}

// The bound holds for all partitions together.
func TestTheBufferBelongsToTheConsumer(t *testing.T) {
	const partitions, buffer = 8, 80
	w := newWorld(t, testenv.Kafka(t), partitions)
	for partition := range int32(partitions) {
		var words []string
		for i := range 60 {
			words = append(words, fmt.Sprintf("k%d:%d", i, partition))
		}
		w.send(partition, words...)
	}
	open := make(gate)
	cfg := w.config(func(ctx context.Context, _ inbox.Message) error { return open.wait(ctx) })
	cfg.Buffer = buffer
	m := w.start(cfg)
	buffered := func() (n, paused int) {
		for _, p := range m.Stats().Partitions {
			n += p.Buffered
			if p.Paused {
				paused++
			}
		}
		return n, paused
	}
	w.eventually("all partitions are paused", func() bool { _, paused := buffered(); return paused == partitions })
	if n, _ := buffered(); n > 2*buffer {
		t.Errorf("%d messages are buffered", n)
	}
	close(open)
	for partition := range int32(partitions) {
		w.commits(partition, 60)
	}
}
