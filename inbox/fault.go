package inbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Permanent marks an error that another attempt cannot change. The message is dead at once.
// Permanent(nil) is nil.
func Permanent(err error) error { return markAs(err, FaultPermanent) }

// Retryable marks an error that is not the message's fault, such as a service that cannot be
// reached. The message is handled again until it succeeds or fails in another way, and the attempt
// does not count. Retryable(nil) is nil.
//
// The inbox recognises by itself that Postgres cannot be reached, and that a privilege or a table
// is missing. docs/consume-events.md has the list.
func Retryable(err error) error { return markAs(err, FaultElsewhere) }

func markAs(err error, fault Fault) error {
	if err == nil {
		return nil
	}
	return &marked{err, fault}
}

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

// A Fault says what a failure means for its message.
type Fault int

const (
	FaultElsewhere Fault = iota // the attempt does not count
	FaultMessage                // the attempt counts
	FaultPermanent              // the attempt counts, and another one cannot help
	faultUnclear                // FaultElsewhere for the first failures, FaultMessage for later ones
)

// maxUnclear is how many failures of a message with an unclear cause do not count. For example,
// several connections of a pool can break at once, and one message can get them all. But the
// connection may also break because of the message.
const maxUnclear = 5

// Add adds a failure with the error of the handler, and says what it means. Worker and
// consumer.Consumer both decide by it.
func (f *Failures) Add(err error) Fault {
	f.All++
	fault := faultOf(err)
	if fault == faultUnclear {
		fault = FaultMessage
		if f.Unclear++; f.Unclear <= maxUnclear {
			fault = FaultElsewhere
		}
	}
	if fault != FaultElsewhere {
		f.Counted++
	}
	return fault
}

func faultOf(err error) Fault {
	if m, ok := errors.AsType[*marked](err); ok {
		return m.fault
	}
	if _, ok := errors.AsType[*IDError](err); ok {
		return FaultPermanent
	}
	_, unnamed := errors.AsType[*NameError](err)
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	if unnamed || unconnected {
		return FaultElsewhere
	}
	if state := sqlState(err); state != "" {
		for prefix, fault := range codes {
			if strings.HasPrefix(state, prefix) {
				return fault
			}
		}
		return FaultMessage
	}
	if errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
		return faultUnclear // the message can be slow, or what the handler waits for
	}
	var attempted interface {
		error
		SafeToRetry() bool
	}
	// Without a cause, the handler itself uses the connection.
	if errors.As(err, &attempted) && attempted.SafeToRetry() && errors.Unwrap(attempted) != nil {
		return FaultElsewhere
	}
	for _, broken := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, driver.ErrBadConn} {
		if errors.Is(err, broken) {
			return faultUnclear
		}
	}
	return FaultMessage
}

// codes has the SQLSTATEs, or their beginnings, that do not show a fault of the message.
var codes = map[string]Fault{
	// Postgres is away, overloaded, a standby, or refuses the session.
	"08": FaultElsewhere, "28": FaultElsewhere, "40": FaultElsewhere, "53": FaultElsewhere, "57P": FaultElsewhere, "58": FaultElsewhere,
	"25006": FaultElsewhere, "3D000": FaultElsewhere,
	// A privilege, schema, table, column or function is missing: an operator must grant or migrate.
	"42501": FaultElsewhere, "3F000": FaultElsewhere, "42P01": FaultElsewhere, "42703": FaultElsewhere, "42883": FaultElsewhere,
	// The timeouts for statements, locks, idle transactions and transactions.
	"57014": faultUnclear, "55P03": faultUnclear, "25P03": faultUnclear, "25P04": faultUnclear,
}
