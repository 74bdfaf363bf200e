package consumer

import (
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
)

// The reasons why a message becomes a dead letter.
const (
	reasonAttempts  = "attempts"   // the handler failed Config.Attempts times
	reasonPermanent = "permanent"  // the handler returned an inbox.Permanent error
	reasonMissingID = "missing_id" // the message has no usable id
)

// The headers of a dead letter. They follow the headers of the message. Headers that the relay's dead
// letters also have mean the same.
const (
	letterPrefix    = "walpost.dead."
	headerReason    = letterPrefix + "reason"
	headerError     = letterPrefix + "error"
	headerStack     = letterPrefix + "stack" // of a panic only
	headerTopic     = letterPrefix + "topic"
	headerPartition = letterPrefix + "partition"
	headerOffset    = letterPrefix + "offset"
	headerTimestamp = letterPrefix + "timestamp" // of the message: milliseconds since 1970
	headerAttempts  = letterPrefix + "attempts"
	headerID        = letterPrefix + "id"
	headerGroup     = letterPrefix + "group"
	headerPosition  = letterPrefix + "position" // what inbox.PositionAsID takes as the id
	headerLeftOut   = letterPrefix + "left_out" // which of these headers did not fit: "error, stack"
)

// maxError bounds headerError, so that a dead letter is hardly larger than its message.
const maxError = 2 << 10

type verdict struct {
	reason string
	err    error
}

// letterOf makes the dead letter of a message: its key, its value and its headers, and why it is
// dead. The record's own time is new, because the retention of the topic counts from this time.
//
// A message that was sent back already has its first time and its first position in headerTimestamp and
// headerPosition. If the position is of another topic, both headers were forwarded, and are not this message's.
func letterOf(m inbox.Message, v *verdict, attempts int, group, topic string) *kgo.Record {
	rec := &kgo.Record{Topic: topic, Key: m.Key, Value: m.Value}
	at := strconv.FormatInt(m.Time.UnixMilli(), 10)
	first := m
	first.ID = ""
	first, _ = first.WithID(inbox.PositionAsID) // it is no id yet, so no error matters
	sentBack := first.ID == m.Header(headerPosition)
	for _, h := range m.Headers {
		if h.Key == headerTimestamp && sentBack {
			if _, err := strconv.ParseUint(string(h.Value), 10, 48); err == nil {
				at = string(h.Value)
			}
		}
		if !strings.HasPrefix(h.Key, letterPrefix) { // of an earlier letter that was sent back
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	add := func(key, value string) {
		if value != "" {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
	}
	add(headerReason, v.reason)
	add(headerError, cut(v.err.Error(), maxError))
	add(headerStack, stackOf(v.err))
	add(headerTopic, m.Topic)
	add(headerPartition, strconv.Itoa(int(m.Partition)))
	add(headerOffset, strconv.FormatInt(m.Offset, 10))
	add(headerTimestamp, at)
	add(headerAttempts, strconv.Itoa(attempts))
	add(headerID, m.ID)
	add(headerGroup, group)
	add(headerPosition, first.ID)
	return rec
}

// shorten returns a letter without its error and its stack.
func shorten(letter *kgo.Record) *kgo.Record {
	short := &kgo.Record{Topic: letter.Topic, Key: letter.Key, Value: letter.Value}
	for _, h := range letter.Headers {
		if h.Key != headerError && h.Key != headerStack {
			short.Headers = append(short.Headers, h)
		}
	}
	short.Headers = append(short.Headers, kgo.RecordHeader{Key: headerLeftOut, Value: []byte("error, stack")})
	return short
}
