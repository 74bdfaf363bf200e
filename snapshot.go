package walpost

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
)

// tables reads the rows that are published from the table itself, for package relay.
type tables struct {
	source     *replication.Source
	cfg        *Config
	timeColumn string // by which rows are left out that are too old, where the server keeps no commit times

	// prepare, where not nil, looks at what is about to be read, and returns what is to be left out of it.
	prepare func(ctx context.Context, r *tableReading) (leaveOut func(ev *cdc.Event) (bool, error), err error)
}

// copying is what the configuration wants to be published at a first start; nil for nothing.
func (r *Relay) copying() *relay.Copying {
	if r.cfg.Source.Snapshot != "initial" {
		return nil
	}
	return &relay.Copying{Origin: checkpoint.OriginSnapshot, Tables: &tables{source: r.source, cfg: &r.cfg}}
}

// Check says what keeps the tables from being read in an order.
func (t *tables) Check(ctx context.Context) error {
	reader, err := t.source.ReadTables(ctx, replication.TableOptions{})
	if err != nil {
		return err
	}
	defer reader.Close()
	for _, table := range reader.Tables() {
		if _, err := t.order(ctx, reader, table); err != nil {
			return err
		}
	}
	return nil
}

// order is how a table's rows are ordered: by the commit times that the server keeps, else by source.order_column. Where neither places every
// row it is an error, unless any order will do.
func (t *tables) order(ctx context.Context, reader *replication.TableReader, table replication.Table) (replication.Order, error) {
	column := t.cfg.Source.OrderColumn
	o := replication.Order{By: replication.Unordered}
	switch {
	case reader.KeepsCommitTimes():
		o = replication.Order{By: replication.ByCommit, Column: column}
	case column != "":
		o = replication.Order{By: replication.ByColumn, Column: column}
	}
	unplaced, err := reader.Unplaced(ctx, table, o, keyColumn(&t.cfg.Router, reader.Relation(table)))
	switch {
	case err != nil:
		return o, err
	case unplaced == "":
		return o, nil
	case !t.cfg.Unordered:
		return o, fault.Config(fmt.Errorf("the order of %s in %s cannot be told: source.order_column %s, and track_commit_timestamp is %s",
			unplaced, table, orUnset(column), onOff(reader.KeepsCommitTimes())),
			"Set source.order_column to a column that grows with every row and is never NULL, such as an identity. Or add --unordered, where events of one key may come in any order.")
	case o.By == replication.ByColumn: // its NULLs would be in the way of going on behind a row
		return replication.Order{By: replication.Unordered}, nil
	}
	return o, nil
}

func orUnset(s string) string {
	if s == "" {
		return "is not set"
	}
	return "is " + s
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// orderName tells two orders apart in a checkpoint.
func orderName(o replication.Order) string {
	switch o.By {
	case replication.ByCommit:
		return "commit " + o.Column
	case replication.ByColumn:
		return "column " + o.Column
	case replication.ByTransaction, replication.BySize, replication.Unordered:
	}
	return ""
}

// Open makes the slot where it is missing, with a snapshot of the rows before it.
func (t *tables) Open(ctx context.Context, replaceLost bool) (relay.Session, error) {
	session, err := t.source.OpenExporting(ctx, replaceLost)
	if err != nil {
		return nil, err // not session: a nil *Session would be a Session that is not nil
	}
	return session, nil
}

// Rows begins to read.
func (t *tables) Rows(ctx context.Context, sess relay.Session, c checkpoint.Copy) (relay.Rows, error) {
	session := sess.(*replication.Session) // Open's, or pgSource's
	snapshot := session.Snapshot()
	reader, err := t.source.ReadTables(ctx, replication.TableOptions{Snapshot: snapshot})
	session.FreeSnapshot()
	if err != nil {
		if snapshot != "" && !fault.Misconfigured(err) {
			err = fault.Retry(err) // a session without the snapshot reads what is there now
		}
		return nil, err
	}
	r := &tableReading{tables: t, reader: reader, spec: c}
	if r.left, err = unfinished(c, reader.Tables()); err != nil {
		r.Close()
		return nil, err
	}
	if snapshot == "" {
		err = r.readAhead(ctx, session.Began())
	}
	if err == nil && t.prepare != nil {
		r.leaveOut, err = t.prepare(ctx, r)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// readAhead finds out which rows of this reading the stream will give: those that were written since the slot was made. They are left out,
// since the stream may give an event of the same key first, whose row is deleted. What a former reading saw cannot tell: an update, or an
// ALTER TABLE that rewrites the table, has an old row look like a new one. Where the server does not tell, such rows come twice.
func (r *tableReading) readAhead(ctx context.Context, from cdc.Position) error {
	r.streamed = newRowSet()
	upTo := r.reader.Position()
	r.cfg.Logger.Info().Str("lsn", upTo.String()).Msg("reading ahead of the slot: rows that the stream will give are left out of this reading of the table")
	err := r.source.ReadAhead(ctx, from, upTo, r.streamed.add)
	if errors.Is(err, replication.ErrNoReadAhead) {
		r.cfg.Logger.Warn().Err(err).Msg("rows that were written since the slot was made come twice, and of one key possibly in another order the first time")
		r.streamed.Close()
		r.streamed = nil // what was read ahead is no proof: the stream may end before it gives these rows
		return nil
	}
	return err
}

// next is the next row of rows that the stream will not give.
func (r *tableReading) next(rows *replication.Rows) (*cdc.Event, error) {
	for {
		ev, err := rows.Next()
		if ev == nil || err != nil || r.streamed == nil {
			return ev, err
		}
		if streamed, err := r.streamed.has(&ev.Row); err != nil || !streamed {
			return ev, err
		}
	}
}

// unfinished is the tables that are left to read, in this order: the one that was being read comes first, because a checkpoint keeps the
// place of one table only.
func unfinished(c checkpoint.Copy, all []replication.Table) (left []replication.Table, err error) {
	begun := slices.IndexFunc(all, func(t replication.Table) bool { return t.String() == c.At.Table })
	if c.At.Table != "" && begun < 0 {
		return nil, fault.Config(fmt.Errorf("table %s is not among source.tables any more, and its %s is not finished: %d rows are published in all",
			c.At.Table, c.Origin, c.Rows), "Put the table back under source.tables until its rows are published.")
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

// tableReading reads one table after the other.
type tableReading struct {
	*tables
	reader   *replication.TableReader
	spec     checkpoint.Copy
	left     []replication.Table // the first is being read where rows is not nil
	rows     *replication.Rows
	order    string
	streamed *rowSet                           // what the stream will give; nil where the reading is of a moment before it
	leaveOut func(ev *cdc.Event) (bool, error) // nil: nothing
	given    uint64                            // rows
}

// selection is what spec wants of a table.
func (r *tableReading) selection(ctx context.Context, table replication.Table) (replication.Selection, error) {
	o, err := r.tables.order(ctx, r.reader, table)
	if err != nil {
		return replication.Selection{}, err
	}
	sel := replication.Selection{
		Table: table, Order: o, IDColumn: r.cfg.Router.EventID, Since: r.spec.Since, TimeColumn: r.timeColumn,
	}
	if at := r.spec.At; at.Table == table.String() && at.Order != "" && at.Order == orderName(o) {
		sel.After = replication.Place{Sees: at.Visible, Key: at.Key, Nth: at.Nth, ID: at.ID}
	}
	return sel, nil
}

// Next returns the next row that is to be published, or the end of a table.
func (r *tableReading) Next(ctx context.Context) (*cdc.Event, checkpoint.Mark, error) {
	var none checkpoint.Mark
	for len(r.left) > 0 {
		table := r.left[0]
		if r.rows == nil {
			sel, err := r.selection(ctx, table)
			if err != nil {
				return nil, none, err
			}
			if r.rows, err = r.reader.Select(ctx, sel); err != nil {
				return nil, none, err
			}
			r.order = orderName(sel.Order)
		}
		ev, err := r.next(r.rows)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, none, errors.Join(ctx.Err(), err)
		case err != nil:
			return nil, none, err
		case ev == nil:
			r.left, r.rows = r.left[1:], nil
			return nil, checkpoint.Mark{Table: table.String()}, nil
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
		return ev, checkpoint.Mark{Table: table.String(), Visible: p.Sees, Order: r.order, Key: p.Key, Nth: p.Nth, ID: p.ID}, nil
	}
	return nil, none, nil
}

// Close frees the connection.
func (r *tableReading) Close() {
	r.reader.Close()
	r.streamed.Close()
}
