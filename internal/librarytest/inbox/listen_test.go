package inbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

const listens, polls = "the worker listens", "the worker only polls"

// A journal is a log in memory.
type journal struct{ testenv.Output }

func (j *journal) count(text string) int { return strings.Count(j.String(), text) }

func awaits(t *testing.T, j *journal, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("it does not happen: %s\n%s", what, j)
		}
	}
}

// start runs a worker of the consumer c until the test ends.
func start[T any](t *testing.T, w *inbox.Worker[T]) *journal {
	t.Helper()
	j := &journal{}
	w.Consumer, w.Logger = "c", slog.New(slog.NewTextHandler(j, nil))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("Run does not return")
		}
	})
	return j
}

// counting counts the calls of a handler.
func counting[T any](n *atomic.Int64) inbox.HandlerFunc[T] {
	return func(context.Context, T, inbox.Message) error { n.Add(1); return nil }
}

// Store wakes the worker, which polls once an hour, also after its connection was lost.
func TestStoreWakesAWorker(t *testing.T) {
	b := newHome(t, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} // the service's own
	})
	db := inbox.Pgx(b.pool)
	var handled atomic.Int64
	j := start(t, &inbox.Worker[pgx.Tx]{DB: db, Poll: time.Hour, Handler: counting[pgx.Tx](&handled)})
	sent := 0
	store := func(n int) {
		t.Helper()
		var msgs []inbox.Message
		for range n {
			sent++
			msgs = append(msgs, inbox.Message{ID: fmt.Sprint(sent), Topic: "t"})
		}
		if _, err := db.Store(t.Context(), "c", msgs...); err != nil {
			t.Fatal(err)
		}
		awaits(t, j, fmt.Sprintf("%d messages are handled", sent), func() bool { return handled.Load() == int64(sent) })
	}
	for round := 1; round <= 2; round++ {
		awaits(t, j, "the worker listens", func() bool { return j.count(listens) == round })
		store(1)
		store(50)
		b.pg.Exec(t, b.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	awaits(t, j, "the worker listens", func() bool { return j.count(listens) == 3 })
	if n := j.count(polls); n != 2 {
		t.Errorf("the log has %d times that the worker only polls:\n%s", n, j)
	}
}

// What a worker cannot be told by a notification, it does at its time: the next attempt, and what was
// stored before it listened. All of it needs no Poll.
func TestAWorkerWithoutPollMakesItsNextAttempts(t *testing.T) {
	b := newHome(t)
	db := inbox.Pgx(b.pool)
	if _, err := db.Store(t.Context(), "c", inbox.Message{ID: "1", Topic: "t"}, inbox.Message{ID: "2", Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int64
	j := start(t, &inbox.Worker[pgx.Tx]{
		DB: db, Poll: time.Hour, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond, Concurrency: 1,
		Handler: func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
			if m.Attempt < 5 {
				return errNo
			}
			handled.Add(1)
			return nil
		},
	})
	awaits(t, j, "both are handled", func() bool { return handled.Load() == 2 })
}

// Several goroutines work at the same time, although one notification woke one of them.
func TestOneNotificationWakesAllThatIsNeeded(t *testing.T) {
	b := newHome(t, func(c *pgxpool.Config) { c.MaxConns = 10 })
	db := inbox.Pgx(b.pool)
	var inWork atomic.Int64
	all := make(chan struct{})
	j := start(t, &inbox.Worker[pgx.Tx]{DB: db, Poll: time.Hour, Concurrency: 5, Handler: func(ctx context.Context, _ pgx.Tx, _ inbox.Message) error {
		inWork.Add(1)
		select {
		case <-all:
		case <-ctx.Done():
		}
		return ctx.Err()
	}})
	awaits(t, j, "the worker listens", func() bool { return j.count(listens) == 1 })
	var msgs []inbox.Message
	for i := range 5 {
		msgs = append(msgs, inbox.Message{ID: fmt.Sprint(i), Topic: "t"})
	}
	if _, err := db.Store(t.Context(), "c", msgs...); err != nil {
		t.Fatal(err)
	}
	awaits(t, j, "5 handlers run", func() bool { return inWork.Load() == 5 })
	close(all)
}

// A late is a connection whose LISTEN waits.
type late struct {
	net.Conn
	stored <-chan struct{}
}

func (l *late) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("LISTEN inbox_messages")) {
		<-l.stored
	}
	return l.Conn.Write(p)
}

// looks counts the queries for a message that have ended.
type looks struct{ n atomic.Int64 }

func (l *looks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, l, strings.Contains(q.SQL, "WITH RECURSIVE heads"))
}

func (l *looks) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(l) == true {
		l.n.Add(1)
	}
}

// Nothing notifies of a message that is stored after the first look and before the worker listens.
func TestAWorkerThatBeginsToListenLooksOnce(t *testing.T) {
	stored := make(chan struct{})
	var l looks
	b := newHome(t, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = &l
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &late{conn, stored}, err
		}
	})
	db := inbox.Pgx(b.pool)
	var handled atomic.Int64
	j := start(t, &inbox.Worker[pgx.Tx]{DB: db, Poll: time.Hour, Concurrency: 1, Handler: counting[pgx.Tx](&handled)})
	awaits(t, j, "the worker looks", func() bool { return l.n.Load() == 1 })
	_, err := db.Store(t.Context(), "c", inbox.Message{ID: "1", Topic: "t"})
	close(stored)
	if err != nil {
		t.Fatal(err)
	}
	awaits(t, j, "the message is handled", func() bool { return handled.Load() == 1 })
}

// A deaf is a connection through which no notification comes.
type deaf struct {
	net.Conn
	rest []byte // of a message that goes through
}

func (d *deaf) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		head := make([]byte, 5)
		if _, err := io.ReadFull(d.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(d.Conn, body); err != nil {
			return 0, err
		}
		if head[0] != 'A' { // NotificationResponse
			d.rest = append(head, body...)
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// A pooled is a connection that shares a session of the server with others, as far as it can see.
type pooled struct {
	net.Conn
	listens *atomic.Bool
}

func (c *pooled) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("LISTEN inbox_messages")) {
		c.listens.Store(true)
	}
	return c.Conn.Write(bytes.ReplaceAll(p, []byte("pg_backend_pid()"), []byte("(40 + 2)::bigint")))
}

func TestAWorkerPollsWhereNoNotificationsArrive(t *testing.T) {
	var listened atomic.Bool
	for why, wrap := range map[string]func(net.Conn) net.Conn{
		"no notification arrives within 5s": func(c net.Conn) net.Conn { return &deaf{Conn: c} },
		"a pooler, such as PgBouncer":       func(c net.Conn) net.Conn { return &pooled{c, &listened} },
	} {
		b := newHome(t, func(c *pgxpool.Config) {
			c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				return wrap(conn), err
			}
		})
		db := inbox.Pgx(b.pool)
		var handled atomic.Int64
		j := start(t, &inbox.Worker[pgx.Tx]{DB: db, Poll: 20 * time.Millisecond, Handler: counting[pgx.Tx](&handled)})
		awaits(t, j, "the worker only polls", func() bool { return j.count(polls) == 1 })
		if _, err := db.Store(t.Context(), "c", inbox.Message{ID: "1", Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		awaits(t, j, "the message is handled", func() bool { return handled.Load() == 1 })
		if j.count(listens) != 0 || j.count(why) != 1 {
			t.Errorf("log:\n%s", j)
		}
	}
	if listened.Load() {
		t.Error("a pooler was told to LISTEN, and would log each notification")
	}
}

// A mortal is a connection that nothing comes from once its host is gone.
type mortal struct {
	net.Conn
	*hosts
}

type hosts struct{ listener, gone atomic.Pointer[mortal] }

func (m *mortal) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("LISTEN inbox_messages")) {
		m.listener.Store(m)
	}
	return m.Conn.Write(p)
}

func (m *mortal) Read(p []byte) (int, error) {
	for {
		n, err := m.Conn.Read(p)
		if err != nil || m.gone.Load() != m {
			return n, err
		}
	}
}

// The listener finds out that its silent connection is dead, and makes another one.
func TestAWorkerReplacesADeadConnection(t *testing.T) {
	var h hosts
	b := newHome(t, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &mortal{conn, &h}, err
		}
	})
	j := start(t, &inbox.Worker[pgx.Tx]{DB: inbox.Pgx(b.pool), Poll: 5 * time.Millisecond, Handler: insert})
	awaits(t, j, "the worker listens", func() bool { return j.count(listens) == 1 })
	h.gone.Store(h.listener.Load())
	awaits(t, j, "the worker listens again", func() bool { return j.count(polls) == 1 && j.count(listens) == 2 })
}

// A worker that cannot connect tries again, and its log has the fault once.
func TestAWorkerLogsOnceThatItOnlyPolls(t *testing.T) {
	var dialed atomic.Int64
	b := newHome(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if dialed.Add(1) > 1 {
				return nil, errNo
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	})
	if err := b.pool.Ping(t.Context()); err != nil { // the pool has its connection
		t.Fatal(err)
	}
	var handled atomic.Int64
	j := start(t, &inbox.Worker[pgx.Tx]{DB: inbox.Pgx(b.pool), Poll: 20 * time.Millisecond, Handler: counting[pgx.Tx](&handled)})
	awaits(t, j, "it tries three times", func() bool { return dialed.Load() > 3 })
	if j.count(polls) != 1 || j.count(errNo.Error()) != 1 {
		t.Errorf("log:\n%s", j)
	}
}

// The pool's password is a token, which expires once a connection has been made with it.
func TestAWorkerListensWithAFreshPassword(t *testing.T) {
	var tokens atomic.Int64
	var spent sync.Map
	b := newHome(t, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			token := fmt.Sprint("token ", tokens.Add(1))
			c.RuntimeParams["application_name"] = token
			c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				if _, is := spent.Load(token); is {
					return nil, errNo
				}
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			return nil
		}
		c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			spent.Store(conn.Config().RuntimeParams["application_name"], true)
			return nil
		}
	})
	j := start(t, &inbox.Worker[pgx.Tx]{DB: inbox.Pgx(b.pool), Poll: time.Hour, Handler: insert})
	awaits(t, j, "the worker listens", func() bool { return j.count(listens) == 1 })
	if j.count(polls) != 0 {
		t.Errorf("log:\n%s", j)
	}
}

// A retry does not wait for the next Poll.
func TestARetryWakesAWorker(t *testing.T) {
	b := newHome(t)
	db := inbox.Pgx(b.pool)
	var bad atomic.Bool
	var handled, dead atomic.Int64
	j := start(t, &inbox.Worker[pgx.Tx]{
		DB: db, Poll: time.Hour, Attempts: 1,
		Handler: func(context.Context, pgx.Tx, inbox.Message) error {
			if bad.Load() {
				return errNo
			}
			handled.Add(1)
			return nil
		},
		Failed: func(f inbox.Failure) { dead.Add(1) },
	})
	awaits(t, j, "the worker listens", func() bool { return j.count(listens) == 1 })
	for i, retry := range []func() (int64, error){
		func() (int64, error) { return db.RetryDead(t.Context(), "c", "t", "0") },
		func() (int64, error) { return db.RetryAllDead(t.Context(), "c") },
	} {
		bad.Store(true)
		if _, err := db.Store(t.Context(), "c", inbox.Message{ID: fmt.Sprint(i), Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		awaits(t, j, "the message is dead", func() bool { return dead.Load() == int64(i+1) })
		bad.Store(false)
		if n, err := retry(); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		awaits(t, j, "it is handled", func() bool { return handled.Load() == int64(i+1) })
	}
}

// These mean that no look is wanted, except after a notification.
func TestAPollOfCenturiesIsAllowed(t *testing.T) {
	for _, poll := range []time.Duration{math.MaxInt64, 1 << 62, math.MaxInt64 / 60} {
		b := newHome(t)
		db := inbox.Pgx(b.pool)
		var handled atomic.Int64
		j := start(t, &inbox.Worker[pgx.Tx]{DB: db, Poll: poll, Handler: counting[pgx.Tx](&handled)})
		awaits(t, j, "the worker listens", func() bool { return j.count(listens) == 1 })
		if _, err := db.Store(t.Context(), "c", inbox.Message{ID: "1", Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		awaits(t, j, "the message is handled", func() bool { return handled.Load() == 1 })
	}
}

// database/sql can listen with the driver of pgx. With another driver the worker polls.
func TestAWorkerOfDatabaseSQLListensIfItsDriverCan(t *testing.T) {
	for driver, c := range map[string]struct {
		poll time.Duration
		logs string
	}{"pgx": {time.Hour, listens}, "postgres": {20 * time.Millisecond, polls}} {
		b := newHome(t)
		plain, err := sql.Open(driver, b.dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = plain.Close() })
		plain.SetMaxOpenConns(1) // listening takes none of the pool
		db := inbox.SQL(plain)
		var handled atomic.Int64
		j := start(t, &inbox.Worker[*sql.Tx]{DB: db, Poll: c.poll, Handler: counting[*sql.Tx](&handled)})
		awaits(t, j, c.logs, func() bool { return j.count(c.logs) == 1 })
		if _, err := db.Store(t.Context(), "c", inbox.Message{ID: "1", Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		awaits(t, j, "the message is handled", func() bool { return handled.Load() == 1 })
		if n := j.count("level="); n != 1 {
			t.Errorf("%s: log:\n%s", driver, j)
		}
	}
}

func TestAWorkerRefusesWhatItCannotDo(t *testing.T) {
	err := (&inbox.Worker[pgx.Tx]{Attempts: -2, Concurrency: -1, Poll: -1, BackoffMin: 2, BackoffMax: 1}).Run(t.Context())
	for _, want := range []string{
		"DB: must be set", "Handler: must be set", "Attempts: must not be negative, except for Unlimited (got -2)",
		"Concurrency: must not be negative (got -1)", "Poll: must not be negative (got -1ns)",
		"BackoffMax: must be at least BackoffMin (got 1ns and 2ns)", `"" cannot be the name of a consumer`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
