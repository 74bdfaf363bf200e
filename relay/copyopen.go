package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

// Copying is what a Relay needs to publish rows of the table itself ahead of the stream.
type Copying struct {
	// Origin says which rows: checkpoint.OriginSnapshot, those from before the slot, at a first start;
	// checkpoint.OriginRecover, those that a lost slot may have left out. With OriginRecover, Run ends when they are published.
	Origin string
	Tables Tables
	// Gap is asked, with OriginRecover, before anything is changed: whether to replace the slot of this gap (Refusal.NeedsSlot), or to close
	// it on the slot that is there. begun is the unfinished snapshot or recover that is cut short, nil for none; what it has not published is part of the gap. Gap returns the commit time from
	// which on rows may be missing (zero: any), or an error that ends Run.
	Gap func(ctx context.Context, gap *checkpoint.Refusal, begun *checkpoint.Copy) (since time.Time, err error)
}

// Tables opens what is read beside the stream. Its methods are called by any goroutine.
type Tables interface {
	// Check says, before a slot is made, what keeps the rows from being read.
	Check(ctx context.Context) error
	// Open is Source.Open with create set, but the session of a slot that it makes keeps a snapshot of the rows from before it.
	Open(ctx context.Context, replaceLost bool) (Session, error)
	// Rows reads the rows that c asks for and that are not published yet, in order. Where sess has no snapshot (any more) they are those
	// that are in the tables now; what was written since the slot was made is among them then. It frees sess's snapshot.
	Rows(ctx context.Context, sess Session, c checkpoint.Copy) (Rows, error)
}

// Rows is one reading. One goroutine uses it.
type Rows interface {
	// Next returns the next row, as an Insert that is valid until the next call, and its place. Behind the last row of each table it returns
	// a nil event and a Mark with only the table's name, and behind the last table a nil event and an empty Mark.
	Next(ctx context.Context) (*cdc.Event, checkpoint.Mark, error)
	Close()
}

// ErrNoGap says that a recover has nothing to do: the slot is there, and the checkpoint fits it.
var ErrNoGap = errors.New("there is no gap: the slot is there, and the checkpoint fits it")

// ErrDeclined says that a person does not want what Copying asked for. It ends Run, and is no fault.
var ErrDeclined = errors.New("declined")

// errCopied ends a Run that was to publish the rows of a gap and nothing else.
var errCopied = errors.New("the rows are published")

// foreignTries is how often a slot without a checkpoint is looked at once more: another process may just have made it, and is about to write one.
const foreignTries = 4

// plan decides what an attempt has to do with rec, the newest record (nil for none): it returns the record to go on with. Where a slot is
// to be made for rows of the table, that is written down first, so that whoever comes next knows whose slot it is.
func (r *Relay) plan(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	c := r.cfg.Copying
	switch {
	case c != nil && c.Origin == checkpoint.OriginRecover:
		return r.planRecover(ctx, rec)
	case c != nil && rec.Copies(c.Origin):
		return rec, nil
	case rec.Copies(checkpoint.OriginRecover) && (r.cfg.AcceptGap == "" || intended(rec)):
		// Where the slot is still to be made, no token can name what is missing: only recover goes on.
		return nil, unfinishedRecover(rec)
	case rec.Copies(checkpoint.OriginSnapshot):
		return r.withoutCopy(ctx, rec)
	case rec == nil && c != nil && r.cfg.Create:
		return r.planSnapshot(ctx)
	}
	return rec, nil
}

// unfinishedRecover is the error of a run that found a recover which is not finished.
func unfinishedRecover(rec *checkpoint.Record) error {
	return fault.Person(fmt.Errorf("a recover of the gap behind %s is not finished: %d rows are published", rec.Copy.From, rec.Copy.Rows),
		fault.Command("recover")+" goes on with it.")
}

// withoutCopy decides about a snapshot that was begun and is not wanted by the configuration any more.
func (r *Relay) withoutCopy(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	if !r.cfg.SkipSnapshot {
		return nil, fault.Config(fmt.Errorf("the snapshot that was begun is not finished: %d rows are published, and source.snapshot is not initial any more", rec.Copy.Rows),
			"Write snapshot: initial under source: to finish it, or snapshot: never to leave the rest out.")
	}
	r.log.Warn().Uint64("rows", rec.Copy.Rows).Msg("THE SNAPSHOT IS GIVEN UP, because source.snapshot is never: the rows of the table that are not published yet are left out")
	if rec.Copy.Slot { // the record of the next epoch leaves the copy out
		return rec, nil
	}
	if err := r.store.Save(ctx, rec.StoredKey(), nil); err != nil {
		return nil, waitable(fmt.Errorf("remove checkpoint %s: %w", rec.Key(), err))
	}
	return nil, nil //nolint:nilnil // no record is none
}

// copies reports whether this process goes on with the copy that rec asks for.
func (r *Relay) copies(rec *checkpoint.Record) bool {
	return r.cfg.Copying != nil && rec.Copies(r.cfg.Copying.Origin)
}

// planSnapshot is a first start.
func (r *Relay) planSnapshot(ctx context.Context) (*checkpoint.Record, error) {
	found, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	if found.SlotFound.Exists {
		err := fmt.Errorf("slot %s is there, and no checkpoint knows it: source.snapshot: initial cannot tell which rows were there before it", found.Slot)
		if r.foreign++; r.foreign < foreignTries {
			return nil, fault.Retry(err)
		}
		return nil, fault.Config(err, fmt.Sprintf("Drop the slot (SELECT pg_drop_replication_slot('%s');): it is made anew, together with the snapshot. "+
			"Or write snapshot: never, to begin where the slot stands.", found.Slot))
	}
	if err := r.cfg.Copying.Tables.Check(ctx); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return r.intend(ctx, nil, found, found.Server, checkpoint.Copy{Origin: checkpoint.OriginSnapshot})
}

// planRecover is the start of a recover, or of going on with one. Where the slot of an unfinished one is lost too, all is planned anew from
// the original gap: rows that were written since the slot was made are in no stream any more, those of finished tables too. What is
// published is found in Kafka by its ids.
func (r *Relay) planRecover(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	begun := rec.Copies(checkpoint.OriginRecover)
	switch {
	case intended(rec) && begun:
		return rec, nil
	case intended(rec): // of a snapshot: run makes the slot
		return nil, ErrNoGap
	}
	found, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	_, err = checkpoint.Judge(rec, found)
	var gap *checkpoint.Refusal
	switch {
	case err == nil && begun:
		return rec, nil
	case err == nil || errors.Is(err, checkpoint.ErrNoSlot):
		return nil, ErrNoGap
	case errors.As(err, &gap) && gap.Reason == checkpoint.PublicationChanged:
		// The slot is kept, so nothing is written before this process holds it: accept asks.
		if err := r.cfg.Copying.Tables.Check(ctx); err != nil {
			return nil, fmt.Errorf("recover: %w", err)
		}
		return rec, nil
	case !errors.As(err, &gap) || !gap.NeedsSlot() || gap.Reason != checkpoint.SlotLost && gap.Reason != checkpoint.SlotMissing:
		return nil, err
	}
	if err := r.cfg.Copying.Tables.Check(ctx); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	next := checkpoint.Copy{Origin: checkpoint.OriginRecover, From: gap.From}
	var was *checkpoint.Copy
	if rec != nil {
		was = rec.Copy
	}
	if begun {
		next.From, next.Rows = was.From, was.Rows
	}
	if next.Since, err = r.cfg.Copying.Gap(ctx, gap, was); err != nil {
		return nil, err
	}
	return r.intend(ctx, rec, found, next.From, next)
}

// recoverKept is accept for a recover whose gap leaves the slot as it is: the rows are published from the table, and then
// the stream goes on where the record is. What an unfinished copy has yet to publish becomes part of it.
func (r *Relay) recoverKept(ctx context.Context, gap *checkpoint.Refusal, found cdc.Identity) (*checkpoint.Record, error) {
	base := *gap.Record
	since, err := r.cfg.Copying.Gap(ctx, gap, base.Copy)
	if err != nil {
		return nil, err
	}
	c := checkpoint.Copy{Origin: checkpoint.OriginRecover, Slot: true, From: gap.From, Since: since}
	if was := base.Copy; was != nil {
		c.Rows = was.Rows
		if was.From != 0 {
			c.From = min(c.From, was.From)
		}
	}
	base.Published, base.Next, base.Copy = checkpoint.Seen(found), nil, &c
	return &base, nil
}

// look opens the source without making anything, and says what was found.
func (r *Relay) look(ctx context.Context) (cdc.Identity, error) {
	sess, err := r.source.Open(ctx, false, false)
	if err != nil {
		return cdc.Identity{}, fmt.Errorf("open the source: %w", err)
	}
	found := sess.Identity()
	closeSession(ctx, sess)
	return found, nil
}

// intend writes down that a slot is about to be made, for c. Nobody holds the slot, since there is none: two processes that do this at the
// same time write the same.
func (r *Relay) intend(ctx context.Context, was *checkpoint.Record, found cdc.Identity, lsn cdc.Position, c checkpoint.Copy) (*checkpoint.Record, error) {
	rec := &checkpoint.Record{
		Name: r.cfg.Name, Epoch: 1, SystemID: found.SystemID, Timeline: found.Timeline, Slot: found.Slot, Database: found.Database,
		LSN: lsn, Copy: &c, Holder: r.cfg.Holder, Time: time.Now().UTC(),
	}
	if was != nil {
		rec.Epoch, rec.RunID, rec.CommitTime = was.Epoch+1, was.RunID, was.CommitTime
	}
	if err := r.store.Save(ctx, rec.Key(), rec.Encode()); err != nil {
		return nil, waitable(fmt.Errorf("write checkpoint %s: %w", rec.Key(), err))
	}
	return rec, nil
}

// intended says whether rec is of a slot that was about to be made.
func intended(rec *checkpoint.Record) bool { return rec != nil && rec.Copy != nil && !rec.Copy.Slot }

// openFor opens the session that rec asks for. base is what to judge it by.
func (r *Relay) openFor(ctx context.Context, rec *checkpoint.Record) (sess Session, base *checkpoint.Record, err error) {
	if !intended(rec) {
		sess, err = r.source.Open(ctx, rec == nil && r.cfg.Create, false)
		return sess, rec, err
	}
	// The slot that is found, or made, is the one: rows that are not in its stream are read from the table after it was made.
	if sess, err = r.cfg.Copying.Tables.Open(ctx, true); err != nil {
		return nil, nil, err
	}
	slot := sess.Identity().SlotFound
	if !slot.Exists {
		return sess, nil, nil
	}
	of := *rec
	of.LSN, of.Timeline, of.Published = slot.Confirmed, sess.Identity().Timeline, checkpoint.Seen(sess.Identity())
	return sess, &of, nil
}
