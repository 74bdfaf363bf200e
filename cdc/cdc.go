// Package cdc has the values that flow through walpost: the events that a source reads, the records
// that a router makes from them, and the acknowledgements of a sink.
//
// It imports no other package of walpost and knows neither Kafka nor Debezium. Each type says how
// long its bytes are valid.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package cdc

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A Kind is the kind of an Event.
type Kind uint8

// The kinds of Event. A transaction is a Begin, any number of Insert, Update, Delete and Message,
// and a Commit. Only committed transactions arrive, whole, one after the
// other, in commit order. An Idle can arrive anywhere.
const (
	// Idle means that nothing arrived for a while, or that the source reported its position. A Pos
	// above 0 is an empty transaction that ends there: all events before Pos have arrived. Between
	// Begin and Commit, Pos is 0.
	Idle Kind = iota + 1
	// Begin starts a transaction. Pos is where its commit record is, which identifies the transaction
	// in the source's timeline. It is smaller than the Pos of its Commit. Time is the commit time.
	Begin
	// Insert is one new row, in Row.
	Insert
	// Update is one changed row: the new values in Row, and the old key or row in Old if the
	// replica identity has it.
	Update
	// Delete is one removed row: its key or old row in Old.
	Delete
	// Message is a logical message that a transaction wrote (pg_logical_emit_message). Row is a row of
	// Messages, which has the message's content.
	Message
	// Commit ends a transaction. Pos is its end, which may be confirmed when this and all earlier
	// transactions are acknowledged. Time is the commit time.
	Commit
)

func (k Kind) String() string {
	switch k {
	case Idle:
		return "idle"
	case Begin:
		return "begin"
	case Insert:
		return "insert"
	case Update:
		return "update"
	case Delete:
		return "delete"
	case Message:
		return "message"
	case Commit:
		return "commit"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// An Event is one change or position that a source read. It and its bytes are valid until the next
// event is read. Its Relation may be kept for ever.
type Event struct {
	Kind Kind
	Pos  Position  // Idle, Begin, Commit: described at each Kind
	Time time.Time // Begin, Commit: commit time, UTC, microseconds. Rows: their transaction's commit time.
	Row  Row       // Insert, Update: the new row. Message: the content
	Old  Row       // Update, Delete: the old key or row; Relation is nil if the server sent none
	// LSN is for the rows and messages of a source that reads the WAL: where their WAL record is. It's for
	// texts only, because it's not unique (rows of one COPY share it), and a stream can't resume from it.
	LSN LSN
	// Claim is for the rows of a source that claims them: the number of the claim.
	Claim uint32
	// WAL is for the Begin of a source whose Pos is a number: the whole transaction is in the server's
	// WAL before it. 0 says that nothing in the WAL matters.
	WAL LSN
}

// Relation is the definition of the event's table, nil for an event without a row.
func (e *Event) Relation() *Relation {
	if e.Row.Relation != nil {
		return e.Row.Relation
	}
	return e.Old.Relation
}

// Clone returns a copy that owns its bytes.
func (e *Event) Clone() *Event {
	c := *e
	c.Row, c.Old = e.Row.clone(), e.Old.clone()
	return &c
}

// clone returns a copy of a row that owns its bytes.
func (r Row) clone() Row {
	size := 0
	for _, v := range r.Values {
		size += len(v.Bytes)
	}
	if len(r.Values) == 0 {
		return r
	}
	buf, values := make([]byte, 0, size), make([]Value, len(r.Values))
	for i, v := range r.Values {
		if v.Bytes != nil {
			at := len(buf)
			buf = append(buf, v.Bytes...)
			v.Bytes = buf[at:len(buf):len(buf)]
		}
		values[i] = v
	}
	return Row{r.Relation, values}
}

// A Row is the values of one row, in the order of Relation.Columns.
type Row struct {
	Relation *Relation
	Values   []Value // len(Values) == len(Relation.Columns)
}

// A Value is one column's value in Postgres' text format, as the pinned settings of the connection
// print it (UTF8, DateStyle ISO, TimeZone UTC, IntervalStyle postgres, extra_float_digits 3,
// bytea_output hex).
type Value struct {
	// Bytes is nil for NULL, and if Unchanged is set. An empty value is an empty slice that is not
	// nil.
	Bytes []byte
	// Unchanged means that the server did not send a TOASTed value, because an UPDATE did not
	// change it.
	Unchanged bool
}

// A Relation is the definition of a table. It is immutable and valid for ever. A changed table gets
// a new Relation, so its pointer can be the key of a cache.
type Relation struct {
	ID              uint32 // the OID
	Schema, Name    string
	ReplicaIdentity byte // 'd' default, 'n' nothing, 'f' full, 'i' index
	Columns         []Column
}

// A Column is one column of a Relation. The fields up to Key come from the stream. The fields from
// NotNull on are filled only on request. They come from the present catalog, and may be newer than
// the row.
type Column struct {
	Name    string
	TypeOID uint32
	TypeMod int32 // atttypmod; -1 for none
	Key     bool  // part of the replica identity

	NotNull       bool   // the column, or the domain that is its type
	KeyPosition   int    // place in the primary key, from 1; 0 for a column that is not in it
	Generated     bool   // GENERATED ALWAYS AS (…), which excludes a default
	Identity      string // "a" for GENERATED ALWAYS AS IDENTITY, "d" for GENERATED BY DEFAULT AS IDENTITY, else ""
	HasDefault    bool
	Default       string   // the default's expression text, as pg_get_expr prints it
	TypeName      string   // as format_type prints it; from a Type message if the stream sent one
	BaseType      uint32   // of a domain: the type below, else 0
	BaseTypeMod   int32    // the typmod of the type below all domains; TypeMod if the type is not a domain
	BaseName      string   // pg_type.typname of the type, or of the one below all domains: int4, _text, citext
	ElementType   uint32   // of an array, or a domain over one: the type of its elements, else 0
	ElementName   string   // pg_type.typname of ElementType
	EnumLabels    []string // of an enum, or a domain over one: in order
	ElementLabels []string // of an array of an enum, or a domain over one: in order
}

// Index returns the index of the column called name, or -1.
func (r *Relation) Index(name string) int {
	return slices.IndexFunc(r.Columns, func(c Column) bool { return c.Name == name })
}

// String is the relation as schema.name, unquoted. It is "" for nil.
func (r *Relation) String() string {
	switch {
	case r == nil:
		return ""
	case r.OfMessages():
		return r.Name
	}
	return r.Schema + "." + r.Name
}

// Messages stands for the table of logical messages with one prefix: they are in no table, but all
// that walpost says and keeps of an event names its table. The one column is the content, as the
// bytes that the server sent and not in Postgres' text format.
func Messages(prefix string) *Relation {
	const oidBytea = 17
	return &Relation{Name: messagesName + prefix, Columns: []Column{{Name: "content", TypeOID: oidBytea, TypeMod: -1, TypeName: "bytea"}}}
}

// MessagesWithOrigin is Messages with two more columns: the id of the transaction that wrote the
// message, and the end of the transaction before it, or where the stream began.
func MessagesWithOrigin(prefix string) *Relation {
	const oidText = 25
	r := Messages(prefix)
	for _, name := range []string{messageTransaction, messageBefore} {
		r.Columns = append(r.Columns, Column{Name: name, TypeOID: oidText, TypeMod: -1, TypeName: "text"})
	}
	return r
}

// The columns of MessagesWithOrigin that follow the content.
const (
	messageTransaction = "transaction"
	messageBefore      = "before"
)

// MessagePrefix is the prefix of the messages that r stands for.
func (r *Relation) MessagePrefix() string { return strings.TrimPrefix(r.Name, messagesName) }

const messagesName = "messages:"

// OfMessages reports whether r stands for logical messages. Every table has a schema.
func (r *Relation) OfMessages() bool { return r.Schema == "" }

// A Record is a record for a sink. It owns its bytes, which must not change.
type Record struct {
	Topic     string
	Partition int32  // -1 if the key decides (murmur2, as in Kafka's Java client)
	Key       []byte // nil is a null key, which is not the same as an empty one
	Value     []byte // nil is a null value: a tombstone
	Headers   []Header
	Time      time.Time // of millisecond precision in Kafka; the same at every redelivery
	// Committed is the commit time of the row's transaction, from which the latency counts. It is
	// not delivered.
	Committed time.Time
	// EventID is the event id column as text. It names the event in errors, logs and the
	// checkpoint. It may share the record's bytes, so code that keeps it longer than the record
	// must clone it.
	EventID string
	// Claim is the payload that a store must have before the record is delivered. It is nil for most
	// records. Value refers to it.
	Claim *Claim
}

// Waits reports whether the record must not be delivered yet, because the store lacks its payload.
func (r *Record) Waits() bool { return r.Claim != nil && !r.Claim.IsStored() }

// A Claim is a payload for a store. Records that refer to one payload, such as an event and its dead
// letter, share it.
type Claim struct {
	Key     string
	Payload []byte // of who stores it, once the record is sent; then it is nil here
	Size    int    // of the payload
	stored  atomic.Bool
}

// Stored says that the store has the payload.
func (c *Claim) Stored() { c.stored.Store(true) }

// IsStored reports whether the store has the payload.
func (c *Claim) IsStored() bool { return c.stored.Load() }

// A Header is one header of a Record. A nil Value is a null header.
type Header struct {
	Key   string
	Value []byte
}

// recordOverhead is the size that Size adds to a record's bytes, for Kafka's record format and
// walpost's bookkeeping.
const recordOverhead = 70

// Size is the number of bytes that a record takes of a window: topic, key, value, headers, the
// payload for a store and a fixed overhead.
func (r *Record) Size() int {
	n := recordOverhead + len(r.Topic) + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 4 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	if r.Claim != nil {
		n += r.Claim.Size
	}
	return n
}

// A Ticket identifies one delivery for the tracker (Tx and Size) and the event that is delivered. A
// sink does not change it.
type Ticket struct {
	Tx     uint64
	Size   uint32
	Row    uint32   // number of the event in its transaction, or in the copy, from 1
	Commit Position // of the commit record of the event's transaction; 0 for a row that was read from the table
	Table  *Relation
}

// An Ack is the end of one delivery.
type Ack struct {
	Ticket Ticket
	// Err is nil if the broker has acknowledged the record. Otherwise the broker has refused this
	// record for ever: Err is a *Refusal then, unless the record was taken back (ErrTakenBack) or the
	// sink cannot write at all. The sink retries other errors, and gives no Ack for them.
	Err error
	// Record is what was refused or taken back. If Err is nil, it is nil too, unless the sink was told that
	// somebody observes deliveries. Then it is what was delivered.
	Record *Record
	// EventID shares memory with the record if Err is nil. Copy it to keep it.
	EventID, Topic string
	// Partition is the one that the record was delivered to, or that is closed behind a refused one.
	// It is -1 if the record had none yet.
	Partition int32
	// Offset is that of the delivered Record, or -1 if the broker did not tell it. It is set beside Record.
	Offset int64
	// Latency is the time from Record.Committed to the acknowledgement by this machine's clock. It
	// is never negative.
	Latency time.Duration
}
