package consumer

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/inbox"
)

// Permanent marks an error that another attempt cannot change. The message becomes a dead letter at
// once. Permanent(nil) is nil.
func Permanent(err error) error { return mark(err, true) }

// Retryable marks an error that is not the message's fault, such as a service that is away. The
// message is handled again until it succeeds or fails in another way, and the attempt does not
// count. Retryable(nil) is nil.
//
// The consumer recognises by itself that Postgres is away: an error of a connection attempt, and the
// SQLSTATEs of the classes 08, 40, 53, 57P and 58, and 25006.
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

// A PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any
	Stack string // where the panic happened: the first frames
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// maxStack bounds PanicError.Stack, so that a dead letter is hardly larger than its message.
const maxStack = 2 << 10

// recovered makes the error of a panic. It must be called by the deferred function that recovers.
func recovered(value any) error {
	stack := string(debug.Stack())
	// What is above the frame of panic() belongs to the recovery.
	if _, below, ok := strings.Cut(stack, "\npanic("); ok {
		if _, rest, ok := strings.Cut(below, "\n\t"); ok {
			_, stack, _ = strings.Cut(rest, "\n")
		}
	}
	return &PanicError{Value: value, Stack: cut(stack, maxStack)}
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
	blameUnknown                // a connection broke: it does not count the first times
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
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		code := state.SQLState()
		for _, class := range []string{"08", "40", "53", "57P", "58", "25006"} {
			if strings.HasPrefix(code, class) {
				return blameWorld
			}
		}
		return blameMessage
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) {
		return blameWorld
	}
	for _, broken := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT} {
		if errors.Is(err, broken) {
			return blameUnknown
		}
	}
	return blameMessage
}

// maxBreaks is how often a broken connection does not count. Several connections of a pool can break
// at once, and one message can get them all. But the connection may also break because of the
// message.
const maxBreaks = 5
