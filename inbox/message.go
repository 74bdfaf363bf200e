package inbox

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Message is one delivered message. It does not depend on the broker.
type Message struct {
	// ID is the event's id. Every delivery of the same event has the same ID. It is empty if the
	// message carries none: see WithID.
	ID string

	Topic     string
	Partition int32
	Offset    int64

	// Key orders messages: messages with equal keys are handled in the order of their delivery. A nil
	// Key has no order.
	Key     []byte
	Value   []byte
	Headers []Header
	Time    time.Time // the broker's timestamp
}

// A Header is a name and a value. A message can have several headers with one name.
type Header struct {
	Key   string
	Value []byte
}

// A MissingID says what to do with a message that has no id.
type MissingID string

const (
	// RefuseMissingID refuses the message with an *IDError. It is the default.
	RefuseMissingID MissingID = ""

	// PositionAsID makes the id from topic, partition and offset. It recognises that the broker
	// delivers a record again. It does not recognise that a producer or relay sends the event again,
	// because the second record has another offset.
	PositionAsID MissingID = "position"
)

// WithID returns the message with an id. If the message has none, p decides. The error is an
// *IDError.
func (m Message) WithID(p MissingID) (Message, error) {
	if m.ID == "" && p == PositionAsID {
		m.ID = fmt.Sprintf("position:%s/%d/%d", m.Topic, m.Partition, m.Offset)
	}
	if err := checkID(m.ID); err != nil {
		err.Topic, err.Partition, err.Offset = m.Topic, m.Partition, m.Offset
		return m, err
	}
	return m, nil
}

// maxID is the length of the longest event id in bytes. An index of Postgres takes entries of 2,700
// bytes, and a consumer's name stands beside the id.
const maxID = 1024

// A NameError says that the name of a consumer cannot be used: it is empty, has more than 1,024 bytes
// or is not text. No message is at fault.
type NameError struct{ Consumer string }

func (e *NameError) Error() string {
	return fmt.Sprintf("%q cannot be the name of a consumer", e.Consumer)
}

// An IDError says why an event id cannot be used. No retry can help. Topic, Partition and Offset are
// set if a message was at hand.
type IDError struct {
	ID        string
	Reason    string
	Topic     string
	Partition int32
	Offset    int64
}

func (e *IDError) Error() string {
	if e.Topic != "" {
		return fmt.Sprintf("message %s/%d/%d: %s", e.Topic, e.Partition, e.Offset, e.Reason)
	}
	return e.Reason
}

func checkID(id string) *IDError {
	reason := ""
	switch {
	case id == "":
		reason = "the message has no event id"
	case len(id) > maxID:
		reason = fmt.Sprintf("the event id has %d bytes, but at most %d are allowed", len(id), maxID)
	case !isText(id):
		reason = fmt.Sprintf("the event id %q is not valid text: it has a zero byte or invalid UTF-8", id)
	default:
		return nil
	}
	return &IDError{ID: id, Reason: reason}
}

// isText reports whether Postgres can store s as text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
