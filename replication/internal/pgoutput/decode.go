// Package pgoutput decodes the messages of Postgres' output plugin pgoutput into events, and puts the events into the order in which
// they were written. It has no connection and no clock.
package pgoutput

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/logicalmsg"
)

// A Decoder turns pgoutput messages (protocol version 1, text) into events. It enforces the protocol's order: a row
// outside a transaction, a row of an unknown relation, a commit that does not belong to its begin are errors, since each
// of them means that something was missed.
//
// It must be used by one goroutine at a time. Nothing is allocated per row or column; the values of an event are slices
// of the message that it was decoded from. pglogrepl's decoder copies each column (BenchmarkRow) and panics on a message that
// is cut short.
//
// The message formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
type Decoder struct {
	// fill completes a relation from the catalog before its first row. Nil: there is nothing to complete.
	fill func(*cdc.Relation) error
	// messages says which logical messages are events.
	messages Messages

	relations map[uint32]*cdc.Relation
	unused    map[uint32]*cdc.Relation // described since their last row, and not completed yet
	types     map[uint32]string        // names by OID, from Type messages
	newest    *cdc.Relation            // of the newest row: spares the lookup

	InTx      bool      // a transaction is open
	CommitLSN cdc.LSN   // of the open transaction, from its Begin
	commitAt  time.Time // likewise
	xid       uint32    // likewise
	Ended     cdc.LSN   // where the newest finished transaction ended, or where the stream began

	ev          cdc.Event   // reused
	values, old []cdc.Value // reused
}

// NewDecoder returns a decoder for a stream that starts at start.
func NewDecoder(start cdc.LSN, fill func(*cdc.Relation) error, m Messages) *Decoder {
	return &Decoder{
		fill:      fill,
		messages:  m,
		relations: make(map[uint32]*cdc.Relation),
		unused:    make(map[uint32]*cdc.Relation),
		types:     make(map[uint32]string),
		Ended:     start,
	}
}

// errShort is a message that ends before its content does.
var errShort = errors.New("message is cut short")

// Decode decodes one message that was sent with the position pos. It returns nil for messages that give no event. The
// event and everything in it but its relations is valid until the next call, and as long as msg is not overwritten.
func (d *Decoder) Decode(msg []byte, pos cdc.LSN) (*cdc.Event, error) {
	if len(msg) == 0 {
		return nil, fmt.Errorf("decode pgoutput at %s: empty message", pos)
	}
	d.ev = cdc.Event{LSN: pos}
	m := cursor{b: msg[1:]}
	ok, err := d.message(msg[0], &m)
	if err == nil {
		err = m.finish()
	}
	if err != nil {
		return nil, fmt.Errorf("decode pgoutput message %q at %s: %w", msg[0], pos, err)
	}
	if !ok {
		return nil, nil
	}
	return &d.ev, nil
}

// Idle is an Idle at pos, in place of the newest event.
func (d *Decoder) Idle(pos cdc.LSN) *cdc.Event {
	d.ev = cdc.Event{Kind: cdc.Idle, Pos: pos.Position()}
	return &d.ev
}

// Release forgets the newest event, so that the message that it was decoded from can be freed.
func (d *Decoder) Release() {
	d.ev = cdc.Event{}
	clear(d.values[:cap(d.values)])
	clear(d.old[:cap(d.old)])
}

func (d *Decoder) message(kind byte, m *cursor) (bool, error) {
	switch kind {
	case 'B':
		return true, d.begin(m)
	case 'I':
		return true, d.write(cdc.Insert, m)
	case 'C':
		return true, d.commit(m)
	case 'U':
		return true, d.write(cdc.Update, m)
	case 'D':
		return true, d.delete(m)
	case 'R':
		return false, d.relation(m)
	case 'Y':
		oid, schema, name := m.uint32(), m.text(), m.text()
		if !m.short {
			d.types[oid] = typeName(schema, name)
		}
		return false, nil
	case 'M':
		return d.logical(m)
	case 'T', 'O': // A Truncate has no rows, and nobody needs an Origin.
		m.b = nil
		return false, nil
	}
	return false, errors.New("unknown kind of message")
}

func (d *Decoder) begin(m *cursor) error {
	lsn, at := cdc.LSN(m.uint64()), timestamp(m.uint64())
	xid := m.uint32()
	switch {
	case m.short:
		return errShort
	case d.InTx:
		return fmt.Errorf("begin within the transaction that commits at %s", d.CommitLSN)
	case lsn < d.Ended || lsn > cdc.MaxLSN:
		return fmt.Errorf("a transaction that commits at %s, before %s, where the previous transaction ended", lsn, d.Ended)
	}
	d.InTx, d.xid, d.CommitLSN, d.commitAt = true, xid, lsn, at
	d.ev = cdc.Event{Kind: cdc.Begin, Pos: lsn.Position(), Time: at}
	return nil
}

func (d *Decoder) commit(m *cursor) error {
	flags, lsn, end, at := m.byte(), cdc.LSN(m.uint64()), cdc.LSN(m.uint64()), timestamp(m.uint64())
	switch {
	case m.short:
		return errShort
	case flags != 0:
		return fmt.Errorf("unknown commit flags %#x", flags)
	case !d.InTx:
		return fmt.Errorf("commit at %s outside a transaction", lsn)
	case lsn != d.CommitLSN:
		return fmt.Errorf("commit at %s of the transaction that was to commit at %s", lsn, d.CommitLSN)
	case end <= lsn || end > cdc.MaxLSN:
		return fmt.Errorf("commit at %s that ends at %s", lsn, end)
	}
	d.InTx, d.Ended = false, end
	d.ev = cdc.Event{Kind: cdc.Commit, Pos: end.Position(), Time: at}
	return nil
}

// write reads an insert or an update. Only an update can have an old row.
func (d *Decoder) write(kind cdc.Kind, m *cursor) error {
	rel, err := d.row(m)
	if err != nil {
		return err
	}
	tag := m.byte()
	if kind == cdc.Update && (tag == 'K' || tag == 'O') {
		if d.old, err = m.tuple(d.old, rel); err != nil {
			return fmt.Errorf("old row: %w", err)
		}
		d.ev.Old = cdc.Row{Relation: rel, Values: d.old}
		tag = m.byte()
	}
	if tag != 'N' {
		return m.badTag(tag)
	}
	if d.values, err = m.tuple(d.values, rel); err != nil {
		return err
	}
	d.ev.Kind, d.ev.Time, d.ev.Row = kind, d.commitAt, cdc.Row{Relation: rel, Values: d.values}
	return nil
}

func (d *Decoder) delete(m *cursor) error {
	rel, err := d.row(m)
	if err != nil {
		return err
	}
	if tag := m.byte(); tag != 'K' && tag != 'O' {
		return m.badTag(tag)
	}
	if d.old, err = m.tuple(d.old, rel); err != nil {
		return fmt.Errorf("old row: %w", err)
	}
	d.ev.Kind, d.ev.Time, d.ev.Old = cdc.Delete, d.commitAt, cdc.Row{Relation: rel, Values: d.old}
	return nil
}

// row reads the OID that starts every message of a row.
func (d *Decoder) row(m *cursor) (*cdc.Relation, error) {
	oid := m.uint32()
	if m.short {
		return nil, errShort
	}
	if !d.InTx {
		return nil, fmt.Errorf("row of relation %d outside a transaction", oid)
	}
	if d.newest != nil && d.newest.ID == oid {
		return d.newest, nil
	}
	if err := d.complete(oid); err != nil {
		return nil, err
	}
	rel := d.relations[oid]
	if rel == nil {
		return nil, fmt.Errorf("row of relation %d, which was not described before", oid)
	}
	d.newest = rel
	return rel, nil
}

// complete takes over the newest description of a relation. One that is the same in all we know keeps its pointer. With
// publish_via_partition_root the server also describes partitions, whose rows come as rows of the root: they are never completed.
func (d *Decoder) complete(oid uint32) error {
	rel := d.unused[oid]
	if rel == nil {
		return nil
	}
	if d.fill != nil {
		if err := d.fill(rel); err != nil {
			return fmt.Errorf("describe %s from the catalog: %w", rel, err)
		}
	}
	delete(d.unused, oid)
	if known := d.relations[oid]; known == nil || !reflect.DeepEqual(known, rel) {
		d.relations[oid] = rel
	}
	return nil
}

// Messages says which logical messages are events. The zero value wants none.
type Messages struct {
	Relations *logicalmsg.Relations
	Beside    bool // rows are events, too
	// outside is told of each selected message that belongs to no transaction. It gives no event.
	Outside func(*cdc.Relation, cdc.LSN)
}

// logical reads a logical message. The server sends a message that is not transactional as soon as it reads its record, so
// also where the transaction that wrote it was rolled back.
func (d *Decoder) logical(m *cursor) (bool, error) {
	flags, lsn, prefix := m.byte(), cdc.LSN(m.uint64()), m.cstring()
	content := m.take(int(m.uint32()))
	switch {
	case m.short:
		return false, errShort
	case flags > 1:
		return false, fmt.Errorf("unknown flags %#x", flags)
	case d.messages.Relations == nil:
		return false, nil
	}
	rel := d.messages.Relations.Of(prefix)
	switch {
	case rel == nil:
		return false, nil
	case flags == 0:
		d.messages.Outside(rel, lsn)
		return false, nil
	case !d.InTx:
		return false, fmt.Errorf("transactional message at %s outside a transaction", lsn)
	}
	d.values = append(d.values[:0], cdc.Value{Bytes: content})
	if len(rel.Columns) > 1 { // cdc.MessagesWithOrigin
		d.values = append(d.values, cdc.Value{Bytes: strconv.AppendUint(nil, uint64(d.xid), 10)}, cdc.Value{Bytes: []byte(d.Ended.String())})
	}
	d.ev.Kind, d.ev.LSN, d.ev.Time, d.ev.Row = cdc.Message, lsn, d.commitAt, cdc.Row{Relation: rel, Values: d.values}
	return true, nil
}

// relation reads a table's description. The server repeats it whenever something about the table may have changed.
func (d *Decoder) relation(m *cursor) error {
	rel := &cdc.Relation{ID: m.uint32(), Schema: m.text(), Name: m.text(), ReplicaIdentity: m.byte()}
	n := int(m.uint16())
	if m.short || n > len(m.b)/minColumn {
		return errShort
	}
	rel.Schema = cmp.Or(rel.Schema, "pg_catalog") // which the protocol writes as nothing
	rel.Columns = make([]cdc.Column, n)
	for i := range rel.Columns {
		flags := m.byte()
		c := cdc.Column{Name: m.text(), TypeOID: m.uint32(), TypeMod: int32(m.uint32()), Key: flags&1 != 0}
		c.TypeName = d.types[c.TypeOID]
		rel.Columns[i] = c
	}
	if m.short {
		return errShort
	}
	d.unused[rel.ID], d.newest = rel, nil
	return nil
}

// minColumn is the least number of bytes that describe a column: flags, an empty name, type and modifier.
const minColumn = 1 + 1 + 4 + 4

// typeName is a type of a Type message as format_type prints it under the default search_path, quotes aside. For a domain
// the server sends the name of its base type.
func typeName(schema, name string) string {
	if schema == "" || schema == "public" {
		return name
	}
	return schema + "." + name
}

// timestamp reads Postgres' microseconds since 2000.
func timestamp(us uint64) time.Time { return time.UnixMicro(int64(us) + epoch).UTC() }

// epoch is where the protocol's time begins: 2000-01-01, in Unix microseconds.
const epoch = 946_684_800_000_000

// A cursor reads a message from front to back. Reading past the end gives zeros and sets short, so that callers need to
// look once, before they believe anything.
type cursor struct {
	b     []byte
	short bool
}

// take returns the next n bytes, or nil.
func (m *cursor) take(n int) []byte {
	if n < 0 || n > len(m.b) {
		m.short, m.b = true, nil
		return nil
	}
	b := m.b[:n:n]
	m.b = m.b[n:]
	return b
}

// uint reads a big-endian number of n bytes.
func (m *cursor) uint(n int) (v uint64) {
	for _, b := range m.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

func (m *cursor) byte() byte     { return byte(m.uint(1)) }
func (m *cursor) uint16() uint16 { return uint16(m.uint(2)) }
func (m *cursor) uint32() uint32 { return uint32(m.uint(4)) }
func (m *cursor) uint64() uint64 { return m.uint(8) }

// cstring reads up to the next zero byte.
func (m *cursor) cstring() []byte {
	b, rest, found := bytes.Cut(m.b, []byte{0})
	m.short, m.b = m.short || !found, rest
	return b
}

func (m *cursor) text() string { return string(m.cstring()) }

func (m *cursor) badTag(tag byte) error {
	if m.short {
		return errShort
	}
	return fmt.Errorf("unknown part %q of a row", tag)
}

// finish reports what is wrong with a message as a whole.
func (m *cursor) finish() error {
	if m.short {
		return errShort
	}
	if len(m.b) > 0 {
		return fmt.Errorf("%d bytes behind its end", len(m.b))
	}
	return nil
}

// tuple reads one row into values, which it returns with as many elements as rel has columns.
func (m *cursor) tuple(values []cdc.Value, rel *cdc.Relation) ([]cdc.Value, error) {
	n := int(m.uint16())
	if m.short {
		return values, errShort
	}
	if n != len(rel.Columns) {
		return values, fmt.Errorf("%d columns in a row of %s, which was described with %d", n, rel, len(rel.Columns))
	}
	if cap(values) < n {
		values = make([]cdc.Value, n)
	}
	values = values[:n]
	b := m.b // a local: this is the one hot loop
	for i := range values {
		if len(b) == 0 {
			return values, errShort
		}
		kind := b[0]
		b = b[1:]
		switch kind {
		case 't':
			if len(b) < 4 {
				return values, errShort
			}
			size := uint64(binary.BigEndian.Uint32(b))
			b = b[4:]
			if size > uint64(len(b)) {
				return values, errShort
			}
			values[i] = cdc.Value{Bytes: b[:size:size]} // not nil, even when empty: b is not nil here
			b = b[size:]
		case 'n':
			values[i] = cdc.Value{}
		case 'u':
			values[i] = cdc.Value{Unchanged: true}
		case 'b':
			return values, fmt.Errorf("binary value in column %s of %s, which was not asked for", rel.Columns[i].Name, rel)
		default:
			return values, fmt.Errorf("unknown kind of value %q in column %s of %s", kind, rel.Columns[i].Name, rel)
		}
	}
	m.b = b
	return values, nil
}
