package inbox

import "github.com/walpost/walpost/internal/lib/attempts"

// Permanent marks an error that another attempt cannot change. The message is dead at once.
// Permanent(nil) is nil.
func Permanent(err error) error { return markAs(err, attempts.Permanent) }

// IsPermanent reports whether err makes its message dead at once: Permanent has marked it, or the
// message cannot be marked by its id.
func IsPermanent(err error) bool { return err != nil && attempts.Of(err) == attempts.Permanent }

// Retryable marks an error that is not the message's fault, such as a service that cannot be
// reached. The message is handled again until it succeeds or fails in another way, and the attempt
// does not count. Retryable(nil) is nil.
//
// The inbox recognises by itself that Postgres cannot be reached, and that a privilege or a table
// is missing. docs/consume-events.md has the list.
func Retryable(err error) error { return markAs(err, attempts.Elsewhere) }

func markAs(err error, fault attempts.Fault) error {
	if err == nil {
		return nil
	}
	return attempts.Mark(err, fault)
}
