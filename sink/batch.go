package sink

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A producerID is one that the brokers gave to this sink alone. Under it they take the batches of a partition only in the
// order of their sequence numbers, and each only once.
type producerID struct {
	id    int64
	epoch int16
}

// A batch is what a partition is sent at once. It keeps its producer id and its sequence numbers as long as the brokers may have it:
// then it can be sent again without being written twice.
type batch struct {
	p        *partition
	slots    []*slot
	topic    [16]byte // its id when the batch was sent
	producer producerID
	seq      int32 // of the first record

	wire    []byte // encoded; empty before
	metrics kgo.ProduceBatchMetrics

	tx     bool // it is part of a transaction
	latest bool // of transaction.version 2

	trial bool  // a single record, because a batch with it was refused
	out   bool  // on its way
	head  bool  // when it was sent, every batch before it was acknowledged
	lost  bool  // it may be written, because an attempt had no answer that excludes that
	err   error // of the last answer

	offset int64 // of the first record, once the batch is written; -1 if the broker did not tell it
}

// bytes is the size of the batch without compression, at most.
func (b *batch) bytes() (n int) {
	for _, sl := range b.slots {
		n = bytesOf(n, sl)
	}
	return n
}

// bytesOf is what slots take in a batch, at most.
func bytesOf(total int, sl *slot) int { return max(total, batchHead) + sl.bytes - batchHead }

func nextSeq(seq int32, n int) int32 { return int32((int64(seq) + int64(n)) & math.MaxInt32) }

// A press encodes batches. It is used by one goroutine at a time.
type press struct {
	compressor kgo.Compressor // nil for none
	spare      []byte
	packed     bytes.Buffer
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the batch in Kafka's record format, version 2.
func (e *press) encode(b *batch) {
	first := b.slots[0].rec.Time.UnixMilli()
	newest := first
	into := &b.wire
	if e.compressor != nil {
		into = &e.spare
	}
	wire := slices.Grow((*into)[:0], b.bytes())[:batchHead]
	for i, sl := range b.slots {
		at := sl.rec.Time.UnixMilli()
		newest = max(newest, at)
		wire = appendRecord(wire, sl, at-first, int64(i))
	}
	*into = wire
	plain, codec := len(wire)-batchHead, kgo.CompressionCodecType(0)
	if e.compressor != nil {
		e.packed.Reset()
		packed, used := e.compressor.Compress(&e.packed, wire[batchHead:])
		if used > 0 && len(packed) < plain {
			if codec = used; cap(e.spare) > keptBytes {
				e.spare, wire = nil, nil // a large record is in memory often enough
			}
			wire = append(slices.Grow(b.wire[:0], batchHead+len(packed))[:batchHead], packed...)
		} else {
			e.spare = b.wire
		}
		if cap(e.spare) > keptBytes {
			e.spare = nil
		}
		if e.packed.Cap() > keptBytes {
			e.packed = bytes.Buffer{}
		}
	}
	body := len(wire) - batchHead
	head := wire[:0]
	head = binary.BigEndian.AppendUint64(head, 0)
	head = binary.BigEndian.AppendUint32(head, uint32(batchHead-12+body))
	head = binary.BigEndian.AppendUint32(head, math.MaxUint32) // the leader's epoch, which only brokers know
	head = append(head, 2, 0, 0, 0, 0)                         // the version, and the checksum
	attributes := uint16(codec)
	if b.tx {
		attributes |= 1 << 4
	}
	head = binary.BigEndian.AppendUint16(head, attributes)
	head = binary.BigEndian.AppendUint32(head, uint32(len(b.slots)-1))
	head = binary.BigEndian.AppendUint64(head, uint64(first))
	head = binary.BigEndian.AppendUint64(head, uint64(newest))
	head = binary.BigEndian.AppendUint64(head, uint64(b.producer.id))
	head = binary.BigEndian.AppendUint16(head, uint16(b.producer.epoch))
	head = binary.BigEndian.AppendUint32(head, uint32(b.seq))
	_ = binary.BigEndian.AppendUint32(head, uint32(len(b.slots)))
	binary.BigEndian.PutUint32(wire[17:], crc32.Checksum(wire[21:], castagnoli))
	b.wire = wire
	b.metrics = kgo.ProduceBatchMetrics{
		NumRecords: len(b.slots), UncompressedBytes: plain, CompressedBytes: body, CompressionType: uint8(codec),
	}
}

func appendRecord(dst []byte, sl *slot, delta, i int64) []byte {
	r := &sl.rec
	n := 1 + varintLen(delta) + varintLen(i) + bytesLen(r.Key) + bytesLen(r.Value) + varintLen(int64(len(r.Headers)))
	for k := range r.Headers {
		n += varintLen(int64(len(r.Headers[k].Key))) + len(r.Headers[k].Key) + bytesLen(r.Headers[k].Value)
	}
	dst = binary.AppendVarint(dst, int64(n))
	dst = append(dst, 0)
	dst = binary.AppendVarint(dst, delta)
	dst = binary.AppendVarint(dst, i)
	dst = appendBytes(dst, r.Key)
	dst = appendBytes(dst, r.Value)
	dst = binary.AppendVarint(dst, int64(len(r.Headers)))
	for k := range r.Headers {
		dst = binary.AppendVarint(dst, int64(len(r.Headers[k].Key)))
		dst = append(dst, r.Headers[k].Key...)
		dst = appendBytes(dst, r.Headers[k].Value)
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

func bytesLen(b []byte) int {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + len(b)
}

func varintLen(v int64) int {
	n := 1
	for u := uint64(v)<<1 ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// keptBytes is how large a buffer may be that is kept for the next batch.
const keptBytes = 4 << 20

// answerWithin is how long the brokers may take to acknowledge a batch. The client waits as long again before it gives a connection up.
const answerWithin = 10 * time.Second
