package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/records"
)

// Copying is what a Relay needs to publish rows of the table ahead of the stream.
type Copying struct {
	// Origin says which rows. With checkpoint.OriginSnapshot they are the rows from before the
	// slot, at a first start. With checkpoint.OriginRecover they are the rows that a lost slot may
	// have left out, and Run ends when they are published.
	Origin string
	Tables Tables
	// After leaves out, with checkpoint.OriginSnapshot, the rows of the transactions below this id. 0
	// leaves out none.
	After uint64
	// Gap is asked, with OriginRecover, before anything is changed. It decides whether to replace
	// the slot of gap (Refusal.NeedsSlot), or to close gap on the slot that exists. begun is the
	// unfinished snapshot or recover that is cut short, nil for none. What begun has not published
	// is part of the gap. Gap sets Since and After of next, which says which rows may be missing. Its
	// error ends Run.
	Gap func(ctx context.Context, gap *checkpoint.Refusal, begun, next *checkpoint.Copy) error
}

// Tables opens what is read beside the stream. Any goroutine may call its methods.
type Tables interface {
	// Check says, before a slot is made, what keeps the rows from being read.
	Check(ctx context.Context) error
	// Open is Source.Open with create and replaceLost set. If it makes a slot, the session keeps a snapshot of the
	// rows from before the slot.
	Open(ctx context.Context) (Session, error)
	// Rows reads in order the rows that c asks for and that are not published yet. If sess has no
	// snapshot any more, those are the rows that are in the tables now, which include rows from
	// after the slot was made. Rows frees the snapshot of sess.
	Rows(ctx context.Context, sess Session, c checkpoint.Copy) (Rows, error)
}

// Rows is one reading. One goroutine uses it.
type Rows interface {
	// Next returns the next row as an Insert, with the row's place. The event is valid until the
	// next call. Behind the last row of each table Next returns a nil event and a Mark that has
	// only the table's name. Behind the last table it returns a nil event and an empty Mark.
	Next(ctx context.Context) (*cdc.Event, checkpoint.Mark, error)
	Close()
}

// ErrNoGap says that a recover has nothing to do.
var ErrNoGap = errors.New("there is no gap")

// ErrDeclined says that a person declined what Copying.Gap asked for. It ends Run and is no fault.
var ErrDeclined = errors.New("declined")

// errCopied ends a Run that only publishes the rows of a gap.
var errCopied = errors.New("the rows are published")

// foreignTries is how often a slot without a checkpoint is looked at. Another process may just have
// made the slot and be about to write its checkpoint.
const foreignTries = 4

// plan decides what an attempt does with rec, the newest record, nil for none. It returns the
// record to go on with. If a slot is to be made for rows of the table, plan first writes that down,
// so that the next process knows whose slot it is.
func (r *opener) plan(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	c := r.cfg.Copying
	switch {
	case c != nil && c.Origin == checkpoint.OriginRecover:
		return r.planRecover(ctx, rec)
	case c != nil && rec.Copies(c.Origin):
		return rec, nil
	case rec.Copies(checkpoint.OriginRecover):
		return r.withoutRecover(ctx, rec)
	case rec.Copies(checkpoint.OriginSnapshot):
		return r.withoutCopy(ctx, rec)
	case rec == nil && c != nil && r.cfg.Create:
		return r.planSnapshot(ctx)
	}
	return rec, nil
}

// withoutRecover decides about an unfinished recover, which only walpost recover continues.
func (r *opener) withoutRecover(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	u := rec.Unfinished()
	switch {
	case u.Token == "" && r.cfg.AcceptGap != "" && !rec.Intended():
		return rec, nil // the token may be that of a gap which keeps the change from going on or back
	case u.Token == "" || r.cfg.AcceptGap != u.Token:
		return nil, u
	}
	next := rec.GiveUp()
	r.log.Warn("GAP ACCEPTED: the unfinished walpost recover is given up", "token", u.Token, "gap", u.Error())
	if err := records.Save(ctx, r.store, next, next.Encode()); err != nil {
		return nil, err
	}
	return next, nil
}

// withoutCopy decides about an unfinished snapshot that the configuration no longer asks for.
func (r *opener) withoutCopy(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	if !r.cfg.SkipSnapshot {
		return nil, fault.Config(fmt.Errorf("the snapshot that was begun is not finished: %d rows are published, and source.snapshot does not ask for it any more", rec.Copy.Rows),
			"Set source.snapshot as it was to finish it, or to \"never\" to leave out the remaining rows.")
	}
	r.log.Warn("THE SNAPSHOT IS GIVEN UP, because source.snapshot is never: the rows of the table that are not published yet are left out", "rows", rec.Copy.Rows)
	if rec.Copy.Slot { // the record of the next epoch leaves the copy out
		return rec, nil
	}
	if err := records.Save(ctx, r.store, rec, nil); err != nil {
		return nil, err
	}
	return nil, nil //nolint:nilnil // no record is none
}

// copies reports whether this process goes on with the copy that rec asks for.
func (r *opener) copies(rec *checkpoint.Record) bool {
	return r.cfg.Copying != nil && rec.Copies(r.cfg.Copying.Origin)
}

// planSnapshot plans a first start with a snapshot.
func (r *opener) planSnapshot(ctx context.Context) (*checkpoint.Record, error) {
	found, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	if found.SlotFound.Exists && r.cfg.Copying.After > 0 {
		return nil, nil //nolint:nilnil // the slot has the position
	}
	if found.SlotFound.Exists {
		err := fmt.Errorf("slot %s exists, but no checkpoint belongs to it: with source.snapshot: initial, walpost cannot know which rows are older than the slot", found.Slot)
		if r.foreign++; r.foreign < foreignTries {
			return nil, fault.Retry(err)
		}
		return nil, fault.Config(err, fmt.Sprintf("If this relay ran before (its checkpoint is lost, or Kafka was moved), set source.snapshot to \"never\": walpost then begins at the position of the slot. "+
			"Only if no relay has ever read the slot, drop it (SELECT pg_drop_replication_slot('%s');): walpost then creates it again, together with the snapshot. "+
			"A drop loses what only the slot has, and the snapshot publishes every row of the table.", found.Slot))
	}
	if err := r.cfg.Copying.Tables.Check(ctx); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return r.intend(ctx, nil, found, found.Server.Position(), checkpoint.Copy{Origin: checkpoint.OriginSnapshot, After: r.cfg.Copying.After})
}

// planRecover plans a recover, or the rest of one. If the slot of an unfinished recover is lost
// too, everything is planned again from the original gap. Rows that were written since that slot
// was made are in no stream any more, even those of finished tables. Kafka shows which rows are
// published, by their ids.
func (r *opener) planRecover(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	begun := rec.Copies(checkpoint.OriginRecover)
	if rec.Intended() && !begun { // of a snapshot
		return nil, fmt.Errorf("%w: walpost run has not created the slot yet", ErrNoGap)
	}
	found, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	if moved, err := r.newer(ctx, rec); err != nil { // a working relay moves the record and then the slot
		return nil, err
	} else if moved != nil {
		rec, begun = moved, moved.Copies(checkpoint.OriginRecover)
		later, err := r.look(ctx) // this record can be ahead of where the server was before
		if err != nil {
			return nil, err
		}
		if later.SystemID != found.SystemID || later.Timeline != found.Timeline {
			return nil, errMoved
		}
		found.Server = later.Server
	}
	back := rec.GoBack(found)
	if back != nil {
		if err := records.Save(ctx, r.store, back, back.Encode()); err != nil {
			return nil, err
		}
		rec, begun = back, false
	}
	_, err = checkpoint.Judge(rec, found)
	var gap *checkpoint.Refusal
	other := errors.As(err, &gap) && gap.Reason == checkpoint.OtherSource
	changed := rec.ChangeFits(found)
	switch {
	case changed != nil:
		return nil, changed
	case err == nil && back != nil:
		return nil, fmt.Errorf("%w: the unfinished change of the source is undone, and walpost run continues as before the change", ErrNoGap)
	case begun && (err == nil || rec.Intended() && !other):
		return rec, nil
	case err == nil && rec == nil:
		return nil, fmt.Errorf("%w: no checkpoint belongs to the slot, and the first walpost run begins at the position of the slot", ErrNoGap)
	case err == nil && len(rec.Accepted) > 0:
		open := rec.Accepted[0]
		return nil, fmt.Errorf("%w for recover: gap %s was accepted and is still open (%s). Publish its rows, which %s finds, and then run %s",
			ErrNoGap, open.Token, open.Gap, fault.Command("verify"), advice.Close(open.Token))
	case err == nil:
		return nil, fmt.Errorf("%w: the slot exists, and the checkpoint fits it", ErrNoGap)
	case errors.Is(err, checkpoint.ErrNoSlot):
		return nil, fmt.Errorf("%w: there is neither a slot nor a checkpoint, and the first walpost run creates both", ErrNoGap)
	}
	kept := gap != nil && gap.KeepsSlot()
	if !kept && (gap == nil || !gap.Recoverable()) {
		return nil, err
	}
	if other && found.SlotFound.Exists {
		return nil, fault.Config(fmt.Errorf("slot %s exists, but the relay did not read the slot while it polled the table: the slot would deliver events that are already in Kafka again", found.Slot),
			fmt.Sprintf("Drop the slot: SELECT pg_drop_replication_slot('%s'); Then run %s again, which creates it.", found.Slot, fault.Command("recover")))
	}
	if other && r.cfg.Parking != nil {
		if err := parking.None(ctx, r.cfg.Parking, r.cfg.Poison.ParkingTopic, r.cfg.Name, rec.Parking); err != nil {
			return nil, err
		}
	}
	if err := r.cfg.Copying.Tables.Check(ctx); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	if kept { // nothing is written before this process holds the slot: accept asks the person
		return rec, nil
	}
	next, was := rec.RecoverOf(gap.From)
	if other && !begun {
		next.Former = rec
	}
	if begun {
		next.From, next.Rows = was.From, was.Rows
	}
	if err := r.cfg.Copying.Gap(ctx, gap, was, &next); err != nil {
		return nil, err
	}
	return r.intend(ctx, rec, found, next.From, next)
}

// recoverKept is accept for a recover that keeps the slot. The rows are published from the table,
// and then the stream goes on at the record. The recover includes what an unfinished copy has yet
// to publish.
func (r *opener) recoverKept(ctx context.Context, gap *checkpoint.Refusal, found cdc.Identity) (*checkpoint.Record, error) {
	base := *gap.Record
	if start := base.Start(&found); start < base.Position { // nothing of Next is delivered
		base.Position, base.Delivered = start, start
	}
	c, was := base.RecoverOf(gap.From)
	if err := r.cfg.Copying.Gap(ctx, gap, was, &c); err != nil {
		return nil, err
	}
	c.Slot = true
	if was != nil {
		c.Rows = was.Rows
		if was.From != 0 {
			c.From = min(c.From, was.From)
		}
	}
	base.Published, base.Next, base.Copy = checkpoint.Seen(found), nil, &c
	return &base, nil
}

// look opens the source without making anything, and returns what it found.
func (r *opener) look(ctx context.Context) (cdc.Identity, error) {
	sess, err := r.source.Open(ctx, false, false)
	if err != nil {
		return cdc.Identity{}, fmt.Errorf("open the source: %w", err)
	}
	found := sess.Identity()
	closeSession(ctx, sess)
	return found, nil
}

// intend writes down that a slot is about to be made for c. Nobody holds a slot that does not
// exist. So two processes may do this at the same time, and one of them goes on with what the other has written.
func (r *opener) intend(ctx context.Context, was *checkpoint.Record, found cdc.Identity, lsn cdc.Position, c checkpoint.Copy) (*checkpoint.Record, error) {
	rec := r.record(found, lsn)
	rec.Copy, rec.Published = &c, nil
	if was != nil {
		rec.Epoch, rec.RunID, rec.CommitTime, rec.Accepted, rec.Parking = was.Epoch+1, was.RunID, was.CommitTime, was.Accepted, was.Parking
	}
	if err := records.Save(ctx, r.store, rec, rec.Encode()); err != nil {
		return nil, err
	}
	return rec, nil
}

// openFor opens the session that rec asks for. base is the record to judge the session by.
func (r *opener) openFor(ctx context.Context, rec *checkpoint.Record) (sess Session, base *checkpoint.Record, err error) {
	if !rec.Intended() {
		return r.openKnown(ctx, rec)
	}
	// Any slot that is found or made will do, because the rows that are not in its stream are read
	// after it was made.
	if sess, err = r.cfg.Copying.Tables.Open(ctx); err != nil {
		return nil, nil, err
	}
	if found := sess.Identity(); found.SlotFound.Exists {
		base = rec.Begun(found)
	}
	return sess, base, nil
}

// openKnown is openFor for a slot that rec knows, or that nobody knows.
func (r *opener) openKnown(ctx context.Context, rec *checkpoint.Record) (sess Session, base *checkpoint.Record, err error) {
	if sess, err = r.source.Open(ctx, false, false); err != nil {
		return nil, nil, err
	}
	if rec != nil || sess.Identity().SlotFound.Exists || !r.cfg.Create {
		return sess, rec, nil
	}
	closeSession(ctx, sess)
	if c := r.cfg.Copying; c != nil && c.After > 0 {
		return nil, nil, fault.Retry(errors.New("the slot is gone that was there a moment ago"))
	}
	sess, err = r.source.Open(ctx, true, false)
	return sess, nil, err
}
