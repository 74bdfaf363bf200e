// Package claims reports what becomes of rows to a source that keeps the outcome of each row.
package claims

import (
	"bytes"
	"errors"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/relay/internal/badevent"
)

// A Keeper keeps the outcome of each row that its source gave, instead of a position. The Pos of such
// an event is the row's number, and the methods name the row by it. The goroutine that uses the session
// calls all methods.
type Keeper interface {
	// Delivered says that the brokers have acknowledged the record of the row or its dead letter, or
	// that the row produces no record.
	Delivered(row uint32)
	// Refused says that this row alone cannot be delivered, and why. It reports whether the source
	// gives the row again later. Then the source gives no younger row of the key before that.
	Refused(row uint32, why string) (again bool)
	// Returned says that the record of the row was not sent, because an older record of its key was
	// refused.
	Returned(row uint32)
	// Overdue returns an error if another process may soon deliver rows that are in flight. Then
	// nothing may be sent any more.
	Overdue() error
}

// Ended tells a Keeper, which may be nil, of an acknowledgement. It reports whether the row comes again,
// so that nothing of this delivery is left to do. pass is Sink.PassOver.
func Ended(k Keeper, a *cdc.Ack, pass func(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool)) (again bool) {
	row := a.Ticket.Row
	switch {
	case k == nil:
	case a.Err == nil:
		k.Delivered(row)
	case errors.Is(a.Err, cdc.ErrTakenBack):
		k.Returned(row)
		return true
	case a.Record != nil && badevent.Because(a.Err) != "" && k.Refused(row, badevent.Refused(a).Reason()):
		key := a.Record.Key
		pass(a, func(other []byte, _ *cdc.Ticket) bool { return key != nil && bytes.Equal(key, other) })
		return true
	}
	return false
}
