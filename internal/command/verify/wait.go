package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// Polled is what verify asks about a relay that polls the table.
type Polled struct {
	XIDColumn string // source.poll.xid_column
	// Reached reads how far the relay has come.
	Reached func(ctx context.Context) (Reached, error)
	// Refused says why a start of the relay would refuse what Reached said, such as that the server has another history now; "" if
	// it would not.
	Refused func(ctx context.Context) (why string, err error)
	// Stalled says why a relay that has reached a position comes no further.
	Stalled func(ctx context.Context, at cdc.Position) (why string, err error)
}

// Reached is how far a relay that polls has come: all rows of transactions below Position are delivered, and
// all rows that Border sees.
type Reached struct {
	Position cdc.Position
	Border   cdc.Snapshot
	Unknown  string // why nothing tells what is delivered; "" if it is known
}

// has reports whether the rows of a transaction are delivered.
func (r *Reached) has(xid uint64) bool {
	return r.Unknown == "" && (xid < r.Position.Number() || r.Border.Sees(xid))
}

// A progress is how far the relay has come, at one look.
type progress struct {
	at     cdc.Position
	lost   string // why the relay will come no further; "" if it may
	active bool   // a process reads the slot
}

// wait waits until the relay has passed what was read. slot is the position of the snapshot for a relay that reads a slot. wait returns
// why it gave up, or "".
func (v *verifier) wait(ctx context.Context, slot cdc.LSN) (string, error) {
	conn, err := v.From.DB.ConnectSQL(ctx)
	if err != nil {
		return "", err
	}
	defer pg.Close(conn)
	var before cdc.Position
	moved, said := time.Now(), false
	for {
		now, passed, err := v.look(ctx, conn, slot)
		if passed || err != nil || now.lost != "" {
			return now.lost, err
		}
		switch {
		case now.at > before:
			before, moved = now.at, time.Now()
		case time.Since(moved) >= v.Wait:
			return v.stalled(ctx, now, slot)
		}
		if !said {
			if v.Polled != nil {
				v.Say(fmt.Sprintf("waiting until the relay has delivered transaction %d, whose rows were read; it has delivered all transactions below %s", v.newest, now.at))
			} else {
				v.Say(fmt.Sprintf("waiting until slot %s has passed %s, where the rows were read; it is at %s", v.Slot, slot, now.at))
			}
			said = true
		}
		every := 200 * time.Millisecond
		if v.Polled != nil {
			every = time.Second // each look reads the topic of checkpoints
		}
		if !wait.For(ctx, every) {
			return "", context.Cause(ctx)
		}
	}
}

// look reads how far the relay has come, and whether it has passed what was read.
func (v *verifier) look(ctx context.Context, conn *pgconn.PgConn, slot cdc.LSN) (now progress, passed bool, err error) {
	if v.Polled == nil {
		now, err = v.lookSlot(ctx, conn)
		return now, err == nil && now.lost == "" && now.at >= slot.Position(), err
	}
	if v.reached, err = v.Polled.Reached(ctx); err != nil || v.reached.Unknown != "" {
		return progress{lost: v.reached.Unknown}, false, err
	}
	now.at = v.reached.Position
	if passed = v.newest == 0 || now.at.Number() > v.newest; passed {
		// A position says nothing if its ids are from another history of the server.
		now.lost, err = v.Polled.Refused(ctx)
		v.reached.Unknown = now.lost
	}
	return now, passed, err
}

func (v *verifier) lookSlot(ctx context.Context, conn *pgconn.PgConn) (now progress, err error) {
	found, err := pg.ReadSlot(ctx, conn, v.Slot)
	switch {
	case err != nil:
	case found == nil:
		now.lost = fmt.Sprintf("slot %s does not exist", v.Slot)
	case found.Lost() != "" || found.Confirmed == 0:
		now.lost = fmt.Sprintf("slot %s is lost", v.Slot)
	default:
		now.at, now.active = found.Confirmed.Position(), found.Active
	}
	return now, err
}

// stalled says why verify gives up waiting.
func (v *verifier) stalled(ctx context.Context, now progress, slot cdc.LSN) (string, error) {
	if v.Polled != nil {
		why, err := v.Polled.Refused(ctx)
		if v.reached.Unknown = why; why == "" && err == nil {
			why, err = v.Polled.Stalled(ctx, now.at)
			why = fmt.Sprintf("for %s the relay has delivered only the transactions below %s, and rows of transaction %d were read (%s)", v.Wait, now.at, v.newest, why)
		}
		return why, err
	}
	why := "no process reads the slot: start walpost run"
	if now.active {
		why = "walpost run reads the slot, but makes no progress: read its log"
	}
	return fmt.Sprintf("slot %s has been at %s for %s, but the rows were read at %s (%s)", v.Slot, now.at, v.Wait, slot, why), nil
}
