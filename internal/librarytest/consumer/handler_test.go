//go:build linux || darwin

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/testenv"
)

// A failures notes what Config.Failed is told.
type failures struct {
	mu  sync.Mutex
	all []string
}

func (f *failures) note(x inbox.Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf("%s %d of %d %t %t", x.Message.Value, x.Attempt, x.Message.Attempt, x.Dead, x.Pause > 0))
}

func (f *failures) expect(t *testing.T, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Sort(f.all); !slices.Equal(f.all, want) {
		t.Errorf("Failed was told %q, want %q", f.all, want)
	}
}

// Each event of a known type has one effect in the name of the group. Failures of the handler keep
// their meaning on the way through the inbox, and the handler knows the number of its attempt.
func TestAHandlerOfTheInboxHasOneEffectForEachEvent(t *testing.T) {
	pg := testenv.Postgres(t, "17")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, ddl, "CREATE TABLE effects (value text, attempt int)")
	w := newWorld(t, testenv.Kafka(t), 1)
	send := func(value, kind string) {
		key, _, _ := strings.Cut(value, ":")
		w.produce(&kgo.Record{Key: []byte(key), Value: []byte(value), Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(value)}, {Key: "eventType", Value: []byte("older")}, {Key: "eventType", Value: []byte(kind)},
		}})
	}
	send("a:1", "good")
	send("b:1", "slow")
	send("c:1", "away")
	send("d:1", "unknown")
	send("d:2", "bad")
	send("a:1", "good")
	insert := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1, $2)", string(m.Value), m.Attempt)
		return err
	}
	var calls sync.Map
	failing := func(times int, err error) inbox.HandlerFunc[pgx.Tx] {
		return func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if failed := insert(ctx, tx, m); failed != nil {
				return failed
			}
			n, _ := calls.LoadOrStore(m.ID, new(int))
			if *n.(*int)++; *n.(*int) <= times {
				return err
			}
			return nil
		}
	}
	var failed failures
	cfg := w.config(nil)
	cfg.Failed = failed.note
	cfg.Handler = inbox.Handler(inbox.Pgx(newPool(t, dsn)), inbox.ByType(map[string]inbox.HandlerFunc[pgx.Tx]{
		"good": insert, "slow": failing(2, errBroken), "away": failing(2, inbox.Retryable(errBroken)), "bad": failing(3, errBroken),
	}, nil))
	m := w.start(cfg)
	letters := w.letters(2)
	w.commits(0, 6)
	if err := m.end(); err != nil {
		t.Error(err)
	}
	if got := header(letters[0], "walpost.dead.reason") + ": " + header(letters[0], "walpost.dead.error"); got != `permanent: no function handles events of the type "unknown"` {
		t.Errorf("the dead letter of an unknown type has %s", got)
	}
	if got := header(letters[1], "walpost.dead.reason") + " " + header(letters[1], "walpost.dead.attempts"); got != "attempts 3" {
		t.Errorf("the dead letter of a bad event has %s", got)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(value || ' ' || attempt, ',' ORDER BY value) FROM effects"); got != "a:1 1,b:1 3,c:1 1" {
		t.Errorf("effects: %s", got)
	}
	if got := pg.Value(t, dsn, "SELECT string_agg(event_id, ',' ORDER BY event_id) FROM inbox_processed WHERE consumer = '"+w.name+"'"); got != "a:1,b:1,c:1" {
		t.Errorf("marks: %s", got)
	}
	failed.expect(t, "b:1 1 of 1 false true", "b:1 2 of 2 false true", "c:1 0 of 1 false true", "c:1 0 of 1 false true",
		"d:1 1 of 1 true false", "d:2 1 of 1 false true", "d:2 2 of 2 false true", "d:2 3 of 3 true false")
}

// With Unlimited, no number of failures makes a dead letter.
func TestAttemptsCanBeUnlimited(t *testing.T) {
	w := newWorld(t, testenv.Kafka(t), 1)
	w.send(0, "a:1", "b:1")
	cfg := w.config(func(_ context.Context, m inbox.Message) error {
		switch {
		case m.ID == "b:1":
			return inbox.Permanent(errBroken)
		case m.Attempt < 12:
			return errBroken
		}
		return nil
	})
	cfg.Attempts = inbox.Unlimited
	cfg.BackoffMax = cfg.BackoffMin
	m := w.start(cfg)
	w.commits(0, 2)
	if s := m.Stats(); s.Dead != 1 || s.Failed != 12 || w.count("a:1") != 12 {
		t.Errorf("%+v", s)
	}
	cfg.Attempts = -2
	if _, err := consumer.New(cfg); err == nil || !strings.Contains(err.Error(), "Attempts: must be at least 1, or inbox.Unlimited (got -2)") {
		t.Error(err)
	}
}

// A spanner sets the context of each record, as the hook of a tracer does.
type spanner struct{}

type contextKey string

func (spanner) OnFetchRecordBuffered(rec *kgo.Record) {
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), contextKey("span"), "span of "+string(rec.Value)))
	cancel(errBroken) // the end of the record's context is not the handler's
	rec.Context = ctx
}

// The ctx of a handler has the values of the record's context before those of Run's ctx, and the
// deadline and the end that the consumer gives it.
func TestAHandlerHasTheContextOfItsRecord(t *testing.T) {
	for _, batch := range []bool{false, true} {
		w := newWorld(t, testenv.Kafka(t), 1)
		w.send(0, "a:1", "b:1")
		var mu sync.Mutex
		var got []string
		hold := make(gate)
		note := func(ctx context.Context, n int) error {
			_, limited := ctx.Deadline()
			mu.Lock()
			got = append(got, fmt.Sprintln(n, ctx.Value(contextKey("span")), ctx.Value(contextKey("run")), limited, ctx.Err(), context.Cause(ctx)))
			mu.Unlock()
			derived, cancel := context.WithCancel(ctx)
			defer cancel()
			err := hold.wait(derived)
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				t.Errorf("the ctx ended because of %v", cause)
			}
			return err
		}
		cfg := w.config(func(ctx context.Context, _ inbox.Message) error { return note(ctx, 1) })
		if batch {
			cfg.Handler, cfg.BatchHandler = nil, func(ctx context.Context, b []inbox.Message) error { return note(ctx, len(b)) }
		}
		cfg.ClientOptions = append(cfg.ClientOptions, kgo.WithHooks(spanner{}))
		cfg.Grace = 10 * time.Millisecond
		c, err := consumer.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.WithValue(t.Context(), contextKey("run"), "run"))
		ctx = context.WithValue(ctx, contextKey("span"), "span of the program")
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		want := []string{"1 span of a:1 run true <nil> <nil>\n", "1 span of b:1 run true <nil> <nil>\n"}
		if batch {
			want = []string{"2 span of the program run true <nil> <nil>\n"}
		}
		w.eventually("the handlers run", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == len(want) })
		stop()
		select {
		case err := <-done: // the ctx of the handlers has ended, or this would take longer
			if errors.As(err, new(*consumer.UncommittedError)) {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("Run does not return")
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
