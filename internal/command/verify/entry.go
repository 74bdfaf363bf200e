package verify

import (
	"encoding/binary"
	"hash/maphash"
	"math"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/relay"
)

// A kind says what an entry is.
type kind uint8

const (
	ofRow     kind = iota // a row of a table
	ofRecord              // a record of a topic
	delivered             // a row with its record
	missing               // a row without a record
)

// The flags of an entry.
const (
	nullKey    uint64 = 1 << iota
	nullValue         // a tombstone
	marked            // the record has the header walpost.origin: a command sent it
	late              // a person had it sent again, whatever its key has got since then
	unroutable        // the router produces no record for the row; keyText says why
	noID              // the event id is NULL
	ranked            // rank is known
	asInserted        // nothing has updated the row since its insert
	leftOut           // source.snapshot leaves the row out
)

// unknown is a time that is not known.
const unknown = math.MinInt64

// An entry is what verify keeps of a row or a record. Texts are for people; digests are compared.
type entry struct {
	kind      kind
	table     uint64 // of a row
	topic     uint64
	partition int32 // of a row: the one that the record should be in, or -1
	offset    int64
	other     int64 // of a duplicate: the offset of the first such record; of a row: that of the last

	key            [16]byte
	value, headers uint64
	whole          uint64 // of a record: everything, the producer's timestamp included

	time  int64 // microseconds: a row's commit time, or a record's timestamp
	stamp int64 // milliseconds, of a row: the timestamp of its record, if a column gives it
	age   int64 // microseconds, of a row: when it was written, as well as it is known
	tx    uint32
	xid   uint64 // of a row that is polled: its transaction, as the relay takes it
	rank  int64  // the value of source.order_column
	flags uint64

	id, keyText []byte // of the entry that was parsed, or of the row or record
}

func (e *entry) has(flag uint64) bool { return e.flags&flag != 0 }

// append appends the entry to b, from which parse reads it.
func (e *entry) append(b []byte) []byte {
	b = append(b, byte(e.kind))
	b = append(b, e.key[:]...)
	for _, v := range []uint64{e.value, e.headers, e.whole} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	for _, v := range []uint64{e.table, e.topic, uint64(e.tx), e.xid, e.flags} {
		b = binary.AppendUvarint(b, v)
	}
	for _, v := range []int64{int64(e.partition), e.offset, e.other, e.time, e.stamp, e.age, e.rank} {
		b = binary.AppendVarint(b, v)
	}
	for _, text := range [][]byte{e.id, e.keyText} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

// parse reads what append wrote. The texts share b.
func (e *entry) parse(b []byte) {
	e.kind = kind(b[0])
	b = b[1+copy(e.key[:], b[1:]):]
	for _, v := range []*uint64{&e.value, &e.headers, &e.whole} {
		*v, b = binary.BigEndian.Uint64(b), b[8:]
	}
	unsigned := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	signed := func() int64 {
		v, n := binary.Varint(b)
		b = b[n:]
		return v
	}
	e.table, e.topic, e.tx, e.xid, e.flags = unsigned(), unsigned(), uint32(unsigned()), unsigned(), unsigned()
	e.partition, e.offset, e.other = int32(signed()), signed(), signed()
	e.time, e.stamp, e.age, e.rank = signed(), signed(), signed(), signed()
	text := func() []byte {
		n := unsigned()
		t := b[:n:n]
		b = b[n:]
		return t
	}
	e.id, e.keyText = text(), text()
}

// maxText bounds the texts of an entry that only people read.
const maxText = 200

// maxID bounds the id of a row, so that its entry fits into a sort. The event of a longer id is not
// found elsewhere.
const maxID = 32 << 10

func cut(text []byte) []byte { return text[:min(len(text), maxText)] }

// A hasher makes digests. They compare only with digests of the same hasher.
type hasher struct {
	seeds [2]maphash.Seed
	hash  maphash.Hash
}

func newHasher() *hasher {
	h := &hasher{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	h.hash.SetSeed(h.seeds[0])
	return h
}

// long is a digest that tells a billion texts apart.
func (h *hasher) long(text []byte) (d [16]byte) {
	binary.BigEndian.PutUint64(d[:], maphash.Bytes(h.seeds[0], text))
	binary.BigEndian.PutUint64(d[8:], maphash.Bytes(h.seeds[1], text))
	return d
}

// short is a digest that tells two texts apart. Null is no text.
func (h *hasher) short(text []byte) uint64 {
	if text == nil {
		return 0
	}
	return maphash.Bytes(h.seeds[0], text)
}

// notOfTheRow are the headers that a row does not decide: where the record comes from, the key before
// an update, and the run of the relay.
func notOfTheRow(name string) bool {
	return name == relay.OriginHeader || name == "__debezium.oldkey" || name == "__debezium.context.runId"
}

// content fills in what a row and a record have in common. It reports whether there is a header "id",
// and its value.
func (h *hasher) content(e *entry, key, value []byte, headers []cdc.Header) (id []byte, found bool) {
	e.key, e.value, e.keyText = h.long(key), h.short(value), cut(key)
	if key == nil {
		e.flags |= nullKey
	}
	if value == nil {
		e.flags |= nullValue
	}
	h.hash.Reset()
	for i := range headers {
		name := headers[i].Key
		switch {
		case name == "id":
			id, found = headers[i].Value, true
		case name == relay.OriginHeader:
			e.flags |= marked
			if relay.Late(string(headers[i].Value)) {
				e.flags |= late
			}
		}
		if !notOfTheRow(name) {
			maphash.WriteComparable(&h.hash, h.short([]byte(name)))
			maphash.WriteComparable(&h.hash, h.short(headers[i].Value))
		}
	}
	e.headers = h.hash.Sum64()
	return id, found
}

// record finishes the entry of a record: whole is of everything that the producer has sent.
func (h *hasher) record(e *entry, headers []cdc.Header) {
	h.hash.Reset()
	_, _ = h.hash.Write(e.key[:]) // it never fails
	for _, n := range []uint64{e.flags & nullKey, e.value, uint64(e.time)} {
		maphash.WriteComparable(&h.hash, n)
	}
	for i := range headers {
		maphash.WriteComparable(&h.hash, h.short([]byte(headers[i].Key)))
		maphash.WriteComparable(&h.hash, h.short(headers[i].Value))
	}
	e.whole = h.hash.Sum64()
}

// same reports whether a record has everything that the router makes of a row.
func same(row, rec *entry) bool { return difference(row, rec) == "" }

// difference names what of a record is not what the router makes of the row, "" if nothing is.
func difference(row, rec *entry) string {
	text := ""
	for _, d := range []struct {
		differs bool
		what    string
	}{
		{row.key != rec.key || row.flags&nullKey != rec.flags&nullKey, "key"},
		{row.value != rec.value, "value"},
		{row.headers != rec.headers, "headers"},
		{row.stamp != unknown && rec.time != unknown && row.stamp != rec.time/1000, "timestamp"},
	} {
		switch {
		case d.differs && text != "":
			text += ", " + d.what
		case d.differs:
			text = d.what
		}
	}
	return text
}
