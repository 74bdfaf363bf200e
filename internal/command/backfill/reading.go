package backfill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/replication"
)

// A reading reads one table after the other.
type reading struct {
	*Tables
	reader   *table.Reader
	spec     checkpoint.Copy
	left     []*table.Table // rows, if not nil, reads the first
	rows     *table.Rows
	ordered  string        // name of the order in which rows come
	streamed *rowSet       // the rows that the stream will give; nil if the reading is of a moment before the stream
	border   *cdc.Snapshot // sees the rows that a source that polls will not give; nil: all are asked for
	// xidColumn has the transaction ids of the rows, for border.
	xidColumn string
	equal     []*cdc.Relation                   // tables that streamed says nothing about
	leaveOut  func(ev *cdc.Event) (bool, error) // nil: nothing
	given     uint64                            // how many rows Next has returned
}

// read begins to read the rows that c asks for, as a snapshot sees them, or as they are now if it is "".
func (t *Tables) read(ctx context.Context, c checkpoint.Copy, snapshot string) (*reading, error) {
	reader, err := t.From.Open(ctx, table.Options{Snapshot: snapshot})
	if err != nil {
		return nil, err
	}
	r := &reading{Tables: t, reader: reader, spec: c}
	if r.left, err = unfinished(c, reader.Tables()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// unfinished returns the tables that are left to read. The table whose reading has begun comes first, because a checkpoint keeps
// the place in one table only.
func unfinished(c checkpoint.Copy, all []*table.Table) (left []*table.Table, err error) {
	begun := slices.IndexFunc(all, func(t *table.Table) bool { return t.String() == c.At.Table })
	if c.At.Table != "" && begun < 0 {
		return nil, fault.Config(fmt.Errorf("table %s is no longer in source.tables, but its %s is not finished: %d rows have been published so far",
			c.At.Table, c.Origin, c.Rows), "If the table was renamed, give it its former name back (ALTER TABLE … RENAME TO …) until its rows are published. Otherwise put the table back under source.tables.")
	}
	if begun >= 0 {
		left = append(left, all[begun])
	}
	for i, t := range all {
		if i != begun && !slices.Contains(c.Finished, t.String()) {
			left = append(left, t)
		}
	}
	return left, nil
}

// readAhead finds out which rows of this reading the stream will give: those that were written since the slot was created. The reading
// leaves them out, because the stream may first give an older event of the same key whose row is deleted. The snapshot of an
// earlier reading cannot tell these rows: after an update, or an ALTER TABLE that rewrites the table, an old row looks new. If
// the slot cannot be read ahead, such rows come twice.
func (r *reading) readAhead(ctx context.Context, from cdc.LSN) error {
	r.streamed = newRowSet()
	upTo := r.reader.Position()
	r.Logger.Info("reading ahead of the slot: rows that the stream will deliver are left out of this reading of the table", "lsn", upTo.String())
	err := r.Source.ReadAhead(ctx, from, upTo, r.streamed.add)
	if errors.Is(err, replication.ErrNoReadAhead) {
		r.Logger.Warn("rows that were written after the slot was created are delivered twice, and rows of one key may be out of order the first time", "err", err)
		r.streamed.Close()
		r.streamed = nil // the stream may end before it gives the rows that were read ahead
		return nil
	}
	for _, t := range r.reader.Tables() {
		if err == nil {
			err = r.lookForEqual(ctx, t)
		}
	}
	return err
}

// lookForEqual finds out whether a table without a key has equal rows. Nothing tells which of them the stream will give.
func (r *reading) lookForEqual(ctx context.Context, t *table.Table) error {
	if r.streamed.rows == 0 || hasKey(t.Relation) {
		return nil
	}
	equal, err := t.HasEqual(ctx)
	if equal {
		r.equal = append(r.equal, t.Relation)
		r.Logger.Warn("the table has equal rows and no primary key: the rows that were written since the slot was created are delivered twice", "table", t.String())
	}
	return err
}

// next returns the next of rows that the stream will not give.
func (r *reading) next(rows *table.Rows) (*cdc.Event, error) {
	for {
		ev, err := rows.Next()
		if ev != nil && err == nil && r.border != nil {
			xid, err := strconv.ParseUint(string(ev.Row.Values[ev.Row.Relation.Index(r.xidColumn)].Bytes), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("column %s: %w", r.xidColumn, err)
			}
			if !r.border.Sees(xid) {
				continue
			}
			return ev, nil
		}
		if ev == nil || err != nil || r.streamed == nil || slices.Contains(r.equal, ev.Row.Relation) {
			return ev, err
		}
		if streamed, err := r.streamed.has(&ev.Row); err != nil || !streamed {
			return ev, err
		}
	}
}

// asked has the conditions of spec. If the relay polled before, the age of a row says nothing, because a row can wait for longer than any
// overlap. The position of the strategy cursor says exactly what is delivered. The other strategies have no position, so all rows are asked for.
func (r *reading) asked() table.Selection {
	sel := table.Selection{Since: r.spec.Since, TimeColumn: r.TimeColumn}
	if r.spec.After > 0 {
		sel.Behind = &table.Behind{From: r.spec.After}
	}
	if polled := r.spec.Polled(); polled != nil && polled.Polled.XIDColumn != "" {
		sel.Behind = &table.Behind{Column: polled.Polled.XIDColumn, From: polled.Position.Number(), Border: polled.Border}
	}
	return sel
}

// selection says which rows of a table spec asks for.
func (r *reading) selection(ctx context.Context, t *table.Table) (table.Selection, error) {
	sel := r.asked()
	sel.IDColumn = r.Columns(t.Relation).ID
	if r.subset.narrow != nil {
		if err := r.subset.narrow(t, &sel); err != nil {
			return sel, err
		}
	}
	o, err := r.order(ctx, r.reader, t, sel)
	if err != nil {
		return table.Selection{}, err
	}
	sel.Order = o
	if at := r.spec.At; at.Table == t.String() && at.Order != "" && at.Order == orderName(o) {
		sel.After = table.Place{Sees: at.Visible, Key: at.Key, Nth: at.Nth, ID: at.ID}
	}
	return sel, nil
}

// Next returns the next row that is to be published, or the end of a table.
func (r *reading) Next(ctx context.Context) (*cdc.Event, checkpoint.Mark, error) {
	var none checkpoint.Mark
	for len(r.left) > 0 {
		t := r.left[0]
		if r.rows == nil {
			sel, err := r.selection(ctx, t)
			if err != nil {
				return nil, none, err
			}
			if r.rows, err = t.Select(ctx, sel); err != nil {
				return nil, none, err
			}
			r.ordered = orderName(sel.Order)
		}
		ev, err := r.next(r.rows)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, none, errors.Join(ctx.Err(), err)
		case err != nil:
			return nil, none, err
		case ev == nil:
			r.left, r.rows = r.left[1:], nil
			return nil, checkpoint.Mark{Table: t.String()}, nil
		}
		if r.leaveOut != nil {
			out, err := r.leaveOut(ev)
			if err != nil {
				return nil, none, err
			}
			if out {
				continue
			}
		}
		r.given++
		p := r.rows.Place()
		return ev, checkpoint.Mark{Table: t.String(), Visible: p.Sees, Order: r.ordered, Key: p.Key, Nth: p.Nth, ID: p.ID}, nil
	}
	return nil, none, nil
}

// orderName names an order in a checkpoint.
func orderName(o table.Order) string {
	switch o.By {
	case table.ByCommit:
		return "commit " + o.Column
	case table.ByColumn:
		return "column " + o.Column
	case table.ByTransaction, table.BySize, table.Unordered:
	}
	return ""
}

// Close frees the connection.
func (r *reading) Close() {
	r.reader.Close()
	r.streamed.Close()
}
