package verify

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
)

// entryBytes is about how many bytes a row or a record takes on disk, over both sorts.
const entryBytes = 300

// readTables sorts the rows, and returns the position behind all transactions that it saw.
func (v *verifier) readTables(ctx context.Context) (cdc.LSN, error) {
	reader, err := v.From.Open(ctx, table.Options{})
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	var total int64
	v.from = v.Since
	for _, t := range reader.Tables() {
		if !v.Since.IsZero() || !v.Until.IsZero() {
			if err := t.TellsAge(v.TimeColumn); err != nil {
				return 0, err
			}
		}
		known, err := t.Statistics(ctx)
		if err != nil {
			return 0, err
		}
		c := &checkedTable{Table: t, name: t.Relation.String(), columns: v.Router.Columns(t.Relation), updated: known.Updated, rank: -1, written: -1, xid: -1}
		if v.OrderColumn != "" {
			c.rank = t.Relation.Index(v.OrderColumn)
		}
		if v.TimeColumn != "" {
			if c.written = t.Relation.Index(v.TimeColumn); c.written >= 0 && slices.Contains([]string{"timestamp", "date"}, t.Relation.Columns[c.written].BaseName) {
				c.ahead = 14 * time.Hour
			}
		}
		if v.Polled != nil {
			if c.xid = t.Relation.Index(v.Polled.XIDColumn); c.xid < 0 {
				return 0, fault.Config(fmt.Errorf("table %s has no column %s, which source.poll.xid_column names", t, v.Polled.XIDColumn), "walpost setup prints the SQL that creates it.")
			}
		}
		v.tables = append(v.tables, c)
		total += known.Rows
	}
	v.Say(fmt.Sprintf("tables: about %d rows; temporary files in %s: about %s, and the same again for an equal number of records",
		total, cmp.Or(v.TempDir, os.TempDir()), roughly(total*entryBytes)))
	for i, t := range v.tables {
		if err := v.readTable(ctx, reader, t, uint64(i), total); err != nil {
			return 0, err
		}
	}
	if !v.from.IsZero() {
		v.from = v.from.Add(-2 * margin)
	}
	return reader.Position(), nil
}

func (v *verifier) readTable(ctx context.Context, reader *table.Reader, t *checkedTable, number uint64, total int64) error {
	rows, err := t.Select(ctx, table.Selection{
		IDColumn: t.columns.ID, Since: v.Since, Until: v.Until, TimeColumn: v.TimeColumn, FirstID: v.FirstID, LastID: v.LastID,
	})
	if err != nil {
		return t.badRange(err)
	}
	var rec cdc.Record
	for {
		ev, err := rows.Next()
		if ev == nil || err != nil {
			return t.badRange(err)
		}
		v.report.Rows++
		v.Progress("reading rows", v.report.Rows, total)
		e := entry{kind: ofRow, table: number, partition: -1, time: unknown, stamp: unknown, age: unknown}
		id, err := v.route(ctx, t, ev, &rec, &e)
		if err != nil {
			return err
		}
		if rows.CommitKnown {
			e.time = ev.Time.UnixMicro()
		}
		if t.written >= 0 {
			if e.age = timeOf(ev.Row.Values[t.written].Bytes); e.age != unknown {
				e.age -= t.ahead.Microseconds()
			}
		}
		if !t.updated && rows.CommitKnown && (e.age == unknown || e.time < e.age) {
			e.age = e.time // of an update, if the server has lost its statistics
		}
		v.readFrom(&e)
		if tx, err := strconv.ParseUint(string(rows.Transaction), 10, 32); err == nil {
			e.tx = uint32(tx)
		}
		wrote := reader.FullXID(e.tx)
		if v.Polled != nil {
			if e.xid, err = t.transaction(ev); err != nil {
				return err
			}
			if !v.reached.has(e.xid) {
				v.newest = max(v.newest, e.xid)
			}
			wrote = e.xid
		}
		if v.Bound.System == reader.System() && wrote < v.Bound.XID {
			e.flags |= leftOut
		}
		if !t.updated {
			e.flags |= asInserted
		}
		if t.rank >= 0 {
			if r, ok := rankOf(t.Relation.Columns[t.rank].TypeOID, ev.Row.Values[t.rank].Bytes); ok {
				e.rank, e.flags = r, e.flags|ranked
			}
		}
		if e.has(unroutable | noID) {
			id = binary.BigEndian.AppendUint64(nil, uint64(v.report.Rows)) // it belongs to no other entry
		}
		if err := v.add(id, &e); err != nil {
			return err
		}
	}
}

// readFrom has the topics read from a time at which the record of a row can't have been written yet.
func (v *verifier) readFrom(row *entry) {
	if row.age == unknown {
		v.from = time.Time{}
		return
	}
	oldest := time.UnixMicro(row.age)
	if stamp := time.UnixMilli(row.stamp); row.stamp != unknown && stamp.Before(oldest) {
		oldest = stamp
	}
	if oldest.Before(v.from) {
		v.from = oldest
	}
}

// badRange has an error of the selection that the range of ids caused say so.
func (t *checkedTable) badRange(err error) error {
	if bad := table.BadValue(err); bad != nil {
		return fault.Config(fmt.Errorf("the range of ids does not fit column %s of %s: %w", t.columns.ID, t, bad), "")
	}
	return err
}

// transaction is the row's transaction as a relay takes it that polls the table.
func (t *checkedTable) transaction(ev *cdc.Event) (xid uint64, err error) {
	column := &ev.Row.Relation.Columns[t.xid]
	if xid, err = strconv.ParseUint(string(ev.Row.Values[t.xid].Bytes), 10, 64); err != nil {
		err = fmt.Errorf("read column %s of %s: %w", column.Name, t, err)
	}
	return xid, err
}

// route fills in what the router makes of the row, and returns the value of the header "id".
func (v *verifier) route(ctx context.Context, t *checkedTable, ev *cdc.Event, rec *cdc.Record, e *entry) (id []byte, _ error) {
	ok, err := v.Router.Route(ev, rec)
	e.id = []byte(rec.EventID[:min(len(rec.EventID), maxID)])
	if fault.Retryable(err) { // the schema registry does not answer
		return nil, err
	}
	if err != nil || !ok {
		text := "the router produces no record"
		if bad, ok := errors.AsType[*router.RowError](err); ok {
			text = bad.Reason()
		} else if err != nil {
			text = err.Error()
		}
		e.flags, e.keyText = unroutable, cut([]byte(text))
		return nil, nil
	}
	to := v.topic(rec.Topic)
	e.topic = to.id
	id, _ = v.hash.content(e, rec.Key, rec.Value, rec.Headers)
	if id == nil {
		e.flags |= noID
	}
	if c := t.columns.Timestamp; c != "" && ev.Row.Values[t.Relation.Index(c)].Bytes != nil {
		e.stamp = rec.Time.UnixMilli()
	}
	if err := v.describe(ctx, to); err != nil {
		return nil, err
	}
	if to.n > 0 {
		e.partition = sink.PartitionOf(rec, to.n)
	}
	return id, nil
}

// add puts an entry into the sort by event id.
func (v *verifier) add(id []byte, e *entry) error {
	digest := v.hash.long(id)
	v.buf = append(v.buf[:0], digest[:]...)
	v.buf = append(v.buf, byte(e.kind))
	v.buf = e.append(v.buf)
	return v.byID.add(v.buf)
}

// rankOf is a value of source.order_column as a number. It is not known for other types.
func rankOf(oid uint32, text []byte) (rank int64, ok bool) {
	switch oid {
	case 20, 21, 23: // int8, int2, int4
		n, err := strconv.ParseInt(string(text), 10, 64)
		return n, err == nil
	case 1082, 1114, 1184: // date, timestamp, timestamptz
		n := timeOf(text)
		return n, n != unknown
	case 2950: // uuid: the first half, which has the time of a UUID of version 7
		if len(text) != 36 {
			return 0, false
		}
		half := slices.Concat(text[:8], text[9:13], text[14:18])
		n, err := strconv.ParseUint(string(half), 16, 64)
		return int64(n ^ 1<<63), err == nil
	}
	return 0, false
}

// timeOf reads a date, timestamp or timestamptz in UTC, as microseconds.
func timeOf(text []byte) int64 {
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999", time.DateOnly} {
		if t, err := time.Parse(layout, string(text)); err == nil {
			return t.UnixMicro()
		}
	}
	return unknown
}
