package inbox

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestWhoseFaultAnErrorIs(t *testing.T) {
	code := func(code string) error { return &HandlerError{Err: &pgconn.PgError{Code: code}} }
	refused := func(dsn string) error {
		_, err := pgconn.Connect(t.Context(), dsn)
		return err
	}
	for _, c := range []struct {
		err  error
		want Fault
	}{
		{code("23505"), FaultMessage},
		{code("22P02"), FaultMessage},
		{code("42501"), FaultElsewhere},
		{code("42P01"), FaultElsewhere},
		{code("42703"), FaultElsewhere},
		{code("42883"), FaultElsewhere},
		{code("3F000"), FaultElsewhere},
		{code("28P01"), FaultElsewhere},
		{code("3D000"), FaultElsewhere},
		{code("57P01"), FaultElsewhere},
		{code("57014"), faultUnclear},
		{code("55P03"), faultUnclear},
		{code("25P03"), faultUnclear},
		{code("25P04"), faultUnclear},
		{refused("host=127.0.0.1 port=1 sslmode=disable"), FaultElsewhere},
		{fmt.Errorf("service: %w", context.DeadlineExceeded), faultUnclear},
		{&HandlerError{Err: context.DeadlineExceeded}, faultUnclear},
		{context.Canceled, FaultMessage},
		{driver.ErrBadConn, faultUnclear},
		{cannotBegin(context.DeadlineExceeded), FaultElsewhere},
		{cannotMark(context.DeadlineExceeded), FaultElsewhere},
		{cannotMark(&pgconn.PgError{Code: "22P05"}), FaultMessage},
		{&HandlerError{errEnded}, FaultElsewhere},
		{Retryable(context.DeadlineExceeded), FaultElsewhere},
		{Permanent(context.DeadlineExceeded), FaultPermanent},
		{&IDError{}, FaultPermanent},
		{&NameError{}, FaultElsewhere},
		{&HandlerError{Err: fmt.Errorf("no account")}, FaultMessage},
	} {
		if got := faultOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// Worker and consumer.Consumer decide by Failures.
func TestFailuresCountWhatIsTheMessagesFault(t *testing.T) {
	var f Failures
	for i, c := range []struct {
		err  error
		want Fault
	}{
		{errHandler, FaultMessage},
		{Retryable(errHandler), FaultElsewhere},
		{driver.ErrBadConn, FaultElsewhere},
		{driver.ErrBadConn, FaultElsewhere},
		{context.DeadlineExceeded, FaultElsewhere},
		{driver.ErrBadConn, FaultElsewhere},
		{driver.ErrBadConn, FaultElsewhere},
		{driver.ErrBadConn, FaultMessage},
		{context.DeadlineExceeded, FaultMessage},
		{Permanent(errHandler), FaultPermanent},
	} {
		if got := f.Add(c.err); got != c.want {
			t.Errorf("failure %d, %v: %d, want %d", i, c.err, got, c.want)
		}
	}
	if want := (Failures{All: 10, Counted: 4, Unclear: 7}); f != want {
		t.Errorf("%+v, want %+v", f, want)
	}
}

// What is not the message's fault makes no message dead, and what no attempt can change does so at
// once.
func TestAWorkerBlamesAsTheConsumerDoes(t *testing.T) {
	p := newPlace(t, "")
	db := Pgx(p.pool)
	sql := func(sql string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	returns := func(err error) func(context.Context, pgx.Tx) error {
		return func(context.Context, pgx.Tx) error { return err }
	}
	for name, c := range map[string]struct {
		handle   func(context.Context, pgx.Tx) error
		attempts int    // of the Worker
		want     string // state, failures, attempts and unclear after three calls at most
	}{
		"a missing table":              {sql("INSERT INTO missing VALUES (1)"), 1, "pending 3 0 0"},
		"a session that is ended":      {sql("SELECT pg_terminate_backend(pg_backend_pid())"), 1, "pending 3 0 0"},
		"Retryable":                    {returns(fmt.Errorf("service: %w", Retryable(errHandler))), 1, "pending 3 0 0"},
		"Permanent":                    {returns(fmt.Errorf("decode: %w", Permanent(errHandler))), 0, "dead 1 1 0"},
		"a statement that is too slow": {sql("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)"), 1, "pending 3 0 3"},
		"a handler that is too slow":   {sql("SELECT pg_sleep(60)"), 1, "pending 3 0 3"},
		"another error":                {sql("SELECT 1/0"), 2, "dead 2 2 0"},
	} {
		if n, err := db.Store(t.Context(), name, keyed("k", "a")...); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		w := Worker[pgx.Tx]{
			DB: db, Consumer: name, Attempts: c.attempts, BackoffMin: time.Nanosecond, BackoffMax: time.Nanosecond, HandlerTimeout: time.Second,
			Handle: func(ctx context.Context, tx pgx.Tx, _ Message) error { return c.handle(ctx, tx) },
		}
		for range 3 {
			lane := []byte{}
			if _, err := w.one(t.Context(), &lane); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		p.expect(c.want, "SELECT concat_ws(' ', state, failures, attempts, unclear) FROM inbox_messages WHERE consumer = $1", name)
	}
	for consumer, n := range map[string]int64{"Permanent": 1, "a missing table": 0} {
		if got, err := db.RetryAllDead(t.Context(), consumer); got != n || err != nil {
			t.Errorf("RetryAllDead of %s: %d, %v", consumer, got, err)
		}
	}
	p.expect("pending 0 0 0", "SELECT concat_ws(' ', state, failures, attempts, unclear) FROM inbox_messages WHERE consumer = 'Permanent'")
}
