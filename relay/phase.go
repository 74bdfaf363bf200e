package relay

import (
	"context"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
)

// A phase is what the relay publishes now: rows of the table (copying), or the stream (streaming).
// After a copy comes the stream. The loop's goroutine calls all methods.
type phase interface {
	// run publishes until the loop has another phase, the session is lost, ctx ends, or something
	// cannot go on. It returns an error only in the last case.
	run(ctx context.Context) error

	// resume goes on with the session of a, which the loop has taken over. why says why events that
	// were received before do not fit that session, and is "" if they fit. If another phase has to
	// follow, resume makes it the loop's phase. resume may wait for what is in flight. If ctx ends
	// or the session is lost meanwhile, resume leaves the phase as it is.
	resume(ctx context.Context, a *attempt, why string) error

	// advance takes over what is acknowledged.
	advance()

	// forget begins to count anew, because the sink has forgotten what was in flight.
	forget()

	// safe is the position in the stream up to which everything is published and acknowledged.
	safe() cdc.Position

	// describe writes into rec what is published, which is rec's Position, Copy, Next and
	// CommitTime. Before, rec is a copy of the newest durable record. all says that everything that
	// was sent counts as delivered. describe returns how many of the records that this process sent rec covers.
	describe(rec *checkpoint.Record, all bool) (sent uint64)

	// landed reports whether nothing is in flight.
	landed() bool

	// about is the trigger that begins the phase, and what Status says while the phase runs. reason is
	// "" if the relay is ready.
	about() (on trigger, reason string)
}
