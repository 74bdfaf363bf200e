//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// An env is the servers and the table of one run.
type env struct {
	dir   string // for configuration files
	dsn   string
	kafka *testenv.KafkaCluster
	host  *host
	extra string // sections of walpost.yaml
	// source has further keys of the section source, each after a comma.
	source string
	idle   bool
	named  int
}

const schema = `
CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb NOT NULL);
CREATE PUBLICATION bench FOR TABLE outbox WITH (publish = 'insert');
-- A row of about 300 bytes of jsonb, most of which do not compress. The payload carries the place in the order of writing.
CREATE PROCEDURE put(n bigint) LANGUAGE sql AS $$
 INSERT INTO outbox SELECT md5(n::text)::uuid, 'bench', 'key-' || n % 1000, 'Written', jsonb_build_object('seq', n,
  'pad', md5(n || 'a') || md5(n || 'b') || md5(n || 'c') || md5(n || 'd') || md5(n || 'e') || md5(n || 'f') || md5(n || 'g') || md5(n || 'h')) $$;
`

// start starts the servers. If testenv would skip a test, start returns an error.
func start(version string) (e *env, err error) {
	e = &env{host: &host{}}
	defer func() {
		if p := recover(); p != nil {
			if cause, ok := p.(error); !ok || !errors.Is(cause, errHost) {
				panic(p)
			}
			err = errors.Join(e.host.err, e.close())
		}
	}()
	// Only the readers should work during a measurement.
	pg := testenv.Postgres(e.host, version, testenv.Param("autovacuum", "off"), testenv.Param("max_wal_size", "16GB"),
		testenv.Param("checkpoint_timeout", "1h"), testenv.Param("shared_buffers", "512MB"))
	e.dsn = pg.Database(e.host)
	e.kafka = testenv.Kafka(e.host)
	ctx := context.Background()
	return e, e.sql(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, schema)
		return err
	})
}

func (e *env) close() error {
	e.host.cleanup()
	return errors.Join(e.host.err, testenv.Close())
}

// sql runs f with a connection.
func (e *env) sql(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, e.dsn)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	return f(c)
}

// unique makes a name for a slot, a topic and a checkpoint.
func (e *env) unique() string {
	e.named++
	return fmt.Sprintf("bench_%d_%d", os.Getpid(), e.named)
}

// slot makes a slot that begins at the present end of the WAL.
func (e *env) slot(ctx context.Context) (string, error) {
	name := e.unique()
	return name, e.sql(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", name)
		return err
	})
}

// drop drops a slot after its reader has released it.
func (e *env) drop(ctx context.Context, slot string) error {
	return e.sql(ctx, func(c *pgx.Conn) error {
		for {
			_, err := c.Exec(ctx, "SELECT pg_drop_replication_slot($1)", slot)
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "is active") {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// topic makes a topic for the rows of one reader, and returns its name and the prefix for route.topic.replacement.
func (e *env) topic() (name, prefix string) {
	prefix = e.unique() + "."
	name = prefix + "bench"
	e.kafka.CreateTopic(e.host, name, 4, nil)
	return name, prefix
}

// load is the load average of the last minute. If e.idle is set, it waits for an idle machine first.
func (e *env) load(ctx context.Context) (string, error) {
	for {
		b, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			return "", err
		}
		var now float64
		if _, err := fmt.Sscan(string(b), &now); err != nil {
			return "", err
		}
		if !e.idle || now < 0.5 {
			return fmt.Sprint(now), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// A host is the testing.TB that testenv needs, because this program is not a test.
type host struct {
	testing.TB // nil: testenv calls no other method
	err        error
	cleanups   []func()
}

var errHost = errors.New("testenv gave up")

func (h *host) Helper()          {}
func (h *host) Name() string     { return "bench" }
func (h *host) Failed() bool     { return h.err != nil }
func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

func (h *host) Context() context.Context { return context.Background() }

func (h *host) Error(args ...any) { h.err = errors.Join(h.err, errors.New(fmt.Sprint(args...))) }
func (h *host) Errorf(format string, args ...any) {
	h.err = errors.Join(h.err, fmt.Errorf(format, args...))
}
func (h *host) Fatal(args ...any)                 { h.Error(args...); panic(errHost) }
func (h *host) Fatalf(format string, args ...any) { h.Errorf(format, args...); panic(errHost) }
func (h *host) Skip(args ...any)                  { h.Fatal(args...) }
func (h *host) Skipf(format string, args ...any)  { h.Fatalf(format, args...) }
func (h *host) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (h *host) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (h *host) cleanup() {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	h.cleanups = nil
}
