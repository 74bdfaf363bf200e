//go:build linux || darwin

package walposttest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/inboxtest"
	"github.com/walpost/walpost/internal/testenv/short"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/walposttest"
)

func start(t testing.TB, o walposttest.Options) *walposttest.World {
	t.Helper()
	short.Skip(t, "Postgres")
	return o.Start(t)
}

// write writes events and commits.
func write(t testing.TB, dsn string, o *outbox.Outbox, events ...outbox.Event) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return o.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
}

func newOutbox(t testing.TB, opts outbox.Options) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A test is a testing.TB whose context can end, and that keeps the message of Fatal.
type test struct {
	testing.TB
	ctx     context.Context
	said    string
	cleanup []func()
}

func (t *test) Context() context.Context          { return t.ctx }
func (t *test) Cleanup(f func())                  { t.cleanup = append(t.cleanup, f) }
func (t *test) Fatal(args ...any)                 { t.said = fmt.Sprintln(args...); runtime.Goexit() }
func (t *test) Fatalf(format string, args ...any) { t.Fatal(fmt.Sprintf(format, args...)) }
func (t *test) Errorf(format string, args ...any) { t.said += fmt.Sprintf(format, args...) }

// run runs f as a test, and its cleanup. It returns what the test said when it failed, or "".
func run(t testing.TB, f func(t *test)) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fake := &test{TB: t, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(fake)
	}()
	<-done
	for i := range fake.cleanup {
		fake.cleanup[len(fake.cleanup)-1-i]()
	}
	return fake.said
}

// inboxtest says what a consumer gets, and here the relay says it.
func TestAMessageIsThatOfInboxtest(t *testing.T) {
	t.Parallel()
	w := start(t, walposttest.Options{})
	event := outbox.Event{
		ID: outbox.NewID(), AggregateType: "order", AggregateID: "4711", Type: "OrderPlaced", Payload: []byte(`{"id": 1}`),
		Headers: map[string]string{"tenant": "acme", "b": "2", "a": "1", "traceparent": "00"},
	}
	removed := event
	removed.ID, removed.Payload, removed.Headers = outbox.NewID(), outbox.Null, nil
	write(t, w.DSN, newOutbox(t, outbox.Options{}), event, removed)
	got := w.Events("outbox.event.order")
	if len(got) != 2 {
		t.Fatalf("%d messages", len(got))
	}
	for i, e := range []outbox.Event{event, removed} {
		want := inboxtest.Message(t, inboxtest.Event(e))
		want.Time, want.Offset, want.Group = got[i].Time, int64(i), "walposttest"
		if !reflect.DeepEqual(got[i], want) {
			t.Errorf("the relay delivers\n%+v, and inboxtest makes\n%+v", got[i], want)
		}
	}
}

func TestEventsHasEverythingThatIsCommitted(t *testing.T) {
	t.Parallel()
	w, other := start(t, walposttest.Options{}), start(t, walposttest.Options{})
	o := newOutbox(t, outbox.Options{})
	if got := w.Events("outbox.event.order"); len(got) != 0 {
		t.Errorf("before anything is written: %v", got)
	}
	n := 0
	for range 4 {
		var events []outbox.Event
		for range 100 {
			n++
			events = append(events, outbox.Event{AggregateType: "order", AggregateID: fmt.Sprint(n), Type: "t", Payload: outbox.Null})
		}
		write(t, w.DSN, o, events...)
		got := w.Events("outbox.event.order")
		if len(got) != n || string(got[n-1].Key) != fmt.Sprint(n) {
			t.Fatalf("%d events, want %d", len(got), n)
		}
	}
	if got := other.Events("outbox.event.order"); len(got) != 0 {
		t.Errorf("in another world: %d events", len(got))
	}
}

func TestTheTablesAreMadeIfTheyAreMissing(t *testing.T) {
	t.Parallel()
	up, _ := newOutbox(t, outbox.Options{Headers: []string{"tenant"}}).DDL()
	own := inbox.Version
	for name, o := range map[string]walposttest.Options{
		"neither":             {Version: "14"},
		"a table of a schema": {Schema: "CREATE SCHEMA shop", Outbox: outbox.Options{Table: "shop.outbox", Headers: []string{"tenant"}, Partitioned: true}},
		"by Schema":           {Schema: up, Outbox: outbox.Options{Headers: []string{"tenant"}}},
		"by Migrate": {Migrate: func(dsn string) error {
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(t.Context()))
			_, err = conn.Exec(t.Context(), up)
			return errors.Join(err, inbox.Pgx(conn).Migrate(t.Context()))
		}, Outbox: outbox.Options{Headers: []string{"tenant"}}},
		"bytes": {Outbox: outbox.Options{PayloadType: "bytea"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, o)
			payload := []byte(`{"a": 1}`)
			if o.Outbox.PayloadType == "bytea" {
				payload = []byte{0, 1, 0xff}
			}
			write(t, w.DSN, newOutbox(t, o.Outbox), outbox.Event{AggregateType: "order", AggregateID: "1", Type: "t", Payload: payload, Headers: map[string]string{"tenant": "acme"}})
			got := w.Events("outbox.event.order")
			if len(got) != 1 || string(got[0].Value) != string(payload) || got[0].Header("tenant") != "acme" || got[0].Type() != "t" {
				t.Errorf("%+v", got)
			}
			conn, err := pgx.Connect(t.Context(), w.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.WithoutCancel(t.Context()))
			var version int
			if err := conn.QueryRow(t.Context(), "SELECT version FROM inbox_retention").Scan(&version); err != nil || version != own {
				t.Errorf("inbox of version %d, %v", version, err)
			}
		})
	}
}

// Each World has a slot.
func TestTheServerHasSlotsForManyWorlds(t *testing.T) {
	t.Parallel()
	w := start(t, walposttest.Options{})
	conn, err := pgx.Connect(t.Context(), w.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	// Temporary: they end with the connection.
	if _, err := conn.Exec(t.Context(), "SELECT pg_create_physical_replication_slot('many_' || i, false, true) FROM generate_series(1, 150) i"); err != nil {
		t.Error(err)
	}
	var senders int
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('max_wal_senders')::int").Scan(&senders); err != nil || senders < 150 {
		t.Errorf("%d WAL senders, %v", senders, err)
	}
}

func TestTablesOfTheServiceStayAsTheyAre(t *testing.T) {
	t.Parallel()
	w := start(t, walposttest.Options{Schema: "CREATE TABLE inbox_processed (own text)"})
	if got := w.Events("outbox.event.order"); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestTheRelayHasTheConfigurationOfTheTest(t *testing.T) {
	t.Parallel()
	w := start(t, walposttest.Options{Relay: func(cfg *walpost.Config) { cfg.Router.TopicReplacement = "shop.${routedByValue}" }})
	write(t, w.DSN, newOutbox(t, outbox.Options{}), outbox.Event{AggregateType: "order", AggregateID: "1", Type: "t", Payload: 1})
	if got := w.Events("shop.order"); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// The service can write to the broker, too. Each transaction ends with a control record.
func TestEventsOfAProducerWithTransactions(t *testing.T) {
	t.Parallel()
	w := start(t, walposttest.Options{Topics: []string{"own"}})
	client, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.TransactionalID("own"), kgo.DefaultProduceTopic("own"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		err := client.BeginTransaction()
		if err == nil {
			err = client.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprint(bool(end)))).FirstErr()
		}
		if err := errors.Join(err, client.EndTransaction(t.Context(), end)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, m := range w.Events("own") {
		got = append(got, string(m.Value))
	}
	if fmt.Sprint(got) != "[true true]" {
		t.Errorf("%v", got)
	}
	// A consumer never gets the control record, and commits the offset before it.
	group, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("own"), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	for n := 0; n < 2; {
		n += group.PollFetches(t.Context()).NumRecords()
	}
	if err := group.CommitUncommittedOffsets(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Consumed("g", "own")
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	short.Skip(t, "Postgres")
	t.Parallel()
	event := outbox.Event{AggregateType: "order", AggregateID: "1", Type: "t", Payload: 1}
	for name, c := range map[string]struct {
		options walposttest.Options
		then    func(t *test, w *walposttest.World)
		want    string
	}{
		"version":  {walposttest.Options{Version: "9"}, nil, "walposttest: postgres 9: the version must be one of 14, 15"},
		"schema":   {walposttest.Options{Schema: "CREATE TABEL"}, nil, `walposttest: Options.Schema: ERROR: syntax error at or near "TABEL"`},
		"migrate":  {walposttest.Options{Migrate: func(string) error { return errors.New("no files") }}, nil, "walposttest: Options.Migrate: no files"},
		"outbox":   {walposttest.Options{Outbox: outbox.Options{PayloadType: "xml"}}, nil, "walposttest: outbox: Options.PayloadType"},
		"config":   {walposttest.Options{Relay: func(cfg *walpost.Config) { cfg.Router.EventID = "" }}, nil, "table.field.event.id"},
		"kind":     {walposttest.Options{Relay: func(cfg *walpost.Config) { cfg.Source.Kind = walpost.KindPoll }}, nil, "walposttest: source.kind is poll, and must be wal"},
		"no table": {walposttest.Options{Relay: func(cfg *walpost.Config) { cfg.Source.Table = "public.orders" }}, nil, "walposttest: the relay has ended: "},
		"a bad event": {walposttest.Options{}, func(t *test, w *walposttest.World) {
			o := newOutbox(t, outbox.Options{Topic: func(string) string { return "x" }})
			bad := event
			bad.AggregateType = "not a topic"
			write(t, w.DSN, o, bad)
			w.Events("outbox.event.order")
		}, "walposttest: the relay has ended: "},
		"a bad event that nobody waits for": {walposttest.Options{}, func(t *test, w *walposttest.World) {
			o := newOutbox(t, outbox.Options{Topic: func(string) string { return "x" }})
			good, bad := event, event
			bad.AggregateType = "not a topic"
			write(t, w.DSN, o, good)
			w.Events("outbox.event.order")
			write(t, w.DSN, o, bad)
			untilNoSlotIsActive(t, w.DSN)
		}, "walposttest: the relay: "},
		"a group that does not consume": {walposttest.Options{}, func(t *test, w *walposttest.World) {
			write(t, w.DSN, newOutbox(t, outbox.Options{}), event, event)
			ask(t, w, "dead")
			w.Events("outbox.event.order") // waits until they are delivered
			ctx, cancel := context.WithTimeout(t.ctx, time.Second)
			defer cancel()
			t.ctx = ctx
			w.Consumed("payments", "outbox.event.order")
		}, "walposttest: the group payments with 0 members has not consumed everything: outbox.event.order/0 at 0 of 2; " +
			"a client asks for topics that do not exist: list dead in Options.Topics\n"},
		"no topic": {walposttest.Options{}, func(t *test, w *walposttest.World) { w.Consumed("payments") }, "walposttest: Consumed: no topics"},
		"a topic that does not exist": {walposttest.Options{Topics: []string{"a"}}, func(t *test, w *walposttest.World) {
			w.Consumed("payments", "a", "typo")
		}, "walposttest: Consumed: there is no topic typo: no event went to it, and Options.Topics does not list it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := run(t, func(t *test) {
				w := start(t, c.options)
				if c.then != nil {
					c.then(t, w)
				}
			})
			if !strings.Contains(said, c.want) {
				t.Errorf("%q, want %q", said, c.want)
			}
		})
	}
}

// ask asks the broker for a topic, as a consumer does for its dead letter topic.
func ask(t testing.TB, w *walposttest.World, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic}).FirstErr(); err == nil {
		t.Fatalf("the topic %s exists", topic)
	}
}

// untilNoSlotIsActive returns when the relay of a database has ended.
func untilNoSlotIsActive(t testing.TB, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for active := true; active; time.Sleep(5 * time.Millisecond) {
		if err := conn.QueryRow(t.Context(), "SELECT bool_or(active) FROM pg_replication_slots WHERE database = current_database()").Scan(&active); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConsumedWaitsForTheCommitOfTheGroup(t *testing.T) {
	t.Parallel()
	w := start(t, walposttest.Options{Topics: []string{"outbox.event.order"}})
	client, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("outbox.event.order"), kgo.DisableAutoCommit())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	write(t, w.DSN, newOutbox(t, outbox.Options{}), outbox.Event{AggregateType: "order", AggregateID: "1", Type: "t", Payload: 1})
	committed := make(chan error, 1)
	go func() {
		records := client.PollFetches(t.Context()).Records()
		time.Sleep(300 * time.Millisecond) // a chance for Consumed that does not wait
		committed <- client.CommitRecords(t.Context(), records...)
	}()
	w.Consumed("g", "outbox.event.order")
	select {
	case err := <-committed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(100 * time.Millisecond): // the answer to the commit may be on its way
		t.Error("the group has committed nothing")
	}
}

func TestNothingIsLeftOfAWorld(t *testing.T) {
	t.Parallel()
	keep := start(t, walposttest.Options{}) // of the same server
	var dsn string
	var brokers []string
	if said := run(t, func(t *test) {
		w := start(t, walposttest.Options{})
		dsn, brokers = w.DSN, w.Brokers
	}); said != "" {
		t.Fatal(said)
	}
	if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
		conn.Close(t.Context())
		t.Errorf("%s is still there", dsn)
	}
	if conn, err := net.Dial("tcp", brokers[0]); err == nil {
		conn.Close()
		t.Errorf("the broker %s is still there", brokers[0])
	}
	conn, err := pgx.Connect(t.Context(), keep.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	database := dsn[strings.LastIndex(dsn, "/")+1 : strings.Index(dsn, "?")]
	var slots int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 OR database = $1", database).Scan(&slots); err != nil || slots != 0 {
		t.Errorf("%d slots of %s, %v", slots, database, err)
	}
}

const programEnv = "WALPOSTTEST_PROGRAM"

// TestProgram is the program of the next test.
func TestProgram(t *testing.T) {
	how := os.Getenv(programEnv)
	if how == "" {
		t.Skip("the next test runs it")
	}
	w := start(t, walposttest.Options{})
	fmt.Println("dsn", w.DSN)
	switch how {
	case "exit":
		os.Exit(0)
	case "panic":
		panic("on purpose")
	case "killed":
		select {}
	}
}

// No TestMain stops the server.
func TestTheServerEndsWithTheBinary(t *testing.T) {
	short.Skip(t, "Postgres")
	t.Parallel()
	for _, how := range []string{"passes", "exit", "panic", "killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			if err := os.Chmod(filepath.Dir(folder), 0o755); err != nil { // the server's user enters it
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestProgram$")
			cmd.Env = append(os.Environ(), programEnv+"="+how, "TMPDIR="+folder)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var address string
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if m := regexp.MustCompile(`^dsn .*@([^/]*)/`).FindStringSubmatch(lines.Text()); m != nil {
					address = m[1]
					if how == "killed" {
						if err := cmd.Process.Kill(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			_ = cmd.Wait()
			if address == "" {
				t.Fatal("the program has printed no DSN")
			}
			// The guard ends a moment after the program.
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				conn, err := net.Dial("tcp", address)
				if err == nil {
					conn.Close()
				}
				left, _ := filepath.Glob(filepath.Join(folder, "walpost-pg-*"))
				if err != nil && len(left) == 0 {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("the server at %s is left, with %v", address, left)
				}
			}
		})
	}
}
