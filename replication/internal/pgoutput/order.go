package pgoutput

import (
	"slices"

	"github.com/walpost/walpost/cdc"
)

// An Order puts a message before the rows that were written behind it.
//
// The server merges the subtransactions of a transaction by the positions of their changes. The position of a row is where its
// record begins, and the position of a message is where its record ends. So a row that another subtransaction wrote directly
// behind a message has the same position as the message, and the server may send it first. Within one subtransaction, nothing is
// merged. So an Order holds rows back until the next event has another position.
type Order struct {
	On    bool        // rows and messages are events
	queue []cdc.Event // held rows of one position, with their own bytes
	size  int         // of the bytes in queue
	ready int         // how many of queue go next
}

// maxHeld bounds the bytes that are held, and so the memory. Rows have equal positions only if one COPY or one statement wrote them
// into one page.
const maxHeld = 16 << 20

// Take takes the next event, which may be nil. It returns the event that goes next, or nil if there is none yet. The queue must
// have no event that is ready.
func (o *Order) Take(ev *cdc.Event) *cdc.Event {
	if !o.On || ev == nil {
		return ev
	}
	holds := ev.Kind == cdc.Insert || ev.Kind == cdc.Update || ev.Kind == cdc.Delete
	same := len(o.queue) == 0 || o.queue[0].LSN == ev.LSN
	switch {
	case !same:
		o.ready = len(o.queue)
	case ev.Kind == cdc.Message, !holds && len(o.queue) == 0:
		return ev
	}
	o.queue = append(o.queue, *ev.Clone())
	o.size += sizeOf(ev)
	if !holds || o.size > maxHeld {
		o.ready = len(o.queue)
	}
	return o.Next()
}

// Next returns the Next event of the queue that is ready, or nil. The event is valid until the Next call.
func (o *Order) Next() *cdc.Event {
	if o.ready == 0 {
		return nil
	}
	ev := o.queue[0]
	o.queue, o.ready = slices.Delete(o.queue, 0, 1), o.ready-1
	o.size -= sizeOf(&ev)
	return &ev
}

func sizeOf(ev *cdc.Event) (n int) {
	for _, values := range [][]cdc.Value{ev.Row.Values, ev.Old.Values} {
		for i := range values {
			n += len(values[i].Bytes)
		}
	}
	return n
}
