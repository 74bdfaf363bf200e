package replication

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
)

// Health is a slot at one moment, as SQL shows it: how much WAL it holds, and why. It is a plain value.
type Health struct {
	Slot, Database string
	At             time.Time // by this machine's clock
	Exists         bool      // without the slot, only Server and KeepBytes say something

	Server    cdc.Position // newest WAL: written by a primary, received by a standby
	Restart   cdc.Position // oldest WAL that the slot holds; 0 where it is lost
	Confirmed cdc.Position

	// RetainedBytes is the WAL that the slot holds; UnconfirmedBytes is what of it was not confirmed. The difference is
	// held for transactions that are still open somewhere, not for the consumer. Both are -1 where they cannot be told.
	RetainedBytes    int64
	UnconfirmedBytes int64
	// SafeBytes is how much more WAL may be written before the slot can be lost; negative when it can be at the next
	// checkpoint. It means something only where SafeKnown is set: with a limit, for a slot that is not lost.
	SafeBytes int64
	SafeKnown bool
	KeepBytes int64 // max_slot_wal_keep_size; -1 is no limit

	WALStatus     string // reserved, extended, unreserved, lost
	Invalidation  string // why the server has invalidated the slot; "" for a usable one
	Active        bool
	ActivePID     int32
	InactiveSince time.Time // zero where the server does not say (before 17), or the slot is active
	WaitEvent     string    // what the walsender waits for, as pg_stat_activity has it; WaitForStandbyConfirmation is a stall

	CatalogXminAge int64 // transactions; 0 where the slot holds none
	SpillBytes     int64 // written to disk for big transactions since the slot's statistics began

	// Blocker is what holds WAL although we have confirmed it; nil where nothing does.
	Blocker *Blocker
}

// BlockerKind says what a Blocker is.
type BlockerKind string

// The kinds of Blocker.
const (
	BlockedByTransaction BlockerKind = "transaction" // an open transaction that has written something
	BlockedByPrepared    BlockerKind = "prepared"    // a prepared transaction that nobody has finished
	// BlockedBySlot is another slot that holds older WAL than ours. It does not hold ours back, but as long as it is there
	// no WAL is freed whatever we confirm.
	BlockedBySlot BlockerKind = "slot"
)

// A Blocker is the oldest thing that keeps WAL from being freed.
type Blocker struct {
	Kind     BlockerKind
	Name     string // of a prepared transaction (gid) or a slot
	PID      int32  // 0 where no process belongs to it
	Database string
	User     string
	State    string        // such as "idle in transaction"; "" without the right to see it (pg_monitor)
	Age      time.Duration // since the transaction began or the slot was left; 0 where that cannot be seen
	End      string        // the SQL that ends it
}

// blockerMinAge is how old a transaction must be to be called a blocker. There is always an oldest one on a busy server.
const blockerMinAge = 5 * time.Second

type healthRow struct {
	Server    lsn
	KeepMB    int64 `json:"keep_mb"`
	Database  string
	Slot      *slotFacts
	Retained  *int64
	Unconf    *int64
	Safe      *int64
	XminAge   int64 `json:"xmin_age"`
	Spill     int64
	WaitEvent string `json:"wait_event"`
}

func healthQuery(slot string) string {
	return `WITH w AS (SELECT CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END AS lsn)
 SELECT w.lsn AS server, (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
 current_database() AS database, CASE WHEN s.slot_name IS NOT NULL THEN to_json(s) END AS slot,
 pg_wal_lsn_diff(w.lsn, s.restart_lsn)::bigint AS retained, pg_wal_lsn_diff(w.lsn, s.confirmed_flush_lsn)::bigint AS unconf,
 s.safe_wal_size AS safe, age(s.catalog_xmin) AS xmin_age, st.spill_bytes AS spill, a.wait_event
 FROM w LEFT JOIN pg_replication_slots s ON s.slot_name = ` + quoteLiteral(slot) + `
 LEFT JOIN pg_stat_replication_slots st ON st.slot_name = s.slot_name
 LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid`
}

// The oldest transaction id decides: a transaction without one has written nothing and holds no WAL. backend_xid is shown to
// everybody, the rest of a foreign session only to pg_monitor.
const blockerQuery = `SELECT * FROM (
 SELECT 'transaction' AS kind, age(a.backend_xid) AS xids, a.pid, '' AS name, a.datname AS database, a.usename AS "user", a.state,
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age
 FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
 UNION ALL
 SELECT 'prepared', age(p.transaction), 0, p.gid, p.database, p.owner, 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::float8
 FROM pg_prepared_xacts p) b ORDER BY xids DESC LIMIT 1`

func olderSlotQuery(slot string) string {
	return `SELECT 'slot' AS kind, o.slot_name AS name, coalesce(o.active_pid, 0) AS pid, o.database, CASE WHEN o.active THEN 'active' ELSE 'inactive' END AS state, 0 AS age
 FROM pg_replication_slots o JOIN pg_replication_slots s ON s.slot_name = ` + quoteLiteral(slot) + `
 WHERE o.restart_lsn < s.restart_lsn ORDER BY o.restart_lsn LIMIT 1`
}

type blockerRow struct {
	Kind     BlockerKind
	Name     string
	PID      int32
	Database string
	User     string
	State    string
	Age      *float64
	Xids     int64
}

// A Monitor reads a slot's Health on an SQL connection of its own, which it keeps, and makes anew after an error. It must
// be used by one goroutine at a time.
type Monitor struct {
	cfg    Config
	conn   *pgconn.PgConn
	minAge time.Duration
}

// Monitor returns a Monitor of the slot. It does not connect yet.
func (s *Source) Monitor() *Monitor { return &Monitor{cfg: s.cfg, minAge: blockerMinAge} }

// readTimeout bounds one Read beside the caller's context: a monitor that hangs tells nothing.
const readTimeout = 20 * time.Second

// Read reads the slot as it is now. Errors have the behaviour of package fault; after one the next Read connects again.
func (m *Monitor) Read(ctx context.Context) (Health, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	// A connection that broke since the last time is no news: one more attempt on a fresh one tells.
	if m.conn != nil {
		if h, err := m.read(ctx); err == nil {
			return h, nil
		}
		m.drop()
	}
	conn, err := m.cfg.connectSQL(ctx)
	if err != nil {
		return Health{}, fmt.Errorf("monitor slot %s: %w", m.cfg.Slot, err)
	}
	m.conn = conn
	h, err := m.read(ctx)
	if err != nil {
		m.drop()
		return Health{}, fmt.Errorf("monitor slot %s: %w", m.cfg.Slot, err)
	}
	return h, nil
}

// Close ends the connection.
func (m *Monitor) Close() { m.drop() }

func (m *Monitor) drop() {
	closeConn(m.conn)
	m.conn = nil
}

func (m *Monitor) read(ctx context.Context) (Health, error) {
	r, err := row[healthRow](ctx, m.conn, "read the slot", healthQuery(m.cfg.Slot))
	if err != nil {
		return Health{}, err
	}
	h := r.health(m.cfg.Slot, time.Now())
	// What lies between the two positions, and is more than the usual distance, is held for others.
	if !h.Exists || h.RetainedBytes < 0 {
		return h, nil
	}
	found, err := rows[blockerRow](ctx, m.conn, "find the oldest transaction", blockerQuery)
	if err != nil {
		return Health{}, err
	}
	if len(found) > 0 && found[0].old(m.minAge) {
		h.Blocker = found[0].blocker()
		return h, nil
	}
	if found, err = rows[blockerRow](ctx, m.conn, "find an older slot", olderSlotQuery(m.cfg.Slot)); err != nil {
		return Health{}, err
	}
	if len(found) > 0 {
		h.Blocker = found[0].blocker()
	}
	return h, nil
}

func (r *healthRow) health(slot string, at time.Time) Health {
	h := Health{
		Slot: slot, Database: r.Database, At: at, Server: cdc.Position(r.Server),
		KeepBytes: -1, RetainedBytes: -1, UnconfirmedBytes: -1,
	}
	if r.KeepMB >= 0 {
		h.KeepBytes = r.KeepMB << 20
	}
	if r.Slot == nil {
		return h
	}
	s := r.Slot.state()
	h.Exists, h.Restart, h.Confirmed = true, s.Restart, s.Confirmed
	h.WALStatus, h.Invalidation, h.Active, h.ActivePID, h.InactiveSince = s.WALStatus, s.Invalidation, s.Active, s.ActivePID, s.InactiveSince
	if r.Slot.Database != "" {
		h.Database = r.Slot.Database
	}
	// A server's positions and a slot's are not read in one instant: a slot may be ahead by a little.
	if r.Retained != nil {
		h.RetainedBytes = max(0, *r.Retained)
	}
	if r.Unconf != nil {
		h.UnconfirmedBytes = max(0, *r.Unconf)
	}
	if r.Safe != nil {
		h.SafeBytes, h.SafeKnown = *r.Safe, true
	}
	h.CatalogXminAge, h.SpillBytes, h.WaitEvent = r.XminAge, r.Spill, r.WaitEvent
	return h
}

// old says whether a transaction is old enough to be named. Where its age is hidden, the number of transactions since tells.
func (r *blockerRow) old(least time.Duration) bool {
	if r.Age == nil {
		return r.Xids >= 1000
	}
	return *r.Age >= least.Seconds()
}

func (r *blockerRow) blocker() *Blocker {
	b := &Blocker{Kind: r.Kind, Name: r.Name, PID: r.PID, Database: r.Database, User: r.User, State: r.State}
	if r.Age != nil {
		b.Age = max(0, time.Duration(*r.Age*float64(time.Second)))
	}
	switch r.Kind {
	case BlockedByPrepared:
		b.End = fmt.Sprintf("ROLLBACK PREPARED %s; -- in database %s", strings.TrimSpace(quoteLiteral(r.Name)), r.Database)
	case BlockedBySlot:
		b.End = fmt.Sprintf("SELECT pg_drop_replication_slot(%s);", quoteLiteral(r.Name))
	case BlockedByTransaction:
		b.End = fmt.Sprintf("SELECT pg_terminate_backend(%d);", r.PID)
	}
	return b
}
