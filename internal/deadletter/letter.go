// Package deadletter has the form of a dead letter: the record that holds an event which, alone,
// could not be routed or delivered. Encode makes the record, Decode reads it, and a Fold is what
// all records of a topic say together.
//
// It is pure: it knows neither clients nor clocks.
package deadletter

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
)

// A Form says what a letter holds.
type Form string

// The forms.
const (
	FormRecord Form = "record" // the record as it would have been delivered
	FormRow    Form = "row"    // the row, of which no record could be made
)

// A Letter is one bad event.
type Letter struct {
	Token      string // names the event; the same event can be written twice
	Reason     cdc.Reason
	Error      string // cut to maxError bytes
	Table      string // "" if it is not known
	ID         string // the event id, "" for none
	Commit     cdc.Position
	Row        int       // number of the event in its transaction, from 1; 0 with Commit 0, for a row of the table
	CommitTime time.Time // of the event's transaction
	Topic      string    // the topic that the event was meant for, "" if it is not known
	Partition  int32     // the partition that the event asked for, or -1
	Attempts   int       // deliveries that failed, from 1
	Version    string    // of the walpost that wrote the letter

	// The relay that wrote the letter, and its database.
	Name, Database string

	// Of a parked event only.
	SystemID string // of the database's server
	Timeline uint32 // that the event was written on; 0 for a row of the table
	TableID  uint32 // the table's OID, which stays the same when the table is renamed
	First    int64  // offset of the event's first letter, in its later ones

	// Of the letter of a consumer only. Topic, Partition and CommitTime are those of the message.
	Group   string    // the consumer group
	Offset  int64     // of the message
	Stack   string    // of a panic
	Start   string    // the message's first position as the consumer writes it
	Written time.Time // when this letter was written

	// Key is the key that the event was meant to have. KeyKnown is false if it could not be found.
	Key      []byte
	KeyKnown bool

	// Exactly one of these is set, and says the form. Record has no other key, topic and partition
	// than the letter. Event owns its bytes.
	Record *cdc.Record
	Event  *cdc.Event
}

// Form is what the letter holds.
func (l *Letter) Form() Form {
	if l.Event != nil {
		return FormRow
	}
	return FormRecord
}

// IsOf reports whether a relay wrote the letter. database is "" if it is not known.
func (l *Letter) IsOf(name, database string) bool {
	return l.Name == name && (database == "" || l.Database == database)
}

// Relay names the relay for an operator.
func (l *Letter) Relay() string { return l.Name + ", database " + l.Database }

// Behind is the reason of a parked event that is not bad itself: an earlier event of its key is.
const Behind cdc.Reason = "behind"

// A Mark says what became of the letters with a token that are before it in their partition. One of
// consumers leaves out those that its command had not read: see Entry.Marks. A mark in the topic of parked events also names the relay, the table and the key.
type Mark struct {
	Token string
	State State // not Open
	Why   string
	Time  time.Time

	Name, Table string
	Key         []byte   // of the record; only Decode sets it
	Offset      int64    // of Trimmed, or of the first letter that a mark of consumers is not for; 0 for none
	Tokens      []string // of Released: all the events that were delivered
}

// maxError bounds Letter.Error, so that a letter is hardly larger than its record.
const maxError = 2 << 10

// The headers. Those of a letter follow the record's own headers. The last one says how many they
// are, because the record's own headers can have the same names.
const (
	prefix       = "walpost.dead."
	hToken       = prefix + "token"
	hReason      = prefix + "reason"
	hError       = prefix + "error"
	hTable       = prefix + "table"
	hID          = prefix + "id"
	hCommit      = prefix + "commit_lsn"
	hRow         = prefix + "row"
	hCommitTime  = prefix + "commit_time"
	hTopic       = prefix + "topic"
	hPartition   = prefix + "partition"
	hTime        = prefix + "timestamp" // of the record: milliseconds since 1970
	hKey         = prefix + "key"       // absent if the letter's key is the record's
	hAttempts    = prefix + "attempts"
	hVersion     = prefix + "version"
	hForm        = prefix + "form"
	hMark        = prefix + "mark"
	hWhy         = prefix + "why"
	hMarkTime    = prefix + "time"
	hName        = prefix + "name"
	hDatabase    = prefix + "database"
	hSystemID    = prefix + "system_id"
	hTimeline    = prefix + "timeline"
	hTableID     = prefix + "table_id"
	hFirst       = prefix + "first"
	hOffset      = prefix + "offset" // of Mark.Offset, or of a consumer's message
	hCount       = prefix + "headers"
	keyIsNull    = "null"
	keyIsUnknown = "unknown"
)

// Encode returns the record of a letter for the dead letter topic. A letter without a key has
// its token as the key of the record, so that its mark comes into the same partition.
//
// The time of the record is the commit time, because the brokers can refuse an event because of its
// own time.
func (l *Letter) Encode(topic string) (*cdc.Record, error) {
	rec := &cdc.Record{Topic: topic, Partition: -1, Key: l.Key, Time: l.CommitTime.Truncate(time.Millisecond), Committed: l.CommitTime, EventID: l.ID}
	key := ""
	switch {
	case !l.KeyKnown:
		rec.Key, key = []byte(l.Token), keyIsUnknown
	case l.Key == nil:
		rec.Key, key = []byte(l.Token), keyIsNull
	}
	meta := headers{{hToken, l.Token}, {hReason, string(l.Reason)}, {hError, clip(l.Error, maxError)}, {hTable, l.Table}, {hID, l.ID}}
	if l.Commit != 0 {
		meta = append(meta, header{hCommit, l.Commit.String()}, header{hRow, strconv.Itoa(l.Row)})
	}
	meta = append(meta, header{hCommitTime, l.CommitTime.UTC().Format(time.RFC3339Nano)}, header{hTopic, l.Topic})
	if l.Partition >= 0 {
		meta = append(meta, header{hPartition, strconv.Itoa(int(l.Partition))})
	}
	if l.Form() == FormRecord {
		rec.Value, rec.Headers, rec.Claim = l.Record.Value, slices.Clip(l.Record.Headers), l.Record.Claim
		meta = append(meta, header{hTime, strconv.FormatInt(max(0, l.Record.Time.UnixMilli()), 10)})
	} else {
		var err error
		if rec.Value, err = encodeEvent(l.Event); err != nil {
			return nil, err
		}
	}
	meta = append(meta, header{hName, l.Name}, header{hDatabase, l.Database}, header{hSystemID, l.SystemID}, header{hTimeline, number(uint64(l.Timeline))},
		header{hTableID, number(uint64(l.TableID))}, header{hFirst, number(uint64(l.First))})
	meta = append(meta, header{hKey, key}, header{hAttempts, strconv.Itoa(max(l.Attempts, 1))}, header{hVersion, l.Version}, header{hForm, string(l.Form())})
	rec.Headers = meta.addTo(rec.Headers)
	return rec, nil
}

// Encode returns the record of a mark. key and partition are those of the letter's record.
func (m *Mark) Encode(topic string, key []byte, partition int32) *cdc.Record {
	meta := headers{
		{hMark, string(m.State)},
		{hToken, m.Token},
		{hWhy, m.Why},
		{hMarkTime, m.Time.UTC().Format(time.RFC3339Nano)},
		{hName, m.Name},
		{hTable, m.Table},
		{hOffset, number(uint64(m.Offset))},
	}
	return &cdc.Record{
		Topic: topic, Partition: partition, Key: key, Value: []byte(strings.Join(m.Tokens, "\n")), Headers: meta.addTo(nil),
		Time: m.Time.Truncate(time.Millisecond), Committed: m.Time, EventID: m.Token,
	}
}

// Cause returns the reason of a letter that Encode made, and its error. The reason is "" for any other record.
func Cause(rec *cdc.Record) (reason cdc.Reason, why string) {
	last := len(rec.Headers) - 1
	if last < 0 || rec.Headers[last].Key != hCount {
		return "", ""
	}
	for _, h := range rec.Headers { // the last ones are walpost's own
		switch h.Key {
		case hReason:
			reason = cdc.Reason(h.Value)
		case hError:
			why = string(h.Value)
		}
	}
	return reason, why
}

// ErrForeign says that a record is neither a letter nor a mark.
var ErrForeign = errors.New("the record is not a dead letter of walpost")

// Decode reads a record of the dead letter topic, which is a letter or a mark. They share the
// record's bytes.
func Decode(rec *kgo.Record) (*Letter, *Mark, error) {
	meta, original, ok := split(rec.Headers)
	if !ok {
		return nil, nil, ErrForeign
	}
	r := reader{meta: meta}
	if state, ok := meta.get(hMark); ok {
		m := &Mark{
			Token: r.text(hToken), State: State(state), Why: r.text(hWhy), Time: r.time(hMarkTime),
			Name: r.text(hName), Table: r.text(hTable), Key: rec.Key, Offset: r.number(hOffset, 0, math.MaxInt64),
		}
		if m.State == Released {
			m.Tokens = strings.Split(string(rec.Value), "\n")
		}
		if !slices.Contains(marks, m.State) {
			r.fail(hMark, errors.New("unknown mark"))
		}
		if r.err != nil {
			return nil, nil, r.err
		}
		return nil, m, nil
	}
	l := &Letter{
		Token: r.text(hToken), Reason: cdc.Reason(r.text(hReason)), Error: r.text(hError), Table: r.text(hTable), ID: r.text(hID),
		CommitTime: r.time(hCommitTime), Topic: r.text(hTopic), Partition: int32(r.number(hPartition, -1, math.MaxInt32)), Version: r.text(hVersion),
		Attempts: int(r.number(hAttempts, 1, math.MaxInt32)), Row: int(r.number(hRow, 0, math.MaxInt32)), Key: rec.Key, KeyKnown: true,
		Name: r.text(hName), Database: r.text(hDatabase), SystemID: r.text(hSystemID), Timeline: uint32(r.number(hTimeline, 0, math.MaxUint32)),
		TableID: uint32(r.number(hTableID, 0, math.MaxUint32)), First: r.number(hFirst, 0, math.MaxInt64),
	}
	if text, ok := meta.get(hCommit); ok {
		var err error
		l.Commit, err = cdc.ParsePosition(text)
		r.fail(hCommit, err)
	}
	switch text, _ := meta.get(hKey); text {
	case "":
	case keyIsNull:
		l.Key = nil
	case keyIsUnknown:
		l.Key, l.KeyKnown = nil, false
	default:
		r.fail(hKey, errors.New("unknown word"))
	}
	switch Form(r.text(hForm)) {
	case FormRecord:
		l.Record = &cdc.Record{
			Topic: l.Topic, Partition: l.Partition, Key: l.Key, Value: rec.Value, Headers: original,
			Time: time.UnixMilli(r.number(hTime, 0, math.MaxInt64/1_000_000)).UTC(), Committed: l.CommitTime, EventID: l.ID,
		}
	case FormRow:
		var err error
		l.Event, err = decodeEvent(rec.Value)
		r.fail("value", err)
	default:
		r.fail(hForm, errors.New("unknown form"))
	}
	if l.Token == "" || l.Attempts < 1 {
		r.fail(hToken, errors.New("no token, or no attempt"))
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	return l, nil, nil
}

// Owned copies a record with its bytes, for a letter that outlives the record.
func Owned(rec *kgo.Record) *kgo.Record {
	c := *rec
	c.Key, c.Value, c.Headers = slices.Clone(rec.Key), slices.Clone(rec.Value), slices.Clone(rec.Headers)
	for i := range c.Headers {
		c.Headers[i].Value = slices.Clone(c.Headers[i].Value)
	}
	return &c
}

type header struct{ key, value string }

type headers []header

// addTo adds the headers that have a value to those of a record, and how many they are.
func (hs headers) addTo(to []cdc.Header) []cdc.Header {
	hs = slices.DeleteFunc(hs, func(h header) bool { return h.value == "" })
	for _, h := range append(hs, header{hCount, strconv.Itoa(len(hs) + 1)}) {
		to = append(to, cdc.Header{Key: h.key, Value: []byte(h.value)})
	}
	return to
}

// split parts walpost's own headers from the record's. It reports whether there are any.
func split(all []kgo.RecordHeader) (meta headers, original []cdc.Header, ok bool) {
	if len(all) == 0 || all[len(all)-1].Key != hCount {
		return nil, nil, false
	}
	n, err := strconv.Atoi(string(all[len(all)-1].Value))
	if err != nil || n < 2 || n > len(all) {
		return nil, nil, false
	}
	at := len(all) - n
	for _, h := range all[at : len(all)-1] {
		if !strings.HasPrefix(h.Key, prefix) {
			return nil, nil, false
		}
		meta = append(meta, header{h.Key, string(h.Value)})
	}
	for _, h := range all[:at] {
		original = append(original, cdc.Header{Key: h.Key, Value: h.Value})
	}
	return meta, original, true
}

func (hs headers) get(key string) (value string, ok bool) {
	i := slices.IndexFunc(hs, func(h header) bool { return h.key == key })
	if i < 0 {
		return "", false
	}
	return hs[i].value, true
}

// A reader reads headers and keeps the first error.
type reader struct {
	meta headers
	err  error
}

func (r *reader) fail(what string, err error) {
	if err != nil {
		r.err = cmp.Or(r.err, fmt.Errorf("dead letter: %s: %w", what, err))
	}
}

func (r *reader) text(key string) string {
	text, _ := r.meta.get(key)
	return text
}

// number reads a number from 0 to limit.
func (r *reader) number(key string, missing, limit int64) int64 {
	text, ok := r.meta.get(key)
	if !ok {
		return missing
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (n < 0 || n > limit) {
		err = fmt.Errorf("%d is not from 0 to %d", n, limit)
	}
	r.fail(key, err)
	return n
}

func (r *reader) time(key string) time.Time {
	text := r.text(key)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	r.fail(key, err)
	return t.UTC()
}

// number is the text of n, and none for 0.
func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// clip cuts a text to at most n bytes, between two characters.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
