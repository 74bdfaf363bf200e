package inbox

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"

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
