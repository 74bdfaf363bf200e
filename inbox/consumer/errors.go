package consumer

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/inbox"
)

// Permanent marks an error that another attempt cannot change. The message becomes a dead letter at
// once. Permanent(nil) is nil.
func Permanent(err error) error { return mark(err, true) }

// Retryable marks an error that is not the message's fault, such as a service that cannot be
// reached. The message is handled again until it succeeds or fails in another way, and the attempt
// does not count. Retryable(nil) is nil.
//
// The consumer recognises by itself that Postgres cannot be reached or does not answer, and that a
// right or a table is missing. docs/consumer.md has the list.
func Retryable(err error) error { return mark(err, false) }

func mark(err error, permanent bool) error {
	if err == nil {
		return nil
	}
	return &marked{err, permanent}
}

type marked struct {
	err       error
	permanent bool
}

func (m *marked) Error() string { return m.err.Error() }
func (m *marked) Unwrap() error { return m.err }

// maxStack bounds the stack in a dead letter, so that a letter is hardly larger than its message.
const maxStack = 2 << 10

// stackOf returns where the handler panicked: the first frames, without those of the recovery. It is
// "" if err is no panic.
func stackOf(err error) string {
	p, ok := errors.AsType[*inbox.PanicError](err)
	if !ok {
		return ""
	}
	stack := string(p.Stack)
	if _, below, ok := strings.Cut(stack, "\npanic("); ok {
		if _, rest, ok := strings.Cut(below, "\n\t"); ok { // the file of panic itself
			_, stack, _ = strings.Cut(rest, "\n")
		}
	}
	return cut(stack, maxStack)
}

// cut returns the beginning of a text.
func cut(s string, size int) string {
	if len(s) > size {
		return strings.ToValidUTF8(s[:size], "") + " …"
	}
	return s
}

// A blame says whose fault a failure is.
type blame int

const (
	blameMessage   blame = iota // the failure counts
	blamePermanent              // another attempt cannot help
	blameWorld                  // the failure does not count
	blameUnknown                // it could be anybody's fault: the failure does not count the first times
	blameDeadline               // a deadline passed: blameWorld for one message, blameUnknown for a batch
)

func blameOf(err error) blame {
	if m, ok := errors.AsType[*marked](err); ok {
		if m.permanent {
			return blamePermanent
		}
		return blameWorld
	}
	if _, ok := errors.AsType[*inbox.IDError](err); ok {
		return blamePermanent
	}
	_, unnamed := errors.AsType[*inbox.NameError](err)
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	if unnamed || unconnected {
		return blameWorld
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		for prefix, whose := range codes {
			if strings.HasPrefix(state.SQLState(), prefix) {
				return whose
			}
		}
		return blameMessage
	}
	var attempted interface {
		error
		SafeToRetry() bool
	}
	unsent := errors.As(err, &attempted) && attempted.SafeToRetry()
	switch {
	case errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err):
		// The handler can be slow because of the message. The inbox then says that the handler failed, or
		// pgx says that the context had ended before the statement, or the handler cancelled the context.
		_, worked := errors.AsType[*inbox.HandlerError](err)
		if worked || unsent || errors.Is(err, context.Canceled) {
			return blameUnknown
		}
		return blameDeadline
	case unsent && errors.Unwrap(attempted) != nil: // without a cause, the handler itself uses the connection
		return blameWorld
	}
	for _, broken := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, driver.ErrBadConn} {
		if errors.Is(err, broken) {
			return blameUnknown
		}
	}
	return blameMessage
}

// codes has the SQLSTATEs, or their beginnings, that do not show a fault of the message.
var codes = map[string]blame{
	// Postgres is away, overloaded, a standby, or refuses the session.
	"08": blameWorld, "28": blameWorld, "40": blameWorld, "53": blameWorld, "57P": blameWorld, "58": blameWorld,
	"25006": blameWorld, "3D000": blameWorld,
	// A right, a schema, a table, a column or a function is missing: a person must grant it or migrate.
	"42501": blameWorld, "3F000": blameWorld, "42P01": blameWorld, "42703": blameWorld, "42883": blameWorld,
	// The timeouts for statements, locks, idle transactions and transactions.
	"57014": blameUnknown, "55P03": blameUnknown, "25P03": blameUnknown, "25P04": blameUnknown,
}

// maxBreaks is how often a failure of blameUnknown does not count. For example, several connections of
// a pool can break at once, and one message can get them all. But the connection may also break
// because of the message.
const maxBreaks = 5
