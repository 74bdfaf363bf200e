// Package attempts decides which failed attempts at a message count. The Worker of package inbox and package consumer
// both decide by it.
package attempts

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Fault says what a failure means for its message.
type Fault int

const (
	Elsewhere Fault = iota // the attempt does not count
	Message                // the attempt counts
	Permanent              // the attempt counts, and another one cannot help
	Unclear                // Elsewhere for the first failures, Message for later ones; Add does not return it
)

// Mark returns an error whose fault is known.
func Mark(err error, fault Fault) error { return &marked{err, fault} }

type marked struct {
	error
	fault Fault
}

func (m *marked) Unwrap() error { return m.error }

// Failures are the failures of one message. The zero value is a message that has not failed.
type Failures struct {
	All     int // the pause before the next attempt grows with them
	Counted int // those that count as attempts
	Unclear int // those that could be the message's fault or not
}

// maxUnclear is how many failures of a message with an unclear cause do not count. For example,
// several connections of a pool can break at once, and one message can get them all. But the
// connection may also break because of the message.
const maxUnclear = 5

// Add adds a failure with the error of the handler, and says what it means.
func (f *Failures) Add(err error) Fault {
	f.All++
	fault := Of(err)
	if fault == Unclear {
		fault = Message
		if f.Unclear++; f.Unclear <= maxUnclear {
			fault = Elsewhere
		}
	}
	if fault != Elsewhere {
		f.Counted++
	}
	return fault
}

// Of returns whose fault an error of a handler is.
func Of(err error) Fault {
	if m, ok := errors.AsType[*marked](err); ok {
		return m.fault
	}
	if _, unconnected := errors.AsType[*pgconn.ConnectError](err); unconnected {
		return Elsewhere
	}
	var server interface{ SQLState() string } // of pgconn.PgError and pq.Error
	if errors.As(err, &server) && server.SQLState() != "" {
		for prefix, fault := range codes {
			if strings.HasPrefix(server.SQLState(), prefix) {
				return fault
			}
		}
		return Message
	}
	if errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
		return Unclear // the message can be slow, or what the handler waits for
	}
	var attempted interface {
		error
		SafeToRetry() bool
	}
	// Without a cause, the handler itself uses the connection.
	if errors.As(err, &attempted) && attempted.SafeToRetry() && errors.Unwrap(attempted) != nil {
		return Elsewhere
	}
	for _, broken := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, driver.ErrBadConn} {
		if errors.Is(err, broken) {
			return Unclear
		}
	}
	return Message
}

// codes has the SQLSTATEs, or their beginnings, that do not show a fault of the message.
var codes = map[string]Fault{
	// Postgres is away, overloaded, a standby, or refuses the session.
	"08": Elsewhere, "28": Elsewhere, "40": Elsewhere, "53": Elsewhere, "57P": Elsewhere, "58": Elsewhere,
	"25006": Elsewhere, "3D000": Elsewhere,
	// A privilege, schema, table, column or function is missing: an operator must grant or migrate.
	"42501": Elsewhere, "3F000": Elsewhere, "42P01": Elsewhere, "42703": Elsewhere, "42883": Elsewhere,
	// The timeouts for statements, locks, idle transactions and transactions.
	"57014": Unclear, "55P03": Unclear, "25P03": Unclear, "25P04": Unclear,
}
