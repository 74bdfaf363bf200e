package sink

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// batchHead is what a batch takes beside its records, and room what a batch of one record takes at most beside the bytes of
// the record, and some.
const (
	batchHead = 61
	room      = 96
)

// A slot carries one record through the sink, and is used again afterwards.
type slot struct {
	rec    cdc.Record // with headers of its own
	t      *topic
	n      uint64 // counts the calls of Send
	ticket cdc.Ticket
	bytes  int    // of a batch with this record alone, at most
	tx     uint64 // number of the transaction; see transactions
	own    bool   // the sink's own record of a checkpoint
	offset int64  // of the record that is written, -1 if the broker did not tell it
	next   *slot  // in the free list
}

func (sl *slot) fill(rec *cdc.Record, ticket cdc.Ticket) {
	h := append(sl.rec.Headers[:0], rec.Headers...)
	sl.rec, sl.ticket = *rec, ticket
	sl.rec.Headers, sl.rec.Partition = h, max(-1, rec.Partition)
	if sl.rec.Time.IsZero() {
		sl.rec.Time = time.Now()
	}
	sl.bytes = room + len(rec.Key) + len(rec.Value)
	for i := range h {
		sl.bytes += 10 + len(h[i].Key) + len(h[i].Value) // two lengths of at most five bytes
	}
}

// record returns a copy that outlives the slot.
func (sl *slot) record() *cdc.Record {
	rec := sl.rec
	rec.Headers, rec.EventID = slices.Clone(rec.Headers), strings.Clone(rec.EventID)
	return &rec
}

// give returns the record, which the slot loses.
func (sl *slot) give() *cdc.Record {
	rec := sl.rec
	sl.rec.Headers = nil
	return &rec
}

// BatchBytes is the size of a batch with this record alone, at most. The broker compares it with max.message.bytes.
func BatchBytes(rec *cdc.Record) int {
	var sl slot
	sl.fill(rec, cdc.Ticket{})
	return sl.bytes
}

// CompressedBytes is BatchBytes for a record that is compressed with a codec of kafka.compression.
func CompressedBytes(rec *cdc.Record, codec string) (int, error) {
	plain := slices.Concat(rec.Key, rec.Value)
	for _, h := range rec.Headers {
		plain = slices.Concat(plain, []byte(h.Key), h.Value)
	}
	c, err := kgo.DefaultCompressor(codecs[codec])
	if err != nil || c == nil { // nil compresses nothing
		return BatchBytes(rec), err
	}
	packed, _ := c.Compress(new(bytes.Buffer), plain)
	return BatchBytes(rec) - max(0, len(plain)-len(packed)), nil
}

// queue is a first-in first-out list of slots that does not hold on to what has left it.
type queue struct {
	slots []*slot
	head  int
	bytes int
}

func (q *queue) len() int { return len(q.slots) - q.head }

func (q *queue) push(sl *slot) {
	q.slots = append(q.slots, sl)
	q.bytes += sl.bytes
}

func (q *queue) peek() *slot {
	if q.head == len(q.slots) {
		return nil
	}
	return q.slots[q.head]
}

func (q *queue) pop() {
	q.bytes -= q.slots[q.head].bytes
	q.slots[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.slots):
		q.slots, q.head = q.slots[:0], 0
	case q.head > 1024 && q.head > len(q.slots)/2:
		n := copy(q.slots, q.slots[q.head:])
		clear(q.slots[n:])
		q.slots, q.head = q.slots[:n], 0
	}
}

// putBack puts slots in front.
func (q *queue) putBack(front []*slot) {
	for _, sl := range front {
		q.bytes += sl.bytes
	}
	q.slots, q.head = append(slices.Clone(front), q.slots[q.head:]...), 0
}

// remove takes out what wants is true of, in order, behind the first stay slots.
func (q *queue) remove(stay int, wants func(*slot) bool) (out []*slot) {
	kept := q.slots[:0:0]
	for i, sl := range q.slots[q.head:] {
		if i >= stay && wants(sl) {
			out = append(out, sl)
			q.bytes -= sl.bytes
		} else {
			kept = append(kept, sl)
		}
	}
	q.slots, q.head = kept, 0
	return out
}
