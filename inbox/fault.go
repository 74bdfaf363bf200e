package inbox

import "github.com/walpost/walpost/internal/lib/attempts"

// Permanent marks an error that another attempt can't fix. The message is dead immediately.
// Permanent(nil) is nil.
func Permanent(err error) error { return markAs(err, attempts.Permanent) }

// IsPermanent reports whether err makes its message dead immediately, because Permanent has marked
// err, or because the message has no usable id.
func IsPermanent(err error) bool { return err != nil && attempts.Of(err) == attempts.Permanent }

// Retryable marks an error that isn't the message's fault, such as an unreachable service. The
// attempt doesn't count, and the message is handled again until it succeeds or fails in another
// way. Retryable(nil) is nil.
//
// The inbox itself recognises that Postgres is unavailable, or that a privilege or a table is
// missing. docs/consume-events.md has the list.
func Retryable(err error) error { return markAs(err, attempts.Elsewhere) }

func markAs(err error, fault attempts.Fault) error {
	if err == nil {
		return nil
	}
	return attempts.Mark(err, fault)
}
