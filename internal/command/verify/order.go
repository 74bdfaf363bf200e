package verify

import (
	"bytes"
	"context"
	"fmt"
)

// certain is how far apart two commit times must be, in microseconds, to say which commit came first.
const certain = 1_000_000

// judgeKeys looks at the records of each key, in the order of the log, and at the rows without a
// record.
func (v *verifier) judgeKeys(ctx context.Context) error {
	var k keyOrder
	var at []byte
	total, done := v.byKey.count, int64(0)
	err := v.byKey.each(ctx, func(b []byte) error {
		done++
		v.Progress("comparing the order", done, total)
		if !bytes.Equal(b[:20], at) {
			at = append(at[:0], b[:20]...)
			k = keyOrder{newest: k.newest[:0], last: k.last[:0]}
		}
		var e entry
		e.parse(b[keyPrefix:])
		switch e.kind {
		case missing:
			v.lost(&e, &k)
		case ofRecord: // it has no place in the order, but the key has a record
			k.records = true
		case delivered, ofRow:
			v.ordered(&e, &k)
			k.records = true
		}
		return nil
	})
	v.byKey.close()
	return err
}

// keyOrder is what is known of the records of one key.
type keyOrder struct {
	records    bool // the key has a record
	tombstones bool // a row without a record is a tombstone
	partition  int32
	newest     []byte // of the records of the partition so far, the entry with the latest commit time
	last       []byte // the entry before
}

// ordered compares a record with those before it in its partition.
func (v *verifier) ordered(e *entry, k *keyOrder) {
	if k.partition != e.partition {
		k.partition, k.newest, k.last = e.partition, k.newest[:0], k.last[:0]
	}
	if len(k.last) > 0 {
		var last, newest entry
		last.parse(k.last)
		newest.parse(k.newest)
		behind := func(than *entry) string {
			return fmt.Sprintf("comes after event %s at offset %d, which is newer", than.id, than.offset)
		}
		byRank := func(than *entry) int { // -1 if the order column says that e is older
			switch {
			case !e.has(ranked) || !than.has(ranked) || e.table != than.table || e.rank == than.rank:
				return 0
			case e.rank < than.rank:
				return -1
			}
			return 1
		}
		oneTransaction := e.has(asInserted) && last.has(asInserted) && e.tx == last.tx && e.time == last.time
		t := v.topics[e.topic]
		// Retention or compaction may have removed the first record of e, and e came again, and so did
		// what was before it.
		cut := t.compacted || t.parts[e.partition].cut
		reversed := func(than *entry) bool { return !cut || e.other > than.other }
		timed := e.time != unknown && newest.time != unknown
		tied := !timed || e.time/1000 == newest.time/1000 // the timestamps of records are in milliseconds
		switch {
		case oneTransaction && byRank(&last) < 0 && reversed(&last) && !v.tables[e.table].Partitioned():
			v.finding(OutOfOrder, e, behind(&last), nil)
		case timed && e.time+certain < newest.time && byRank(&newest) <= 0 && reversed(&newest):
			v.finding(OutOfOrder, e, behind(&newest), nil)
		case timed && e.time/1000 < newest.time/1000 && reversed(&newest) && (v.Polled == nil || byRank(&newest) <= 0):
			v.finding(OrderUnknown, e, "looks older than event "+string(newest.id)+" before it, by its commit time", nil)
		case tied && byRank(&last) < 0 && reversed(&last):
			v.finding(OrderUnknown, e, "looks older than event "+string(last.id)+" before it, by source.order_column", nil)
		case tied && byRank(&last) == 0:
			v.report.Unordered++
		}
		k.last = e.append(k.last[:0])
		if newest.time == unknown || e.time != unknown && e.time > newest.time {
			k.newest = append(k.newest[:0], k.last...)
		}
		return
	}
	k.last = e.append(k.last[:0])
	k.newest = append(k.newest[:0], k.last...)
}

// lost judges a row that has no record.
func (v *verifier) lost(e *entry, k *keyOrder) {
	t := v.topics[e.topic]
	// A tombstone comes before the other rows without a record, because the digest of its value is 0.
	k.tombstones = k.tombstones || e.has(nullValue)
	switch {
	case t.removed(e.partition, e.age):
		v.finding(Retention, e, "", nil)
	case t.compacted && t.n > 0 && (k.records || k.tombstones):
		v.finding(Compaction, e, "", nil)
	case v.report.NotConfirmed != "" && !v.reached.has(e.xid) || t.hides(e.partition):
		v.finding(NotConfirmed, e, "", nil)
	default:
		v.finding(Missing, e, "", nil)
	}
}
