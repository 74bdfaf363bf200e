package inbox

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/lib/attempts"
)

func TestWhoseFaultAnErrorIs(t *testing.T) {
	code := func(code string) error { return &HandlerError{Err: &pgconn.PgError{Code: code}} }
	refused := func(dsn string) error {
		_, err := pgconn.Connect(t.Context(), dsn)
		return err
	}
	for _, c := range []struct {
		err  error
		want attempts.Fault
	}{
		{code("23505"), attempts.Message},
		{code("22P02"), attempts.Message},
		{code("42501"), attempts.Elsewhere},
		{code("42P01"), attempts.Elsewhere},
		{code("42703"), attempts.Elsewhere},
		{code("42883"), attempts.Elsewhere},
		{code("3F000"), attempts.Elsewhere},
		{code("28P01"), attempts.Elsewhere},
		{code("3D000"), attempts.Elsewhere},
		{code("57P01"), attempts.Elsewhere},
		{code("57014"), attempts.Unclear},
		{code("55P03"), attempts.Unclear},
		{code("25P03"), attempts.Unclear},
		{code("25P04"), attempts.Unclear},
		{refused("host=127.0.0.1 port=1 sslmode=disable"), attempts.Elsewhere},
		{fmt.Errorf("service: %w", context.DeadlineExceeded), attempts.Unclear},
		{&HandlerError{Err: context.DeadlineExceeded}, attempts.Unclear},
		{context.Canceled, attempts.Message},
		{driver.ErrBadConn, attempts.Unclear},
		{cannotBegin(context.DeadlineExceeded), attempts.Elsewhere},
		{cannotMark(context.DeadlineExceeded), attempts.Elsewhere},
		{cannotMark(&pgconn.PgError{Code: "22P05"}), attempts.Message},
		{&HandlerError{errEnded}, attempts.Elsewhere},
		{Retryable(context.DeadlineExceeded), attempts.Elsewhere},
		{Permanent(context.DeadlineExceeded), attempts.Permanent},
		{check("c", Message{}), attempts.Permanent},
		{check("", Message{}), attempts.Elsewhere},
		{&HandlerError{Err: fmt.Errorf("no account")}, attempts.Message},
	} {
		if got := attempts.Of(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
		if IsPermanent(c.err) != (c.want == attempts.Permanent) {
			t.Errorf("IsPermanent(%v) is %t", c.err, IsPermanent(c.err))
		}
	}
}
