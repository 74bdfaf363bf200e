package consumer

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/inbox"
)

func TestWhoseFaultAnErrorIs(t *testing.T) {
	code := func(code string) error { return &inbox.HandlerError{Err: &pgconn.PgError{Code: code}} }
	refused := func(dsn string) error {
		_, err := pgconn.Connect(t.Context(), dsn)
		return err
	}
	for _, c := range []struct {
		err  error
		want blame
	}{
		{code("23505"), blameMessage},
		{code("22P02"), blameMessage},
		{code("42501"), blameWorld},
		{code("42P01"), blameWorld},
		{code("42703"), blameWorld},
		{code("42883"), blameWorld},
		{code("3F000"), blameWorld},
		{code("28P01"), blameWorld},
		{code("3D000"), blameWorld},
		{code("57P01"), blameWorld},
		{code("57014"), blameUnknown},
		{code("55P03"), blameUnknown},
		{code("25P03"), blameUnknown},
		{code("25P04"), blameUnknown},
		{refused("host=127.0.0.1 port=1 sslmode=disable"), blameWorld},
		{fmt.Errorf("begin: %w", context.DeadlineExceeded), blameDeadline},
		{&inbox.HandlerError{Err: context.DeadlineExceeded}, blameUnknown},
		{context.Canceled, blameMessage},
		{driver.ErrBadConn, blameUnknown},
		{Retryable(context.DeadlineExceeded), blameWorld},
		{Permanent(context.DeadlineExceeded), blamePermanent},
		{&inbox.IDError{}, blamePermanent},
		{&inbox.NameError{}, blameWorld},
		{&inbox.HandlerError{Err: fmt.Errorf("no account")}, blameMessage},
	} {
		if got := blameOf(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}
