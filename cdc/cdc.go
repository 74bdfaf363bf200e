// Package cdc holds the words of the flow: what a source reads, what a router makes of it, and what a sink delivers.
//
// It imports none of walpost's other packages and knows neither Kafka nor Debezium. Everything here is a plain value;
// each type says how long its bytes live and who may keep them.
package cdc

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Position is a place in one source's history. Positions of one source are ordered; positions of two sources (another
// system identifier, a timeline that forked) must not be compared. For Postgres it is an LSN in bytes.
type Position uint64

// String prints a Position as Postgres prints an LSN: "16/B374D848". The zero Position is "0/0".
func (p Position) String() string { return fmt.Sprintf("%X/%X", uint32(p>>32), uint32(p)) }

// ParsePosition reads what String prints, and what Postgres prints elsewhere: small letters, leading zeros. Each half has one to
// eight digits, as in the server's own pg_lsn_in.
func ParsePosition(s string) (Position, error) {
	high, low, ok := strings.Cut(s, "/")
	if ok && len(high) <= 8 && len(low) <= 8 {
		hi, errHigh := strconv.ParseUint(high, 16, 32)
		lo, errLow := strconv.ParseUint(low, 16, 32)
		if errHigh == nil && errLow == nil {
			return Position(hi)<<32 | Position(lo), nil
		}
	}
	return 0, fmt.Errorf("%q is not an LSN (two hexadecimal numbers, as in 16/B374D848)", s)
}

// MarshalText gives the text of String: in JSON a Position is text, since a number loses its low bits in many readers.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParsePosition reads.
func (p *Position) UnmarshalText(text []byte) error {
	v, err := ParsePosition(string(text))
	if err != nil {
		return err
	}
	*p = v
	return nil
}

// Kind says what an Event is.
type Kind uint8

// The kinds of Event. Within a session they arrive as: Idle anywhere, else Begin, any number of Insert, Update, Delete
// and transactional Message, then Commit. Transactions arrive whole, one after another, in commit order, committed ones only.
const (
	// Idle says that nothing arrived for a while, or that the source reported its position. Pos 0 says nothing about
	// positions. Pos > 0 is an empty transaction that ends there: everything before Pos has been handed over already.
	// Inside a transaction (between Begin and Commit) an Idle always has Pos 0.
	Idle Kind = iota + 1
	// Begin starts a transaction. Pos is the LSN of its commit record (smaller than the end LSN that its Commit carries);
	// it names the transaction within its source's timeline. Time is its commit time.
	Begin
	// Insert is one new row, in Row.
	Insert
	// Update is one changed row: the new values in Row, the old key or row in Old where the replica identity gives it.
	Update
	// Delete is one removed row: its key or old row in Old.
	Delete
	// Message is a logical message (pg_logical_emit_message) in Msg. A non-transactional one arrives outside transactions.
	Message
	// Commit ends a transaction. Pos is its end LSN: the position that may be confirmed, as it is, once the transaction and
	// everything before it is acknowledged. Time is the commit time.
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

// An Event is one thing that a source read. It and all bytes it refers to are valid until the next event is read;
// its Relation may be kept for ever.
type Event struct {
	Kind Kind
	// Pos is described at each Kind. For Insert, Update, Delete and Message it is the LSN of the WAL record, for error
	// messages only: it is neither unique nor a position to resume from (rows of one COPY share it).
	Pos  Position
	Time time.Time // Begin, Commit: commit time, UTC, microseconds. Rows: their transaction's commit time.
	XID  uint32    // Begin: the transaction id
	Row  Row       // Insert, Update: the new row
	Old  Row       // Update, Delete: the old key or row; Relation nil where the server sent none
	Msg  LogicalMessage
}

// A Row is the values of one row, in the order of Relation.Columns.
type Row struct {
	Relation *Relation
	Values   []Value // len(Values) == len(Relation.Columns)
}

// A Value is one column's value in Postgres' text format, as the pinned settings of the connection print it (UTF8,
// DateStyle ISO, TimeZone UTC, IntervalStyle postgres, extra_float_digits 3, bytea_output hex).
type Value struct {
	// Bytes is nil for NULL, and also where Unchanged is set. An empty value is an empty slice that is not nil.
	Bytes []byte
	// Unchanged says that the server did not send a TOASTed value because an UPDATE did not change it.
	Unchanged bool
}

// A Relation is a table as it was when a row was written, at best. It is immutable: a changed table gives a new Relation,
// so its pointer can be used as a key for what was computed from it. It stays valid for ever.
type Relation struct {
	ID              uint32 // the OID
	Schema, Name    string
	ReplicaIdentity byte // 'd' default, 'n' nothing, 'f' full, 'i' index
	Columns         []Column
}

// A Column is one column of a Relation. The fields up to Key come from the stream; those from NotNull on come from the
// catalog and are filled only when the source was asked for it (they are the catalog's newest state, not as of the LSN).
type Column struct {
	Name    string
	TypeOID uint32
	TypeMod int32 // atttypmod; -1 for none
	Key     bool  // part of the replica identity

	NotNull       bool // the column, or the domain that is its type
	PrimaryKey    bool // part of the primary key
	KeyPosition   int  // place in the primary key, from 1; 0 for a column that is not in it
	Generated     bool // GENERATED ALWAYS AS (…); it has no default then
	HasDefault    bool
	Default       string   // the default's expression text, as pg_get_expr prints it
	TypeName      string   // as format_type prints it; from a Type message where the stream sent one
	BaseType      uint32   // of a domain: the type below, else 0
	BaseTypeMod   int32    // the typmod of the type below all domains: TypeMod where the type is none
	BaseName      string   // pg_type.typname of the type, or of the one below all domains: int4, _text, citext
	ElementType   uint32   // of an array, or a domain over one: the type of its elements, else 0
	ElementName   string   // pg_type.typname of ElementType
	EnumLabels    []string // of an enum, or a domain over one: in order
	ElementLabels []string // of an array of an enum, or a domain over one: in order
}

// Index returns the index of the column called name, or -1.
func (r *Relation) Index(name string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// String is the relation as schema.name, unquoted.
func (r *Relation) String() string { return r.Schema + "." + r.Name }

// A LogicalMessage is what pg_logical_emit_message wrote.
type LogicalMessage struct {
	Prefix        string
	Content       []byte
	Transactional bool
}

// A Record is what a sink delivers. It owns its bytes: nobody changes them after it was handed over.
type Record struct {
	Topic     string
	Partition int32  // -1: chosen by the key (murmur2, as Kafka's Java client does)
	Key       []byte // nil is a null key, which is not the same as an empty one
	Value     []byte // nil is a null value: a tombstone
	Headers   []Header
	Time      time.Time // of millisecond precision in Kafka; the same at every redelivery
	// Committed is the commit time of the row's transaction: where its latency counts from. It is not delivered.
	Committed time.Time
	// EventID names the event in errors, logs and the checkpoint: the event id column as text. Never interpreted. It may be
	// a part of the record's other bytes, so code that keeps it longer than the record must clone it.
	EventID string
}

// A Header is one header of a Record. A nil Value is a null header.
type Header struct {
	Key   string
	Value []byte
}

// RecordOverhead is what Size counts for each record beside its own bytes: about what Kafka's record format and walpost's
// bookkeeping add.
const RecordOverhead = 70

// Size is the number of bytes that a record is counted with against a window: key, value, headers and a fixed overhead.
func (r *Record) Size() int {
	n := RecordOverhead + len(r.Topic) + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 4 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// A Ticket names one delivery for the tracker that counted it, by Tx and Size, and says which event was delivered. It is carried
// through a sink untouched.
type Ticket struct {
	Tx     uint64
	Size   uint32
	Row    uint32    // number of the event in its transaction, or in the reading of the table, from 1
	Commit Position  // of the commit record of the event's transaction; 0 for a row that was read from the table
	Table  *Relation // nil for a message
}

// An Ack is the end of one delivery.
type Ack struct {
	Ticket Ticket
	// Err is nil for a record that the broker has acknowledged. Otherwise the record alone was refused for good (poison);
	// whatever can pass is waited out by the sink and gives no Ack. EventID and Topic are set only with Err.
	Err            error
	EventID, Topic string
	// Latency is from the commit (Record.Committed) to the acknowledgement by this machine's clock; never negative.
	Latency time.Duration
}
