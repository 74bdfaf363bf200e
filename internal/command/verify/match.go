package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// maxGroup bounds the rows and records of one event id.
const maxGroup = 1000

// A group has the rows and the records of one event id.
type group struct {
	id     [16]byte
	buf    []byte // of the texts
	rows   []entry
	recs   []entry
	owners []int // of each record, the row that it belongs to, or -1
	tooBig bool
}

// match brings rows and records with the same event id together.
func (v *verifier) match(ctx context.Context) error {
	var g group
	total := v.byID.count
	var done int64
	err := v.byID.each(ctx, func(b []byte) error {
		if done++; !bytes.Equal(b[:16], g.id[:]) {
			if err := v.judge(&g); err != nil {
				return err
			}
			g = group{buf: g.buf[:0], rows: g.rows[:0], recs: g.recs[:0], owners: g.owners[:0]}
			copy(g.id[:], b)
		}
		v.Progress("comparing", done, total)
		if g.tooBig = g.tooBig || len(g.rows)+len(g.recs) >= maxGroup; g.tooBig {
			var e entry
			if e.parse(b[17:]); e.kind == ofRow {
				v.finding(IDNotUnique, &e, "", nil)
			}
			return nil
		}
		at := len(g.buf)
		g.buf = append(g.buf, b[17:]...) // if it moves, the entries before keep the old one
		var e entry
		e.parse(g.buf[at:])
		if e.kind == ofRow {
			g.rows = append(g.rows, e)
		} else {
			g.recs = append(g.recs, e)
		}
		return nil
	})
	v.byID.close()
	if err == nil {
		err = v.judge(&g)
	}
	return err
}

// judge decides which record belongs to which row, and what the other records are.
func (v *verifier) judge(g *group) error {
	if g.tooBig {
		for i := range g.rows {
			v.finding(IDNotUnique, &g.rows[i], "", nil)
		}
		return nil
	}
	slices.SortFunc(g.recs, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	})
	for range g.recs {
		g.owners = append(g.owners, -1)
	}
	owned := make([]int, len(g.rows)) // of each row, its record or -1
	claim := func(fits func(row, rec *entry) bool) {
		for i := range g.rows {
			for j := 0; j < len(g.recs) && owned[i] < 0; j++ {
				if g.owners[j] < 0 && g.recs[j].topic == g.rows[i].topic && fits(&g.rows[i], &g.recs[j]) {
					owned[i], g.owners[j] = j, i
				}
			}
		}
	}
	for i := range owned {
		owned[i] = -1
	}
	claim(func(row, rec *entry) bool { return same(row, rec) && !rec.has(late) })
	claim(same)
	claim(func(_, _ *entry) bool { return true })
	for i := range g.rows {
		row := &g.rows[i]
		switch {
		case owned[i] < 0:
			if err := v.without(row); err != nil {
				return err
			}
		default:
			rec := &g.recs[owned[i]]
			row.other = rec.offset
			for j := range g.recs {
				if r := &g.recs[j]; r.topic == rec.topic && r.partition == rec.partition && r.whole == rec.whole {
					row.other = max(row.other, r.offset)
				}
			}
			if err := v.with(row, rec); err != nil {
				return err
			}
		}
	}
	for j := range g.recs {
		if err := v.other(g, j); err != nil {
			return err
		}
	}
	return nil
}

// with takes a row that has a record.
func (v *verifier) with(row, rec *entry) error {
	v.report.Matched++
	if what := difference(row, rec); what != "" {
		v.finding(Changed, row, "differs in its "+what, rec)
	}
	if before, after := v.where(row); before.Open && after.Open && len(row.id) > 0 {
		v.finding(InBothPlaces, row, "also a "+after.Name, rec)
	}
	t := v.topics[row.topic]
	if row.partition >= 0 && row.partition != rec.partition {
		t.grown = true
	}
	if row.has(nullKey) {
		return nil
	}
	e := *row
	e.kind, e.partition, e.offset = delivered, rec.partition, rec.offset
	if rec.has(late) {
		v.report.Late++
		e.kind = ofRecord
		return v.addByKey(&e)
	}
	// A timestamp that no column, no broker and no command gave is the commit time of the insert.
	// A relay that polls takes another time if the server does not keep the commit time.
	if row.stamp == unknown && rec.time != unknown && !rec.has(marked) && (v.Polled == nil || row.time != unknown) {
		if row.time == unknown || row.time/1000 != rec.time/1000 {
			e.time = rec.time
		}
		if row.time != unknown && row.time/1000 != rec.time/1000 {
			e.flags &^= asInserted
		} else if row.time != unknown {
			e.flags |= asInserted
		}
	} else if !row.has(asInserted) {
		e.time = unknown
	}
	return v.addByKey(&e)
}

// without takes a row that has no record.
func (v *verifier) without(row *entry) error {
	where := cmp.Or(v.where(row))
	switch {
	case row.has(noID) || where != (Place{}) && len(row.id) == 0: // it may be another row that is there
		v.finding(NoID, row, "", nil)
		return nil
	case where != (Place{}):
		v.report.Elsewhere[where.Name]++
		return nil
	case row.has(leftOut):
		v.report.LeftOut++
		return nil
	case row.has(unroutable):
		v.finding(Unroutable, row, string(row.keyText), nil)
		return nil
	}
	e := *row
	e.kind, e.offset = missing, math.MaxInt64
	return v.addByKey(&e)
}

// where says where the event of a row was, if it was not in its topic, before the topics were read and
// after that.
func (v *verifier) where(row *entry) (before, after Place) {
	table, id := v.tables[row.table].name, string(row.id)
	return v.before(table, id), v.after(table, id)
}

// addByKey puts a row into the sort by key. Rows without a record come behind the others of their key.
func (v *verifier) addByKey(e *entry) error {
	v.buf = binary.BigEndian.AppendUint32(v.buf[:0], uint32(e.topic))
	v.buf = append(v.buf, e.key[:]...)
	v.buf = append(v.buf, byte(e.kind))
	v.buf = binary.BigEndian.AppendUint32(v.buf, uint32(e.partition))
	v.buf = binary.BigEndian.AppendUint64(v.buf, uint64(e.offset))
	return v.byKey.add(e.append(v.buf))
}

const keyPrefix = 4 + 16 + 1 + 4 + 8

// addAgain puts a record into the sort of duplicates. It repeats the record at the offset other of its partition.
func (v *verifier) addAgain(rec *entry, other int64) error {
	e := *rec
	e.other = other
	v.buf = binary.BigEndian.AppendUint32(v.buf[:0], uint32(e.topic))
	v.buf = binary.BigEndian.AppendUint32(v.buf, uint32(e.partition))
	if v.Polled != nil {
		v.buf = append(v.buf, e.key[:]...)
	} else {
		v.buf = append(v.buf, make([]byte, len(e.key))...)
	}
	v.buf = binary.BigEndian.AppendUint64(v.buf, uint64(e.offset))
	return v.again.add(e.append(v.buf))
}

const (
	againGroup  = 4 + 4 + 16 // of what addAgain adds: the records that are judged together
	againPrefix = againGroup + 8
	noDuplicate = -1 // for a record that a relay that polls may repeat
)

// other decides what a record is to the records of the same id before it, and whether it belongs to
// no row.
func (v *verifier) other(g *group, j int) error {
	rec := &g.recs[j]
	var equal, twin, first *entry // equal in the same partition, in another one, and the record of a row
	row := false
	for k := range g.recs {
		r := &g.recs[k]
		switch {
		case k >= j || r.topic != rec.topic || r.whole != rec.whole:
		case r.partition == rec.partition:
			if equal == nil {
				equal = r
			}
		default:
			twin = r
		}
		if r.topic == rec.topic && k != j && g.owners[k] >= 0 && first == nil {
			first = r
		}
	}
	for i := range g.rows {
		row = row || g.rows[i].topic == rec.topic
	}
	t := v.topics[rec.topic]
	switch {
	case equal != nil && g.owners[j] < 0 || rec.has(late):
	case v.Polled == nil:
		t.parts[rec.partition].firsts.add(rec.offset)
	case !rec.has(nullKey):
		if err := v.addAgain(rec, noDuplicate); err != nil {
			return err
		}
	}
	switch {
	case g.owners[j] >= 0:
	case rec.has(marked) && (equal != nil || twin != nil || row), equal == nil && twin == nil && row && first != nil && first.has(marked):
		v.report.Marked++
	case (equal != nil || twin != nil) && rec.has(nullKey):
		v.report.Repeated++ // without a key there is no order, and each attempt may choose another partition
	case equal != nil:
		return v.addAgain(rec, equal.offset)
	case twin != nil:
		v.finding(Duplicate, rec, fmt.Sprintf("the same record is at partition %d offset %d", twin.partition, twin.offset), rec)
	case row && first != nil:
		v.finding(Duplicate, rec, fmt.Sprintf("another record with this event id is at partition %d offset %d", first.partition, first.offset), rec)
	default:
		v.report.WithoutRow++
		if t.compacted && !rec.has(nullKey) {
			e := *rec
			return v.addByKey(&e)
		}
	}
	return nil
}
