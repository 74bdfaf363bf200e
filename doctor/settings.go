package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// settings are facts that only a doctor asks for: a start does not rest on them.
type settings struct {
	MaxWALMB     int64  `json:"max_wal_mb"`
	IdleTimeout  int64  `json:"idle_timeout"` // idle_replication_slot_timeout, in seconds; 0 is none
	ConnLimit    int    `json:"conn_limit"`   // of the role; -1 is none
	WaitsFor     string `json:"waits_for"`    // synchronized_standby_slots
	Slots        []standbySlot
	SyncsSlots   string `json:"syncs_slots"` // sync_replication_slots, "" before 17
	Feedback     string
	PrimarySlot  string   `json:"primary_slot"`
	PrimaryInfo  bool     `json:"primary_info"` // primary_conninfo names a database; always true for who may not read it
	SeesAll      bool     `json:"sees_all"`     // what the sessions of other roles do
	Encoding     string   // of the database
	EmitPublic   []string `json:"emit_public"`         // the functions that write logical messages and that every role may call
	ReadOnly     bool     `json:"read_only"`           // default_transaction_read_only, on our connections
	Statement    int64    `json:"statement_timeout"`   // on our connections, in milliseconds
	Transaction  int64    `json:"transaction_timeout"` // likewise; 0 before 17
	WorkMem      int64    `json:"work_mem"`            // logical_decoding_work_mem, in kB, as a walsender of ours has it
	Spilled      *spillFacts
	archives     []*cleanup.Archive
	cleaned      []cleanedTable
	remote       net.Addr // of the server
	encrypted    bool
	rate         float64 // bytes of WAL a second
	measured     time.Duration
	rateMeasured bool
}

// leastConnections is what a run needs of the role's CONNECTION LIMIT, which does not count walsenders. The session, the
// monitor and the cleanup keep one each. A check of the source, a look at the catalog and a probe of the server take one for a moment.
const leastConnections = 6

// settingsQuery is one text for every version: a setting that a version does not have is NULL.
func settingsQuery(slot string) string {
	return `SELECT
 (SELECT setting::bigint FROM pg_settings WHERE name = 'max_wal_size') AS max_wal_mb,
 coalesce((SELECT setting::bigint * CASE unit WHEN 'min' THEN 60 ELSE 1 END FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0) AS idle_timeout,
 (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS conn_limit,
 coalesce(current_setting('synchronized_standby_slots', true), '') AS waits_for,
 (SELECT json_agg(json_build_object('name', slot_name, 'active', active, 'lost', wal_status = 'lost')) FROM pg_replication_slots WHERE slot_type = 'physical') AS slots,
 coalesce(current_setting('sync_replication_slots', true), '') AS syncs_slots,
 current_setting('hot_standby_feedback') AS feedback, current_setting('primary_slot_name') AS primary_slot,
 coalesce((SELECT setting ~ '(^|\s)dbname\s*=' FROM pg_settings WHERE name = 'primary_conninfo'), true) AS primary_info,
 pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all,
 (SELECT json_agg(p.oid::regprocedure::text ORDER BY p.oid) FROM pg_proc p WHERE p.proname = 'pg_logical_emit_message' AND has_function_privilege('public', p.oid, 'EXECUTE')) AS emit_public,
 current_setting('server_encoding') AS encoding, current_setting('default_transaction_read_only')::bool AS read_only,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'transaction_timeout') AS transaction_timeout,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'logical_decoding_work_mem') AS work_mem,
 (SELECT to_json(d) FROM pg_stat_replication_slots d WHERE d.slot_name = ` + pgname.QuoteLiteral(slot) + `) AS spilled`
}

// examineSettings reads and judges what only a doctor looks at. What it cannot read is a warning, because a run does not rest on
// it. An error says that the server does not answer any more.
func (x *examination) examineSettings(ctx context.Context, conn *pgconn.PgConn, pause time.Duration) (err error) {
	gone := func(err error) bool {
		if err == nil || ctx.Err() != nil || conn.IsClosed() {
			return err != nil
		}
		x.Warn("settings", nil, "%s", err)
		return false
	}
	if x.settings, err = pg.Row[settings](ctx, conn, "read the settings", settingsQuery(x.cfg.Slot)); err != nil {
		if gone(err) {
			return err
		}
		return nil
	}
	if c := conn.Conn(); c != nil {
		x.remote = c.RemoteAddr()
		_, x.encrypted = c.(*tls.Conn)
	}
	looks := []func(context.Context, *pgconn.PgConn) error{x.readCleanup}
	if x.f.Server.KeepMB >= 0 { // without a limit, nobody asks how long it lasts
		looks = append(looks, func(ctx context.Context, conn *pgconn.PgConn) error { return x.readRate(ctx, conn, pause) })
	}
	for _, look := range looks {
		if err = look(ctx, conn); gone(err) {
			break
		}
		err = nil
	}
	x.judge()
	return err
}

// judge says what the settings mean. It is pure.
func (x *examination) judge() {
	x.wal()
	x.minor()
	x.transport()
	x.rights()
	x.sessions()
	x.outage()
	x.spilled()
	x.standbys()
	x.cleanup()
	x.messages()
}

// readRate looks at the WAL twice.
func (x *examination) readRate(ctx context.Context, conn *pgconn.PgConn, pause time.Duration) error {
	began := time.Now()
	before, err := pg.ReadServer(ctx, conn)
	if err != nil {
		return err
	}
	if !wait.For(ctx, pause) {
		return fmt.Errorf("measure the rate of WAL: %w", ctx.Err())
	}
	after, err := pg.ReadServer(ctx, conn)
	if err != nil {
		return err
	}
	x.measured, x.rateMeasured = time.Since(began), true
	x.rate = float64(after.LSN-before.LSN) / x.measured.Seconds()
	return nil
}

func existing(tables []pg.TableFacts) (oids []string) {
	for i := range tables {
		if tables[i].Exists() {
			oids = append(oids, fmt.Sprint(tables[i].OID))
		}
	}
	return oids
}

func (x *examination) rights() {
	s := &x.f.Server
	if x.Encoding == "SQL_ASCII" {
		x.Warn("encoding", fix.ByWords("Move the data into a database with the encoding UTF8 (pg_dump, createdb --encoding UTF8), or allow only UTF-8 text in the outbox."),
			"the encoding of database %s is SQL_ASCII, in which a text value may contain any bytes: a row with a text value that is not UTF-8 halts the relay", s.Database)
	}
	if s.Super {
		x.Warn("superuser", fix.ByWords("Create another role, and name it in source.dsn: "+fault.Command("setup", "--role=walpost")), "role %s is a superuser, which walpost does not need", s.Role)
	}
	if x.ConnLimit >= 0 && x.ConnLimit < leastConnections && !s.Super {
		x.Warn("connection limit", fix.BySQL("ALTER ROLE "+pgname.QuoteIdent(s.Role)+" CONNECTION LIMIT 10;"),
			"role %s may have %d connections at a time; walpost run needs up to %d, and the other commands and a standby relay need their own", s.Role, x.ConnLimit, leastConnections)
	}
	if x.SeesAll {
		x.OK("monitoring", "role %s sees the sessions of other roles", s.Role)
	} else {
		x.Warn("monitoring", fix.BySQL("GRANT pg_monitor TO "+pgname.QuoteIdent(s.Role)+";"),
			"role %s cannot see the sessions of other roles: if a session retains WAL, walpost can show only its process id, and if a relay dies without closing its connection, its standby waits for wal_sender_timeout", s.Role)
	}
	for i := range x.f.Tables {
		t := &x.f.Tables[i]
		if t.Exists() && !t.Readable {
			x.Warn("reading "+t.Table.String(), fix.BySQL(pg.ReadingRights(t.Table, s.Role)),
				"role %s may not read %s: a snapshot, walpost recover and a cleanup would fail", s.Role, t.Table)
		}
		if t.Secured {
			x.Warn("row-level security", fix.Fix{fix.SQL(fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", pgname.QuoteIdent(s.Role))), fix.Words("or add a policy that shows it every row.")},
				"row-level security of %s applies to role %s: the stream has every row, but a snapshot and walpost recover miss some", t.Table, s.Role)
		}
	}
}

// outage says how long the relay may be away.
func (x *examination) outage() {
	const name = "outage"
	if keep := x.f.Server.KeepMB; keep >= 0 {
		lasts := time.Duration(0)
		if x.rateMeasured && x.rate > 0 {
			// In seconds first: an idle server would overflow a duration.
			lasts = time.Duration(min(float64(keep<<20)/x.rate, 10*365*86400)) * time.Second
		}
		forecast := fmt.Sprintf("max_slot_wal_keep_size (%d MB) lasts %s at %.3g MB/s, measured over %s", keep, lasts, x.rate/(1<<20), x.measured.Round(time.Second))
		switch {
		case keep < x.MaxWALMB:
			x.Warn(name, keepSize, "max_slot_wal_keep_size (%d MB) is less than max_wal_size (%d MB): the slot can be lost between two checkpoints of Postgres", keep, x.MaxWALMB)
		case !x.rateMeasured || x.rate <= 0:
			x.OK(name, "max_slot_wal_keep_size is %d MB; no WAL was written during the check, so it is unknown how long it lasts", keep)
		case lasts < time.Hour:
			x.Warn(name, keepSize, "%s: a longer outage loses the slot", forecast)
		default:
			x.OK(name, "%s", forecast)
		}
	}
	if idle := time.Duration(x.IdleTimeout) * time.Second; idle > 0 && idle < 72*time.Hour {
		x.Warn("idle_replication_slot_timeout", fix.Fix{fix.Setting{Name: "idle_replication_slot_timeout", Value: "0"}},
			"idle_replication_slot_timeout is %s: the slot is lost when walpost is away for longer", idle)
	}
}

// wal is about the settings that a stream lives with.
func (x *examination) wal() {
	const name, keeps = "wal_sender_timeout", "max_slot_wal_keep_size"
	minute := fix.Fix{fix.Setting{Name: name, Value: "60s", Bare: "60000 (in ms)"}}
	switch d := pg.Millis(x.f.Server.SenderTimeout); {
	case d == 0:
		x.Warn(name, minute, "wal_sender_timeout is off: after a network failure, a dead connection may keep the slot in use")
	case d < time.Second:
		x.Warn(name, minute, "wal_sender_timeout is %s: a short network interruption ends the stream", d)
	case d > 5*time.Minute:
		x.Warn(name, minute, "wal_sender_timeout is %s: after a network failure, nobody can use the slot for that long", d)
	default:
		x.OK(name, "wal_sender_timeout is %s", d)
	}
	if keep := x.f.Server.KeepMB; keep < 0 {
		x.Warn(keeps, keepSize, "max_slot_wal_keep_size is not set: a slot that nobody reads retains WAL until the disk is full")
	} else {
		x.OK(keeps, "max_slot_wal_keep_size is %d MB", keep)
	}
}

// keepSize names no size to paste: a limit below what a slot retains loses that slot at the server's next checkpoint.
var keepSize = fix.Fix{fix.Setting{
	Name: "max_slot_wal_keep_size", Value: "<size>", Bare: "<size in MB>",
	Note: "(more than any slot retains now, or that slot is lost; less than the disk has free)",
}}
