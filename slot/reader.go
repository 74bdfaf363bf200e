package slot

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// blockerMinAge is how old a transaction must be to be called a blocker. There is always an oldest one on a busy server.
const blockerMinAge = 5 * time.Second

// behindMin is how much must be unconfirmed before the consumer counts as behind. An idle slot is confirmed only every ten
// seconds.
const behindMin = 16 << 20

// readTimeout bounds one Read beside the caller's context, because a monitor that hangs says nothing. The server bounds a
// statement to less, so that no statement runs on which the client has given up.
const (
	readTimeout      = 20 * time.Second
	statementTimeout = "8s"
)

// A Reader reads a slot's Health on an SQL connection of its own. It keeps the connection, and connects again after an error.
// Its statements read views and no tables, take no lock that anybody waits for, and stand alone: no transaction is open
// between or around them. It must be used by one goroutine at a time.
type Reader struct {
	db     pg.Database
	slot   string
	conn   *pgconn.PgConn
	minAge time.Duration
	unread time.Time // since when nobody was seen reading the slot; zero while somebody reads it

	// seen is when the blockers that the newest Read found were seen first.
	seen map[string]sighting
}

// A sighting is when a blocker was first seen, by our clock and by the server's position. It began before both.
type sighting struct {
	at     time.Time
	server cdc.LSN
}

// NewReader returns a Reader of a slot. It does not connect yet.
func NewReader(db pg.Database, slot string) *Reader {
	return &Reader{db: db, slot: slot, minAge: blockerMinAge}
}

// Read reads the slot as it is now. With walDir it measures WALDirBytes where the role may list pg_wal (pg_monitor), for which the
// server looks at each file in it. Errors have the behaviour of package fault; after one the next Read connects again.
func (r *Reader) Read(ctx context.Context, walDir bool) (Health, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	// The connection may have broken since the last read, so a second attempt uses a fresh connection.
	if r.conn != nil {
		if h, err := r.read(ctx, walDir); err == nil {
			return h, nil
		}
		r.Close()
	}
	conn, err := r.connect(ctx)
	if err != nil {
		return Health{}, fmt.Errorf("monitor slot %s: %w", r.slot, err)
	}
	r.conn = conn
	h, err := r.read(ctx, walDir)
	if err != nil {
		r.Close()
		return Health{}, fmt.Errorf("monitor slot %s: %w", r.slot, err)
	}
	return h, nil
}

func (r *Reader) connect(ctx context.Context) (*pgconn.PgConn, error) {
	cc, err := r.db.SQLConfig()
	if err != nil {
		return nil, err
	}
	cc.RuntimeParams["statement_timeout"] = statementTimeout
	return r.db.Connect(ctx, cc, "connect")
}

// Close ends the connection.
func (r *Reader) Close() {
	pg.Close(r.conn)
	r.conn = nil
}

func (r *Reader) read(ctx context.Context, walDir bool) (Health, error) {
	sent := time.Now()
	found, err := pg.Row[healthRow](ctx, r.conn, "read the slot", healthQuery(r.slot))
	if err != nil {
		return Health{}, err
	}
	h := found.health(r.slot, sent, time.Now())
	r.observeInactive(&h, found.InactiveFor == nil)
	if walDir && found.MayList {
		dir, err := pg.Row[struct{ Bytes int64 }](ctx, r.conn, "measure pg_wal", walDirQuery)
		if err != nil {
			return Health{}, err
		}
		h.WALDirBytes = dir.Bytes
	}
	if h.Exists && h.RetainedBytes >= 0 {
		if h.Blocker, err = r.blocker(ctx, &h); err != nil {
			return Health{}, err
		}
	}
	return h, nil
}

// observeInactive fills InactiveFor, which servers before 17 do not tell.
func (r *Reader) observeInactive(h *Health, untold bool) {
	switch {
	case !h.Exists || h.Active:
		r.unread = time.Time{}
		return
	case r.unread.IsZero():
		r.unread = h.At
	}
	if untold {
		h.InactiveFor, h.InactiveAtLeast = h.At.Sub(r.unread), true
	}
}

// blocker returns what holds WAL although it is confirmed, nil for nothing.
func (r *Reader) blocker(ctx context.Context, h *Health) (*Blocker, error) {
	seen := r.seen
	r.seen = map[string]sighting{}
	slots, err := pg.Rows[blockerRow](ctx, r.conn, "find an older slot", olderSlotQuery(r.slot))
	if err != nil {
		return nil, err
	}
	if len(slots) > 0 && h.RetainedBytes+slots[0].Behind < behindMin {
		slots = nil // another slot that holds little is only another reader at work
	}
	// A slot that holds more WAL than this slot fills the disk, whoever holds this slot back.
	if len(slots) > 0 && slots[0].Behind > h.RetainedBytes {
		return r.describe(&slots[0], seen, h), nil
	}
	found, err := pg.Rows[blockerRow](ctx, r.conn, "find the oldest transaction", blockerQuery)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		// While most of the WAL waits for the consumer, a transaction that the slot has not come to yet is not to blame.
		ours := h.UnconfirmedBytes >= behindMin && 2*h.UnconfirmedBytes > h.RetainedBytes
		if b := r.describe(&found[0], seen, h); b.Age >= r.minAge && (b.Certain || !ours) {
			return b, nil
		}
	}
	if len(slots) > 0 {
		return r.describe(&slots[0], seen, h), nil
	}
	return nil, nil
}

type blockerRow struct {
	Blocker
	Xid      uint32   `json:",string"`
	Age      *float64 // seconds
	QueryAge *float64 `json:"query_age"`
	Xids     int64
	Behind   int64
}

// describe makes a Blocker of a row; seen is what was seen before. If the server does not tell the age, it is the time since this
// Reader first saw the blocker, or long enough if the blocker has outlived many other transactions.
func (r *Reader) describe(row *blockerRow, seen map[string]sighting, h *Health) *Blocker {
	b := &row.Blocker
	key := fmt.Sprint(row.Kind, " ", row.PID, " ", row.Xid, " ", row.Name)
	first, ok := seen[key]
	if !ok {
		first = sighting{at: h.At, server: h.Server}
	}
	r.seen[key] = first
	b.Certain = h.Confirmed >= first.server
	switch {
	case row.Age != nil:
		b.Age = seconds(*row.Age)
	case row.Xids >= 1000:
		b.Age = max(h.At.Sub(first.at), blockerMinAge)
	default:
		b.Age = h.At.Sub(first.at)
	}
	if row.QueryAge != nil {
		b.QueryAge = min(seconds(*row.QueryAge), b.Age) // the server reads its clock for each, so the second is a moment later
	}
	switch row.Kind {
	case BlockedByPrepared:
		b.End = pg.EndPreparedSQL(row.Name, row.Database)
	case BlockedBySlot:
		b.End = fmt.Sprintf("SELECT pg_drop_replication_slot(%s); -- only if nobody needs it: its reader loses all events that it has not read", pgname.QuoteLiteral(row.Name))
		if row.PID != 0 {
			b.End += fmt.Sprintf("; first end its reader, pid %d", row.PID)
		}
	case BlockedByTransaction:
		b.End = pg.EndSQL(row.PID)
	}
	return b
}
