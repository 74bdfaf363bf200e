package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/librarytest/process"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) {
	process.Run(func(ctx context.Context, cfg delivererConfig) error { return cfg.run(ctx) })
	os.Exit(testenv.Main(m))
}

var ddl, _ = inbox.Schema("").DDL(0)

// A place is a database with the tables of the package and a table for effects.
type place struct {
	*testing.T
	dsn  string
	pool *pgxpool.Pool
}

func newPlace(t *testing.T, version string) *place {
	t.Helper()
	pg := testenv.Postgres(t, version)
	dsn := pg.Database(t)
	pg.Exec(t, dsn, ddl, "CREATE TABLE effects (n bigserial, id text, consumer text, note text)")
	p := &place{T: t, dsn: dsn}
	p.pool = open(t, dsn, 40)
	return p
}

func open(t testing.TB, dsn string, conns int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (p *place) openSQL(driver string) *sql.DB {
	p.Helper()
	db, err := sql.Open(driver, p.dsn)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = db.Close() })
	return db
}

func (p *place) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.pool.Exec(p.Context(), sql, args...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

// value returns the one value of a query, as text.
func (p *place) value(sql string, args ...any) string {
	p.Helper()
	var v any
	if err := p.pool.QueryRow(p.Context(), sql, args...).Scan(&v); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
	return fmt.Sprint(v)
}

func (p *place) expect(want, sql string, args ...any) {
	p.Helper()
	if got := p.value(sql, args...); got != want {
		p.Errorf("%s gives %s, want %s", sql, got, want)
	}
}

// begin opens a transaction, and rolls it back at the end of the test.
func (p *place) begin(level pgx.TxIsoLevel) pgx.Tx {
	p.Helper()
	tx, err := p.pool.BeginTx(p.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// untilBlocked waits until so many sessions of the database wait for a lock.
func (p *place) untilBlocked(n int) {
	p.Helper()
	p.until(fmt.Sprintf("%d sessions wait for a lock", n), func() bool {
		return p.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == fmt.Sprint(n)
	})
}

func (p *place) until(what string, ok func() bool) {
	p.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.Fatalf("it does not happen: %s", what)
		}
	}
}

func effect(ctx context.Context, tx pgx.Tx, id, note string) error {
	_, err := tx.Exec(ctx, "INSERT INTO effects (id, note) VALUES ($1, $2)", id, note)
	return err
}

// event is a message of the topic t.
func event(id string) inbox.Message { return inbox.Message{ID: id, Topic: "t"} }

// sqlState is the code of an error of Postgres, or "".
func sqlState(err error) string {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}

// isEnded reports that a handler ended its transaction.
func isEnded(err error) bool {
	return err != nil && strings.Contains(err.Error(), "the handler ends its transaction")
}

// handleMessages runs a worker until its handler has been called n times.
func handleMessages[T any](t testing.TB, w inbox.Worker[T], n int) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	inner := w.Handler
	w.Poll, w.Concurrency = time.Millisecond, 1
	w.Handler = func(ctx context.Context, tx T, m inbox.Message) error {
		if n--; n == 0 {
			stop()
		}
		return inner(ctx, tx, m)
	}
	if err := w.Run(ctx); err != nil || n != 0 {
		t.Fatalf("%d messages are missing: %v", n, err)
	}
}

// handleBatch gives the messages to a BatchHandler of the group, and returns those that the handler got.
func handleBatch[T any](ctx context.Context, db *inbox.DB[T], group string, msgs ...inbox.Message) (fresh []inbox.Message, err error) {
	for i := range msgs {
		msgs[i].Group = group
	}
	err = inbox.BatchHandler(db, func(_ context.Context, _ T, got []inbox.Message) error { fresh = got; return nil })(ctx, msgs)
	return fresh, err
}

// turn ends the current generation. The others ended two hours earlier than before.
func (p *place) turn() inbox.Retained {
	p.Helper()
	p.exec(`UPDATE inbox_generations SET started_at = started_at - interval '100 days', ended_at = ended_at - interval '2 hours'
		WHERE started_at > '-infinity'`)
	done, err := inbox.Pgx(p.pool).Retain(p.Context(), inbox.Retention{Keep: 7 * time.Hour})
	if err != nil || done.Began == 0 {
		p.Fatalf("Retain did %+v, %v", done, err)
	}
	return done
}

// moreGenerations adds generations, so that more of them can begin before the first one expires.
func (p *place) moreGenerations(n int) {
	p.Helper()
	p.exec(fmt.Sprintf(`DO $$ BEGIN FOR n IN 7 .. %d LOOP
		EXECUTE format('CREATE TABLE inbox_processed_%%s PARTITION OF inbox_processed FOR VALUES IN (%%1$s)', n);
		INSERT INTO inbox_generations VALUES (n, '-infinity', '-infinity');
	END LOOP; END $$`, 6+n))
}
