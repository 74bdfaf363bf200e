package deadletter

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// The headers that only the dead letter of a consumer has (inbox/consumer, letter.go).
const (
	hGroup   = prefix + "group"
	hStack   = prefix + "stack"
	hLeftOut = prefix + "left_out"
	hStart   = prefix + "position"
)

const maxTime = 253_402_300_799_999 // the last millisecond of the year 9999

// decodeConsumed is Decode for the dead letter topic of consumers. A letter of a relay is foreign there.
//
// The letter of a consumer is the message, with its headers before the consumer's own. The consumer has removed the message's
// headers with the names of its own.
func decodeConsumed(rec *kgo.Record) (*Letter, *Mark, error) {
	l, m, err := Decode(rec)
	switch {
	case l != nil:
		return nil, nil, ErrForeign
	case !errors.Is(err, ErrForeign):
		return nil, m, err
	}
	var r reader
	var original []cdc.Header
	for _, h := range rec.Headers {
		if strings.HasPrefix(h.Key, prefix) {
			r.meta = append(r.meta, header{h.Key, string(h.Value)})
		} else {
			original = append(original, cdc.Header{Key: h.Key, Value: h.Value})
		}
	}
	for _, key := range []string{hGroup, hReason, hTopic, hPartition, hOffset} {
		if r.text(key) == "" {
			return nil, nil, ErrForeign
		}
	}
	at := rec.Timestamp.UTC() // a producer can have written any number
	if ms, err := strconv.ParseInt(r.text(hTime), 10, 64); err == nil && ms >= 0 && ms <= maxTime {
		at = time.UnixMilli(ms).UTC()
	}
	l = &Letter{
		Reason: cdc.Reason(r.text(hReason)), Error: r.text(hError), ID: r.text(hID), CommitTime: at, Topic: r.text(hTopic),
		Partition: int32(r.number(hPartition, 0, math.MaxInt32)), Attempts: int(r.number(hAttempts, 0, math.MaxInt32)), Key: rec.Key, KeyKnown: true,
		Group: r.text(hGroup), Offset: r.number(hOffset, 0, math.MaxInt64), Stack: r.text(hStack), Start: r.text(hStart), Written: rec.Timestamp.UTC(),
	}
	if out := r.text(hLeftOut); out != "" && l.Error == "" {
		l.Error = "(left out: the letter was too large for its topic)"
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	// The token names the message for the group. If a topic was deleted and created again, its messages have the same offsets, but
	// other times and ids.
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%q %q %q %q", l.Group, l.Topic, l.ID, r.text(hTime)) // it never fails
	l.Token = fmt.Sprintf("%d-%d-%08x", l.Partition, l.Offset, h.Sum32())
	l.Record = &cdc.Record{
		Topic: l.Topic, Partition: l.Partition, Key: l.Key, Value: rec.Value, Headers: original, Time: at, Committed: at, EventID: l.ID,
	}
	return l, nil, nil
}

// SendBack returns the record that hands the message of a consumer's letter out again. Its time is now, because the topic could delete
// a record of the message's own time at once. The headers say which group it's for, its own time, and its position, which is the id
// of a message without one.
func (l *Letter) SendBack(now time.Time) *cdc.Record {
	rec := *l.Record
	rec.Headers = append(slices.Clip(rec.Headers), cdc.Header{Key: hGroup, Value: []byte(l.Group)}, cdc.Header{Key: hTime, Value: fmt.Append(nil, l.CommitTime.UnixMilli())},
		cdc.Header{Key: hStart, Value: []byte(l.Start)})
	rec.Time, rec.Committed = now.Truncate(time.Millisecond), now
	return &rec
}
