package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/records"
)

// An attempt is the result of one try to open a session. Exactly one of err and sess is set.
type attempt struct {
	err  error
	sess Session

	found             cdc.Identity // as of when this session holds the slot
	start             cdc.Position // where the session streams from
	checkpoint.Stored              // Rec is written by this attempt, and durable
	own               bool         // this process wrote the record before Rec, so nobody held the slot since
	gap               bool         // a gap was accepted
	fenced            bool         // Committer.Fence was called, perhaps by a try before, and so own is false

	// epoch is the one that this attempt took, 0 for none. It can be set beside err. Then the
	// record may be durable or not.
	epoch uint64
}

// An opener opens sessions: it reads the record, judges the slot by it, and takes both over. One
// attempt at a time uses it, beside the loop.
type opener struct {
	cfg    Config
	source Source
	store  *records.Exclusive
	log    *slog.Logger
	holder string // names this process in its checkpoints: 16 random hexadecimal digits

	committer Committer // nil for at_least_once

	foreign int                  // how often in a row a slot was found without a checkpoint
	loss    string               // token of the lost records that this attempt goes on without
	gap     *checkpoint.Accepted // of that loss, if a person has accepted it; nil for none
	made    bool                 // this process made the slot
	peeked  bool                 // the record of this attempt was read before Fence, so there may be a newer one
	certain bool                 // the next attempt reads the newest one

	unexpected *checkpoint.Stored // what the attempt before read while it held the slot, and did not expect; nil for none
}

func newOpener(cfg Config, source Source, store Store) *opener {
	return &opener{
		cfg: cfg, source: source, store: records.NewExclusive(store), log: cmp.Or(cfg.Logger, slog.Default()), holder: fmt.Sprintf("%016x", rand.Uint64()),
	}
}

// errMoved says that another process moved the checkpoint, or that a record of this one has arrived late.
var errMoved = errors.New("the checkpoint moved while this process waited for the slot")

// open makes one attempt. While another process holds the slot, the attempt waits, until ctx ends.
// It first tells inUse about that process.
//
// The slot is the lock. Whoever held the slot before may have moved the record after this attempt
// first read it. So the attempt reads the record once more when it holds the slot. Only then it
// writes the next epoch. A former holder that wakes up later writes where nobody looks.
func (r *opener) open(ctx context.Context, inUse func(why string)) attempt {
	fenced := false
	for r.certain = false; ; {
		a := attempt{fenced: fenced}
		if a.err = r.try(ctx, &a, inUse); a.err != nil {
			closeSession(ctx, a.sess)
			a.sess = nil
		}
		fenced = a.fenced
		if r.peeked && (fault.NeedsPerson(a.err) || fault.Misconfigured(a.err)) && ctx.Err() == nil { // perhaps of an older record only
			r.certain = true
			continue
		}
		if !errors.Is(a.err, errMoved) || ctx.Err() != nil {
			return a
		}
		r.log.Info(errMoved.Error() + ": starting at the present position of the checkpoint")
	}
}

// try fills a. If it returns an error, a may have a session that is of no use.
func (r *opener) try(ctx context.Context, a *attempt, inUse func(why string)) error {
	r.loss, r.gap = "", nil
	stored, err := r.first(ctx)
	if err = r.judgeLoss(ctx, err); err != nil {
		return err
	}
	if err := r.superseded(stored.Rec); err != nil {
		return err
	}
	rec, err := r.plan(ctx, stored.Rec)
	if err != nil {
		return err
	}
	var base *checkpoint.Record
	if a.sess, base, err = r.openFor(ctx, rec); err != nil {
		return fmt.Errorf("open the source: %w", err)
	}
	a.found = a.sess.Identity()
	r.made = r.made || a.found.SlotFound.Created
	a.start, err = checkpoint.Judge(base, a.found)
	if base == nil && err == nil && !r.made {
		r.log.Warn("the slot existed before, and no checkpoint belongs to it: walpost starts at the position of the slot. "+
			"If this relay used the slot before, its checkpoint is lost, and events may be missing", "slot", a.found.Slot, "lsn", a.start.String())
	}
	if errors.Is(err, checkpoint.ErrNoSlot) {
		return fault.Config(fmt.Errorf("slot %s: %w", a.found.Slot, err), "Check source.dsn and source.slot first: "+
			"the server or the slot's name may be wrong, or the slot of a Debezium connector was dropped. "+
			"A new slot has no events from before its creation. Set source.create: true only for a relay that is new.")
	}
	if err != nil {
		// The record was read before the slot was looked at. A working holder moves the record and
		// then the slot, which is no gap.
		moved, unread := r.newer(ctx, rec)
		if unread != nil {
			return unread
		}
		if moved != nil {
			rec, base = moved, moved
			if a.start, err = checkpoint.Judge(base, a.found); err != nil {
				return errMoved
			}
		}
	}
	if err != nil {
		if base, err = r.accept(ctx, a, err); err != nil {
			return err
		}
		a.start = base.Position
	}
	if base != nil && a.start < base.Position {
		r.log.Info("a standby was promoted before it had replayed all WAL up to the checkpoint: the missing WAL had no events, so walpost continues where the histories part",
			slog.String(a.start.Log()), "checkpoint", base.Position.String(), "timeline", a.found.Timeline)
	}
	if base.Copies(checkpoint.OriginRecover) && !r.copies(base) {
		return base.Unfinished()
	}
	if a.found.SlotFound.ActivePID != 0 {
		inUse(standby(a.found, stored.Rec))
	}
	if err = r.startUnfenced(ctx, a); errors.As(err, new(*superseded)) {
		return err
	}
	if err != nil {
		return fmt.Errorf("start streaming from %s: %w", a.start, err)
	}
	// From here on the server wants signs of life, even while the store is slow. They confirm
	// nothing new.
	a.found = a.sess.Identity()
	return alive(ctx, a.sess, min(a.found.SlotFound.Confirmed, a.start), func(ctx context.Context) error {
		// The checkpointer must not write between this read and this write: if a former attempt
		// failed, the checkpointer may write under the same epoch, and its record may be further.
		return r.store.Alone(ctx, func(store records.Store) error { return r.takeOver(ctx, store, a, rec, base) })
	})
}

// standby says for whom this process waits. The holder is the one in the status of that process.
func standby(found cdc.Identity, rec *checkpoint.Record) string {
	why := found.InUse() + ": waiting for it"
	if rec != nil && !rec.Intended() {
		why += fmt.Sprintf(" (standby behind holder %s, epoch %d)", rec.Holder, rec.Epoch)
	}
	return why
}

// takeOver writes the record of a's epoch, if the newest record still is rec. base is the record
// that the source was judged by. The caller has the store for itself.
func (r *opener) takeOver(ctx context.Context, store records.Store, a *attempt, rec, base *checkpoint.Record) error {
	if r.committer != nil { // before the record is read: what another process was committing is in it, or will never be
		a.fenced = true
		if err := r.committer.Fence(ctx); err != nil {
			return fault.Retry(err)
		}
	}
	now, err := records.Newest(ctx, store, r.cfg.Name, r.loss)
	if err != nil {
		return err
	}
	held, older := now.Rec, now.Older
	// A record of a slot that was about to be made does not tell who held the former slot. A record of
	// the same epoch by another holder tells that this process was not the only one.
	a.own = held != nil && held.Holder == r.holder && !held.Intended() &&
		!slices.ContainsFunc(older, func(key string) bool { return strings.HasPrefix(key, held.Key()+".") })
	// The first record of a start that was given up may have arrived since rec was read. It says nothing of this process's progress, and
	// another process may have had the slot, and read the checkpoint, before it came.
	if a.own && !a.gap && rec != nil && rec.HolderKey() == held.HolderKey() {
		rec, base = held, held // this process moved it, and the loop skips what it has received
	}
	if !records.Same(rec, held) {
		r.unexpected = &now
		return errMoved
	}
	lsn, err := checkpoint.Judge(base, a.found)
	if err != nil {
		return err
	}
	next := r.record(a.found, lsn)
	next.Follow(base, held, r.copies(base))
	// If the slot is new, either the tables had no rows, or all that they have is published.
	if r.gap != nil && base == nil && !r.made && a.found.Polled == nil && !a.found.Tableless {
		next.Accepted = append(next.Accepted, *r.gap)
	}
	next.Accepted = checkpoint.StillOpen(next.Accepted, now.Closed)
	for _, token := range now.Closed {
		older = append(slices.Clip(older), checkpoint.CloseKey(r.cfg.Name, token))
	}
	if held != nil {
		older = append(slices.Clip(older), held.HolderKey())
	}
	a.own = a.own && !a.fenced
	a.epoch = next.Epoch
	save := records.Save
	if a.gap && a.found.SlotFound.Created { // the record before doesn't fit the new slot: another attempt would find another gap
		save = records.SaveWaiting
	}
	if err := save(ctx, store, next, next.Encode()); err != nil {
		return err
	}
	a.Stored = checkpoint.Stored{Rec: next, Older: older, Halts: now.Halts, Skips: now.Skips}
	return nil
}

// newer returns the newest record if another process has moved rec on, and nil if rec is the newest. Where a slot is about to be made, it
// returns errMoved.
func (r *opener) newer(ctx context.Context, rec *checkpoint.Record) (*checkpoint.Record, error) {
	now, err := r.newest(ctx)
	if err != nil || records.Same(rec, now.Rec) {
		return nil, err
	}
	if now.Rec == nil || rec == nil || now.Rec.Intended() || rec.Intended() {
		return nil, errMoved
	}
	return now.Rec, nil
}

// newest loads what the store has of this relay.
func (r *opener) newest(ctx context.Context) (checkpoint.Stored, error) {
	return records.Newest(ctx, r.store, r.cfg.Name, r.loss)
}

// judgeLoss decides whether an attempt goes on without a record after the store has lost records.
// It does so if the token of the loss was accepted. It also does so if the slot is lost: then the
// refusal of the slot names the gap, and recover closes it.
func (r *opener) judgeLoss(ctx context.Context, err error) error {
	var lost LostRecords
	if !errors.As(err, &lost) {
		return err
	}
	if r.cfg.AcceptGap == lost.GapToken() {
		r.log.Warn("GAP ACCEPTED: continuing without a checkpoint", "token", lost.GapToken(), "gap", lost.Error())
		r.gap = &checkpoint.Accepted{Token: lost.GapToken(), Gap: lost.Error(), Time: time.Now().UTC()}
	} else {
		found, unknown := r.look(ctx)
		if unknown != nil {
			return unknown
		}
		if _, refused := checkpoint.Judge(nil, found); !errors.As(refused, new(*checkpoint.Refusal)) {
			return err
		}
	}
	r.loss = lost.GapToken()
	return nil
}

// record returns a first record at a position of the source that was found.
func (r *opener) record(found cdc.Identity, at cdc.Position) *checkpoint.Record {
	return checkpoint.First(r.cfg.Name, r.holder, found, at, time.Now())
}

// accept steps over the gap that refused names, if it is the one gap that the configuration
// accepts. It leaves in a.sess a session whose slot is usable, and returns the record to judge by
// from now on, which is where that slot stands. An unfinished snapshot goes on behind the gap,
// because its rows are in the tables and a new slot has a snapshot of them.
func (r *opener) accept(ctx context.Context, a *attempt, refused error) (*checkpoint.Record, error) {
	var gap *checkpoint.Refusal
	if !errors.As(refused, &gap) {
		return nil, refused
	}
	if c := r.cfg.Copying; c != nil && c.Origin == checkpoint.OriginRecover && gap.KeepsSlot() {
		a.gap = true
		return r.recoverKept(ctx, gap, a.found)
	}
	if r.cfg.AcceptGap == "" {
		return nil, refused
	}
	if gap.Token != r.cfg.AcceptGap {
		return nil, fmt.Errorf("--accept-gap names gap %s, but walpost found another gap: %w", r.cfg.AcceptGap, refused)
	}
	if gap.ChangesSource() && r.cfg.Parking != nil {
		if err := parking.None(ctx, r.cfg.Parking, r.cfg.Poison.ParkingTopic, r.cfg.Name, gap.Record.Parking); err != nil {
			return nil, err
		}
	}
	r.log.Warn("GAP ACCEPTED: continuing after it", "token", gap.Token, "gap", refused.Error())
	closeSession(ctx, a.sess)
	var err error
	if r.copies(gap.Record) && gap.NeedsSlot() {
		a.sess, err = r.cfg.Copying.Tables.Open(ctx)
	} else {
		a.sess, err = r.source.Open(ctx, gap.NeedsSlot(), gap.NeedsSlot())
	}
	if err != nil {
		return nil, fmt.Errorf("open the source after the accepted gap: %w", err)
	}
	a.found, a.gap = a.sess.Identity(), true
	start, err := checkpoint.AcceptedStart(gap, a.found)
	if err != nil {
		return nil, fault.Person(fmt.Errorf("step over gap %s: %w", gap.Token, err), "Start walpost again. It prints a new token for the present gap.")
	}
	base := r.record(a.found, start)
	base.Accept(gap)
	switch {
	case gap.Reason == checkpoint.TableReplaced: // Next counts rows of the former table
		base.Border, base.CommitTime = gap.Record.Border, gap.Record.CommitTime
	case gap.KeepsPosition(): // no part of the stream or of a copy is in the gap
		base.Copy, base.CommitTime = gap.Record.Copy, gap.Record.CommitTime
		if start == gap.Record.Position {
			base.Next = gap.Record.Next
		}
	case r.copies(gap.Record):
		base.Copy = gap.Record.CopyBehind(a.found)
	}
	return base, nil
}
