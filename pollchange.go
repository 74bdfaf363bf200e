package walpost

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/poll"
)

// formerSlot makes sure, before a recover, that no relay delivers by another source: that relay would go on, and its events would
// come twice. If the relay read a slot and polls from now on, formerSlot returns the slot.
func (r *Relay) formerSlot(ctx context.Context) (slot string, err error) {
	rec, err := r.stored(ctx)
	to := r.cfg.counts()
	if rec != nil && rec.Copy != nil && rec.Copy.Former != nil && rec.Polled.Counts(to) { // a recover that was interrupted has begun the change
		rec = rec.Copy.Former
	}
	if err != nil || rec == nil || rec.Polled.Counts(to) {
		return "", nil //nolint:nilerr // the relay's loop reads the store once more, and says what is wrong
	}
	if p := cmp.Or(rec.Polled, to); p.Claims && (rec.Polled == nil || to == nil) {
		return "", fault.Config(fmt.Errorf("the relay cannot change between the WAL and source.poll.strategy %s in one step", p.Strategy),
			"Change to source.kind poll with source.poll.strategy cursor first, and run "+fault.Command("recover")+". Then set source.kind and source.poll.strategy as you want them, and run the same command again.")
	}
	conn, err := r.rows.DB.ConnectSQL(ctx)
	if err != nil {
		return "", err
	}
	defer pg.Close(conn)
	var pid int32
	if rec.Polled != nil {
		pid, err = poll.Holder(ctx, conn, r.cfg.Name)
	} else {
		var found []struct{ PID int32 }
		found, err = pg.Rows[struct{ PID int32 }](ctx, conn, "read the slot", "SELECT coalesce(active_pid, 0) AS pid FROM pg_replication_slots WHERE slot_name = "+pgname.QuoteLiteral(rec.Slot))
		for _, f := range found {
			slot, pid = rec.Slot, f.PID
		}
	}
	if err == nil && pid != 0 {
		return "", fault.Config(fmt.Errorf("the relay runs with its former configuration (server process %d)", pid), "Stop that walpost run first.")
	}
	return slot, err
}

// formerName reports whether name can be the default name that the relay had with the other kind of source.
func (r *Relay) formerName(name string) bool {
	of := strings.TrimPrefix(name, r.database+".")
	if r.cfg.polls() { // of is a slot, whose name has no dot
		return !strings.Contains(of, ".")
	}
	return slices.ContainsFunc(r.rows.Names.Tables, func(t pgname.Table) bool { return of == t.String() })
}

// formerRecord reports whether rec, which has such a name, is of the other kind of source.
func (r *Relay) formerRecord(rec *checkpoint.Record) bool {
	if r.cfg.polls() {
		return rec.Polled == nil && rec.Name == r.database+"."+rec.Slot
	}
	return rec.Polled != nil
}

// changeStrategy is Recover for a relay whose source.poll.strategy was changed. It reports whether that is so.
func (r *Relay) changeStrategy(ctx context.Context, opts RecoverOptions) (changed bool, err error) {
	if !r.cfg.polls() {
		return false, nil
	}
	store, free, err := r.openStore()
	if err != nil {
		return false, err
	}
	defer free()
	stored, err := readStore(ctx, store.Load, r.cfg.Name)
	rec, to := stored.Rec, r.cfg.Source.Poll.Strategy
	if err != nil || rec == nil || rec.Polled == nil || rec.Polled.Strategy == to {
		return false, err
	}
	was := rec.Polled
	if rec.Copy != nil {
		return true, fault.Config(fmt.Errorf("a recover with source.poll.strategy %s is not finished", was.Strategy), "Set source.poll.strategy back to "+was.Strategy+" and run "+fault.Command("recover")+" to finish it.")
	}
	if was.Strategy == poll.Cursor && was.XIDColumn != r.cfg.Source.Poll.XIDColumn {
		return true, fault.Config(fmt.Errorf("source.poll.xid_column is %q, but the checkpoint was written with %q", r.cfg.Source.Poll.XIDColumn, was.XIDColumn), "Undo the change of source.poll.xid_column, and change only source.poll.strategy.")
	}
	if r.cfg.Stdout == nil {
		parked := r.parkingLog()
		defer closeWithin(parked.Close)
		if err := parking.None(ctx, parked, r.cfg.Delivery.ParkingTopic, r.cfg.Name, rec.Parking); err != nil {
			return true, err
		}
	}
	opts.Say(fmt.Sprintf("the relay changes from source.poll.strategy %s to %s", was.Strategy, to))
	what := "continue with the rows that are not finished"
	switch {
	case was.Strategy == poll.Cursor:
		what = "mark the rows that are delivered (finished_at)"
	case to == poll.Cursor:
		what = "begin at the oldest transaction with an unfinished row, and publish the finished rows of younger transactions again"
	}
	former := poll.Former{Strategy: was.Strategy, At: rec.Position, Border: rec.Border}
	former.Agree = func(found cdc.Identity) error {
		var gap *checkpoint.Refusal
		if _, err := checkpoint.Judge(rec, found); !errors.As(err, &gap) || gap.Reason != checkpoint.OtherSource {
			return advice.Of(err) // the record says nothing about the rows of this server
		}
		yes, err := opts.Ask(strings.ToUpper(what[:1]) + what[1:] + "?")
		if err == nil && !yes {
			err = ErrDeclined
		}
		return err
	}
	if rec.Next != nil && rec.Next.Rows > 0 {
		former.Open, former.Last = rec.Next.Commit, rec.Next.LastEventID
	}
	at, found, marked, err := r.polled.Change(ctx, former)
	if err != nil {
		return true, err
	}
	next := checkpoint.First(r.cfg.Name, "recover-"+strings.ToLower(rand.Text()[:8]), found, at, time.Now())
	next.Epoch, next.Accepted, next.RunID = rec.Epoch+1, rec.Accepted, rec.RunID
	if err := store.Save(ctx, next.HolderKey(), next.Encode()); err != nil {
		return true, fmt.Errorf("write checkpoint: %w", err)
	}
	for _, key := range append(stored.Older, rec.HolderKey()) {
		if err := store.Save(ctx, key, nil); err != nil {
			return true, fmt.Errorf("remove checkpoint: %w", err)
		}
	}
	if was.Strategy == poll.Cursor {
		opts.Say(fmt.Sprintf("%d rows are marked as delivered", marked))
	}
	opts.Say("walpost run goes on with source.poll.strategy " + to)
	return true, nil
}
