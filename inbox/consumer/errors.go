package consumer

import (
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
