package relay

import (
	"bytes"
	"errors"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/relay/internal/badevent"
)

// claimEnded tells a Keeper, which may be nil, of an acknowledgement. It reports whether the row comes again,
// so that nothing of this delivery is left to do. pass is Sink.PassOver.
func claimEnded(k Keeper, a *cdc.Ack, pass func(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool)) (again bool) {
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
