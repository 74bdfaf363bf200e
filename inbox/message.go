package inbox

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Message is one delivered message. It does not depend on the broker.
type Message struct {
	// Group is the consumer that handles the message: Config.Group of a consumer.Consumer, and
	// Consumer of a Worker. Handler marks the event as processed by this group. A function around a
	// Handler may set another one, for example the old name of a renamed group.
	Group string

	// ID is the event's id. Every delivery of the same event has the same ID. It is empty if the
	// message has none: see WithID.
	ID string

	// Scope is the namespace of the ID: messages with the same ID in different scopes are different
	// events. The default is Topic. If a topic is renamed, the messages of the new topic need the
	// old name as Scope, so that the events of the old one are still recognised.
	Scope string

	Topic     string
	Partition int32
	Offset    int64

	// Key orders messages: messages with equal keys are handled in the order of their delivery. A nil
	// Key has no order.
	Key     []byte
	Value   []byte
	Headers []Header
	Time    time.Time // the broker's timestamp

	// Attempt is the number of this attempt, starting at 1. Its maximum is the Attempts of the
	// consumer or the Worker. After a failure that doesn't count (see Retryable), the number stays
	// the same.
	Attempt int
}

// Header returns the value of the last header with this name, as lastHeader of Kafka's Java client
// does, or "" if there is none.
func (m Message) Header(name string) string {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if m.Headers[i].Key == name {
			return string(m.Headers[i].Value)
		}
	}
	return ""
}

// Type returns the event's type, from the header eventType in which walpost places it.
func (m Message) Type() string { return m.Header(typeHeader) }

const typeHeader = "eventType"

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

	// PositionAsID forms the id from the topic, partition, offset and Time. It recognises a record
	// that the broker delivers again, and a dead letter that was sent back. It doesn't recognise an
	// event that a producer or relay sends again, because the second record has another offset.
	PositionAsID MissingID = "position"
)

// positionHeader has the first position of a record that was a dead letter and was sent back.
const positionHeader = "walpost.dead.position"

// firstPosition returns the position in positionHeader if it is one of this topic, or of the topic that
// Scope names, and "" otherwise. A service can have forwarded the headers to another topic, in several
// records. As an id, the position would make them one event.
func (m Message) firstPosition() string {
	at := m.Header(positionHeader)
	if strings.HasPrefix(at, "position:"+m.Topic+"/") || strings.HasPrefix(at, "position:"+m.scope()+"/") {
		return at
	}
	return ""
}

// WithID returns the message with an id. If the message has none, p decides. The error is an
// *IDError.
func (m Message) WithID(p MissingID) (Message, error) {
	if m.ID == "" && p == PositionAsID { // the time, because a topic that is created again has the same offsets
		m.ID = cmp.Or(m.firstPosition(), fmt.Sprintf("position:%s/%d/%d@%d", m.Topic, m.Partition, m.Offset, m.Time.UnixMilli()))
	}
	return m, m.check()
}

// scope returns what the id is unique in.
func (m Message) scope() string { return cmp.Or(m.Scope, m.Topic) }

// check returns an *IDError if the message cannot be marked.
func (m Message) check() error {
	reason := ""
	switch scope := m.scope(); {
	case m.ID == "":
		reason = "the message has no event id"
	case len(m.ID) > maxID:
		reason = fmt.Sprintf("the event id has %d bytes, but at most %d are allowed", len(m.ID), maxID)
	case !isText(m.ID):
		reason = fmt.Sprintf("the event id %q is not valid text: it has a zero byte or invalid UTF-8", m.ID)
	case scope == "":
		reason = "the message has neither a Topic nor a Scope for its event id"
	case len(scope) > maxScope:
		reason = fmt.Sprintf("the scope of the event id has %d bytes, but at most %d are allowed", len(scope), maxScope)
	case !isText(scope) || !isText(m.Topic):
		reason = fmt.Sprintf("the scope %q or the topic %q is not valid text: it has a zero byte or invalid UTF-8", scope, m.Topic)
	default:
		return nil
	}
	return Permanent(&IDError{m.ID, reason, m.Topic, m.Partition, m.Offset})
}

// The lengths of the longest event id, name of a consumer and scope in bytes. They stand side by
// side in an index, whose entries have at most 2,700 bytes. A topic of Kafka has at most 249.
const (
	maxID    = 1024
	maxScope = 255
)

// An IDError says why a message cannot be marked by its ID and Scope. It is Permanent.
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

// isText reports whether Postgres can store s as text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
