package replication

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/slot"
)

// blockerMinAge is how old a transaction must be to be called a blocker. There is always an oldest one on a busy server.
const blockerMinAge = 5 * time.Second

// behindMin is how much must be unconfirmed to say that we are behind: an idle slot is confirmed every ten seconds only.
const behindMin = 16 << 20

// readTimeout bounds one Read beside the caller's context: a monitor that hangs tells nothing. A statement is bounded by
// the server too, well before, so that what the client gave up is not still running there.
const (
	readTimeout      = 20 * time.Second
	statementTimeout = "8s"
)

// A Monitor reads a slot's Health on an SQL connection of its own, which it keeps, and makes anew after an error. Its statements
// read views and no tables, take no lock that anybody waits for, and stand alone: no transaction is open between or around them.
// It must be used by one goroutine at a time.
type Monitor struct {
	cfg    Config
	conn   *pgconn.PgConn
	minAge time.Duration
	walDir bool
	unread time.Time // since when nobody was seen reading the slot; zero while somebody reads it

	// seen is when the blockers that the newest Read found were seen first.
	seen map[string]sighting
}

// Monitor returns a Monitor of the slot. It does not connect yet.
func (s *Source) Monitor() *Monitor { return &Monitor{cfg: s.cfg, minAge: blockerMinAge} }

// A sighting is when something was first seen, by our clock and by the server's position: it began before both.
type sighting struct {
	at     time.Time
	server cdc.Position
}

// MeasureWALDir makes Read fill WALDirBytes where the role may list pg_wal (pg_monitor). The server looks at each file for it.
func (m *Monitor) MeasureWALDir() { m.walDir = true }

// Read reads the slot as it is now. Errors have the behaviour of package fault; after one the next Read connects again.
func (m *Monitor) Read(ctx context.Context) (slot.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	// A connection that broke since the last time is no news: one more attempt on a fresh one tells.
	if m.conn != nil {
		if h, err := m.read(ctx); err == nil {
			return h, nil
		}
		m.drop()
	}
	conn, err := m.connect(ctx)
	if err != nil {
		return slot.Health{}, fmt.Errorf("monitor slot %s: %w", m.cfg.Slot, err)
	}
	m.conn = conn
	h, err := m.read(ctx)
	if err != nil {
		m.drop()
		return slot.Health{}, fmt.Errorf("monitor slot %s: %w", m.cfg.Slot, err)
	}
	return h, nil
}

func (m *Monitor) connect(ctx context.Context) (*pgconn.PgConn, error) {
	cc, err := m.cfg.database().SQLConfig()
	if err != nil {
		return nil, err
	}
	cc.RuntimeParams["statement_timeout"] = statementTimeout
	return pg.Connect(ctx, cc, "connect")
}

// Close ends the connection.
func (m *Monitor) Close() { m.drop() }

func (m *Monitor) drop() {
	pg.Close(m.conn)
	m.conn = nil
}

func (m *Monitor) read(ctx context.Context) (slot.Health, error) {
	sent := time.Now()
	r, err := pg.Row[healthRow](ctx, m.conn, "read the slot", healthQuery(m.cfg.Slot))
	if err != nil {
		return slot.Health{}, err
	}
	h := r.health(m.cfg.Slot, sent, time.Now())
	m.observeInactive(&h, r.InactiveFor == nil)
	if m.walDir && r.MayList {
		dir, err := pg.Row[struct{ Bytes int64 }](ctx, m.conn, "measure pg_wal", walDirQuery)
		if err != nil {
			return slot.Health{}, err
		}
		h.WALDirBytes = dir.Bytes
	}
	if h.Exists && h.RetainedBytes >= 0 {
		if h.Blocker, err = m.blocker(ctx, &h); err != nil {
			return slot.Health{}, err
		}
	}
	return h, nil
}

// observeInactive fills what servers before 17 do not tell.
func (m *Monitor) observeInactive(h *slot.Health, untold bool) {
	switch {
	case !h.Exists || h.Active:
		m.unread = time.Time{}
		return
	case m.unread.IsZero():
		m.unread = h.At
	}
	if untold {
		h.InactiveFor, h.InactiveAtLeast = h.At.Sub(m.unread), true
	}
}

// blocker is what holds WAL beside our own confirmations; nil where nothing is seen.
func (m *Monitor) blocker(ctx context.Context, h *slot.Health) (*slot.Blocker, error) {
	seen := m.seen
	m.seen = map[string]sighting{}
	slots, err := pg.Rows[blockerRow](ctx, m.conn, "find an older slot", olderSlotQuery(m.cfg.Slot))
	if err != nil {
		return nil, err
	}
	// A slot that holds more than all that ours does is what fills the disk, whoever pins ours.
	if len(slots) > 0 && slots[0].Behind > h.RetainedBytes {
		return m.named(&slots[0], seen, h), nil
	}
	found, err := pg.Rows[blockerRow](ctx, m.conn, "find the oldest transaction", blockerQuery)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		// While most of what is held waits for us, a transaction that the slot has not come to yet is not to blame.
		ours := h.UnconfirmedBytes >= behindMin && 2*h.UnconfirmedBytes > h.RetainedBytes
		if b := m.named(&found[0], seen, h); b.Age >= m.minAge && (b.Certain || !ours) {
			return b, nil
		}
	}
	if len(slots) > 0 {
		return m.named(&slots[0], seen, h), nil
	}
	return nil, nil
}

type blockerRow struct {
	Kind        slot.BlockerKind
	Xid         pg.OID
	Name        string
	PID         int32
	Database    string
	User        string
	Application string
	State       string
	Age         *float64
	QueryAge    *float64 `json:"query_age"`
	Xids        int64
	Behind      int64
}

// named makes a Blocker of a row; seen is what was seen before. One whose age is not told is as old as we have seen it, or has outlived so many other
// transactions that it must be old.
func (m *Monitor) named(r *blockerRow, seen map[string]sighting, h *slot.Health) *slot.Blocker {
	b := &slot.Blocker{
		Kind: r.Kind, Name: r.Name, PID: r.PID, Database: r.Database, User: r.User, Application: r.Application, State: r.State,
	}
	key := fmt.Sprint(r.Kind, " ", r.PID, " ", r.Xid, " ", r.Name)
	first, ok := seen[key]
	if !ok {
		first = sighting{at: h.At, server: h.Server}
	}
	m.seen[key] = first
	b.Certain = h.Confirmed >= first.server
	switch {
	case r.Age != nil:
		b.Age = seconds(*r.Age)
	case r.Xids >= 1000:
		b.Age = max(h.At.Sub(first.at), blockerMinAge)
	default:
		b.Age = h.At.Sub(first.at)
	}
	if r.QueryAge != nil {
		b.QueryAge = min(seconds(*r.QueryAge), b.Age) // the server reads its clock for each: where both began at once, the second is a moment later
	}
	switch r.Kind {
	case slot.BlockedByPrepared:
		b.End = fmt.Sprintf("ROLLBACK PREPARED %s; -- in database %s, or COMMIT PREPARED", strings.TrimSpace(pg.QuoteLiteral(r.Name)), pg.QuoteIdent(r.Database))
	case slot.BlockedBySlot:
		b.End = fmt.Sprintf("SELECT pg_drop_replication_slot(%s);", pg.QuoteLiteral(r.Name))
		if r.PID != 0 {
			b.End += fmt.Sprintf(" -- only if nobody needs it; first end its reader, pid %d", r.PID)
		}
	case slot.BlockedByTransaction:
		b.End = fmt.Sprintf("SELECT pg_terminate_backend(%d);", r.PID)
	}
	return b
}
