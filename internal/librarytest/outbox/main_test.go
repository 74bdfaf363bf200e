package outbox_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

func TestMain(m *testing.M) {
	// Each run asks the same questions. -rapid.seed=0 asks others.
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(testenv.Main(m))
}

// database makes a database with the table of an outbox, and returns its DSN.
func database(t testing.TB, o *outbox.Outbox) (pg *testenv.PG, dsn string) {
	t.Helper()
	pg = testenv.Postgres(t, "")
	dsn = pg.Database(t)
	up, _ := o.DDL()
	pg.Exec(t, dsn, up)
	return pg, dsn
}

// standard is the table that walpost setup makes.
var standard, _ = outbox.New(outbox.Options{})

// fatal is a testing.TB or a *rapid.T.
type fatal interface {
	Context() context.Context
	Fatalf(format string, args ...any)
	Helper()
}

// A recorder is a transaction without a server.
type recorder struct {
	args []any // of the last statement that has some
}

func (r *recorder) Exec(_ context.Context, _ string, args ...any) (pgconn.CommandTag, error) {
	if len(args) > 0 {
		r.args = args
	}
	return pgconn.CommandTag{}, nil
}

// element returns the element of the array with one element that an argument is the text of, or nil for NULL.
func (r *recorder) element(t fatal, arg int) []byte {
	text, _ := r.args[arg].(string)
	if text == "{NULL}" {
		return nil
	}
	value, begins := strings.CutPrefix(text, `{"`)
	value, ends := strings.CutSuffix(value, `"}`)
	if !begins || !ends {
		t.Fatalf("argument %d is %q", arg, text)
	}
	return []byte(regexp.MustCompile(`(?s)\\(.)`).ReplaceAllString(value, "$1"))
}

// payload is what o would write of a payload.
func payload(t fatal, o *outbox.Outbox, v any) ([]byte, error) {
	t.Helper()
	var tx recorder
	if err := o.Write(t.Context(), &tx, outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t", Payload: v}); err != nil {
		return nil, err
	}
	return tx.element(t, 4), nil
}

func open(t testing.TB, opts outbox.Options) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A handle is a transaction of one of the libraries, with what its user does with it.
type handle struct {
	tx       any
	exec     func(sql string) error
	execute  func(ctx context.Context, sql string, args ...any) error
	commit   func() error
	rollback func() error
}

// handles open a transaction, each by another library, driver or protocol.
var handles = map[string]func(t testing.TB, dsn string) handle{
	"pgx":                 func(t testing.TB, dsn string) handle { return beginPGX(t, dsn, "") },
	"pgx exec":            func(t testing.TB, dsn string) handle { return beginPGX(t, dsn, "exec") },
	"pgx simple protocol": func(t testing.TB, dsn string) handle { return beginPGX(t, dsn, "simple_protocol") },
	"pgx savepoint": func(t testing.TB, dsn string) handle {
		outer := beginPGX(t, dsn, "")
		inner, err := outer.tx.(pgx.Tx).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h := ofPGX(t, inner)
		h.commit = func() error {
			if err := inner.Commit(t.Context()); err != nil {
				return err
			}
			return outer.commit()
		}
		return h
	},
	"pgxpool": func(t testing.TB, dsn string) handle {
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return ofPGX(t, tx)
	},
	"database/sql with pgx": func(t testing.TB, dsn string) handle { return beginSQL(t, "pgx", dsn) },
	"database/sql with pgx, simple protocol": func(t testing.TB, dsn string) handle {
		return beginSQL(t, "pgx", dsn+"&default_query_exec_mode=simple_protocol")
	},
	"database/sql with lib/pq": func(t testing.TB, dsn string) handle { return beginSQL(t, "postgres", dsn) },
	"database/sql that embeds": func(t testing.TB, dsn string) handle { // as bun.Tx and sqlx.Tx do
		h := beginSQL(t, "pgx", dsn)
		h.tx = embeds{h.tx.(*sql.Tx)}
		return h
	},
	"database/sql behind a type": func(t testing.TB, dsn string) handle { // as the Tx of ent
		h := beginSQL(t, "pgx", dsn)
		h.tx = hidesSQL{h.tx.(*sql.Tx)}
		return h
	},
	"lib/pq behind a type": func(t testing.TB, dsn string) handle {
		h := beginSQL(t, "postgres", dsn)
		h.tx = hidesSQL{h.tx.(*sql.Tx)}
		return h
	},
	"pgx behind a type": func(t testing.TB, dsn string) handle {
		h := beginPGX(t, dsn, "")
		h.tx = hidesPGX{h.tx.(pgx.Tx)}
		return h
	},
}

// hidesSQL and hidesPGX do not tell whether they are transactions, as the Client of ent and the
// PreparedStmtDB of GORM do not.
type hidesSQL struct {
	in interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	}
}

func (h hidesSQL) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return h.in.ExecContext(ctx, query, args...)
}

func (h hidesSQL) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return h.in.QueryContext(ctx, query, args...)
}

// BeginTx is a method of the Client of ent, also within a transaction.
func (h hidesSQL) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) {
	return nil, sql.ErrTxDone
}

type hidesPGX struct {
	in interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
}

func (h hidesPGX) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return h.in.Exec(ctx, sql, args...)
}

func (h hidesPGX) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return h.in.QueryRow(ctx, sql, args...)
}

// embeds is like bun.Tx: its own method ExecContext has other placeholders.
type embeds struct{ *sql.Tx }

func (embeds) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return nil, fmt.Errorf("the placeholders of this method are question marks")
}

func beginPGX(t testing.TB, dsn, mode string) handle {
	t.Helper()
	if mode != "" {
		dsn += "&default_query_exec_mode=" + mode
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ofPGX(t, tx)
}

func ofPGX(t testing.TB, tx pgx.Tx) handle {
	return handle{
		tx:   tx,
		exec: func(sql string) error { _, err := tx.Exec(t.Context(), sql); return err },
		execute: func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		},
		commit:   func() error { return tx.Commit(t.Context()) },
		rollback: func() error { return tx.Rollback(t.Context()) },
	}
}

func beginSQL(t testing.TB, driver, dsn string) handle {
	t.Helper()
	var db *sql.DB
	var err error
	if driver == "pgx" {
		config, bad := pgx.ParseConfig(dsn)
		if bad != nil {
			t.Fatal(bad)
		}
		db = stdlib.OpenDB(*config)
	} else if db, err = sql.Open(driver, dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return handle{
		tx:   tx,
		exec: func(sql string) error { _, err := tx.ExecContext(t.Context(), sql); return err },
		execute: func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.ExecContext(ctx, sql, args...)
			return err
		},
		commit:   tx.Commit,
		rollback: tx.Rollback,
	}
}

// must runs statements that do not fail.
func (h handle) must(t testing.TB, sql ...string) {
	t.Helper()
	for _, s := range sql {
		if err := h.exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}
