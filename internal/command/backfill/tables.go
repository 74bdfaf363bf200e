// Package backfill publishes rows from the table itself. Ahead of the stream: all of them for a first snapshot, and those that
// are missing from Kafka for a recover. Package relay says when, and keeps in the checkpoint how far the reading is. Beside the
// stream: those that a person wants once more (Replay).
package backfill

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
)

// Tables reads the rows of the tables, for package relay.
type Tables struct {
	Source *replication.Source // opens sessions, and reads ahead of the slot
	// Begin opens the sessions instead if it is not nil. They need no slot, and their Identity has a border.
	Begin func(ctx context.Context) (relay.Session, error)
	From  table.Source
	// Columns says which columns of a table the event id and the key come from.
	Columns func(rel *cdc.Relation) router.Columns
	// OrderColumn orders rows, and TimeColumn leaves out rows that are too old, if the server keeps no commit times.
	OrderColumn, TimeColumn string
	// Unordered allows any order if nothing tells the order of the rows.
	Unordered bool
	// After is that of relay.Copying.
	After  uint64
	Logger *slog.Logger

	subset subset
}

// A subset says which of the rows that a Copy asks for are published. The zero subset is all of them.
type subset struct {
	// narrow has the server give fewer rows of a table.
	narrow func(t *table.Table, sel *table.Selection) error
	// begin is called with each reading. It says which of its rows are left out.
	begin func(ctx context.Context, r *reading) (leaveOut func(ev *cdc.Event) (bool, error), err error)
}

// Check returns what keeps the tables from being read in an order.
func (t *Tables) Check(ctx context.Context) error {
	var sel table.Selection
	if t.After > 0 {
		if err := t.Source.CheckRows(ctx); err != nil { // the bound can be of another server
			return err
		}
		sel.Behind = &table.Behind{From: t.After}
	}
	reader, err := t.From.Open(ctx, table.Options{})
	if err != nil {
		return err
	}
	defer reader.Close()
	for _, from := range reader.Tables() {
		if _, err := t.order(ctx, reader, from, sel); err != nil {
			return err
		}
	}
	return nil
}

// order returns how a table's rows are ordered: by the commit times that the server keeps, else by the order column. It is an error
// if neither places every row of sel, unless any order will do.
func (t *Tables) order(ctx context.Context, reader *table.Reader, from *table.Table, sel table.Selection) (table.Order, error) {
	column := t.OrderColumn
	o := table.Order{By: table.Unordered}
	switch {
	case reader.KeepsCommitTimes():
		o = table.Order{By: table.ByCommit, Column: column}
	case column != "":
		o = table.Order{By: table.ByColumn, Column: column}
	}
	sel.Order = o
	unplaced, err := from.Unplaced(ctx, sel, t.Columns(from.Relation).Key)
	switch {
	case err != nil:
		return o, err
	case unplaced == "":
		return o, nil
	case !t.Unordered:
		is, kept := "is "+column, "off"
		if column == "" {
			is = "is not set"
		}
		if reader.KeepsCommitTimes() {
			kept = "on"
		}
		return o, fault.Config(fmt.Errorf("the order of %s in %s is unknown: source.order_column %s, and track_commit_timestamp is %s", unplaced, from, is, kept),
			"Set source.order_column to a column whose values increase with every row and are never NULL, such as an identity. Or add --unordered: events of one key may then arrive in any order.")
	case o.By == table.ByColumn: // a reading cannot go on behind a row that has NULL in the order column
		return table.Order{By: table.Unordered}, nil
	}
	return o, nil
}

// Open makes the slot where it is missing or lost, with a snapshot of the rows before it, or calls Begin.
func (t *Tables) Open(ctx context.Context) (relay.Session, error) {
	if t.Begin != nil {
		return t.Begin(ctx)
	}
	session, err := t.Source.OpenExporting(ctx)
	if err != nil {
		return nil, err // not session: a nil *Session would be a Session that is not nil
	}
	return session, nil
}

// Rows begins to read.
func (t *Tables) Rows(ctx context.Context, sess relay.Session, c checkpoint.Copy) (relay.Rows, error) {
	session, streams := sess.(*replication.Session) // Open's, or that of the relay's source
	var snapshot string
	if streams {
		snapshot = session.Snapshot()
	}
	r, err := t.read(ctx, c, snapshot)
	if streams {
		session.FreeSnapshot()
	}
	if err != nil {
		if snapshot != "" && !fault.Misconfigured(err) {
			err = fault.Retry(err) // a session without the snapshot reads what is there now
		}
		return nil, err
	}
	switch {
	case !streams:
		var border cdc.Snapshot
		border, err = cdc.ParseSnapshot(c.Border)
		r.border, r.xidColumn = &border, sess.Identity().Polled.XIDColumn
	case snapshot == "":
		err = r.readAhead(ctx, session.Began())
	}
	if err == nil && t.subset.begin != nil {
		r.leaveOut, err = t.subset.begin(ctx, r)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}
