package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// examined are facts that only a doctor asks for: a start does not rest on them.
type examined struct {
	KeepMB       int64    `json:"keep_mb"`
	MaxWALMB     int64    `json:"max_wal_mb"`
	IdleTimeout  int64    `json:"idle_timeout"` // idle_replication_slot_timeout, in seconds; 0 is none
	Managed      []string // prefixes of the settings that tell a managed service
	Aurora       bool
	ConnLimit    int    `json:"conn_limit"` // of the role; -1 is none
	WaitsFor     string `json:"waits_for"`  // synchronized_standby_slots
	Slots        []standbySlot
	SyncsSlots   string `json:"syncs_slots"` // sync_replication_slots, "" before 17
	Feedback     string
	PrimarySlot  string `json:"primary_slot"`
	PrimaryInfo  bool   `json:"primary_info"` // primary_conninfo names a database; always true for who may not read it
	Secured      []string
	rate         float64 // bytes of WAL a second
	measured     time.Duration
	rateMeasured bool
}

// standbySlot is a physical slot, as logical decoding waits for it.
type standbySlot struct {
	Name   string
	Active bool
	Lost   bool
}

const examineQuery = `SELECT
 (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'max_wal_size') AS max_wal_mb,
 coalesce((SELECT setting::bigint * CASE unit WHEN 'min' THEN 60 ELSE 1 END FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0) AS idle_timeout,
 (SELECT json_agg(DISTINCT split_part(name, '.', 1)) FROM pg_settings WHERE name ~ '^(rds|cloudsql|azure)\.') AS managed,
 EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version') AS aurora,
 (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS conn_limit,
 coalesce(current_setting('synchronized_standby_slots', true), '') AS waits_for,
 (SELECT json_agg(json_build_object('name', slot_name, 'active', active, 'lost', wal_status = 'lost')) FROM pg_replication_slots WHERE slot_type = 'physical') AS slots,
 coalesce(current_setting('sync_replication_slots', true), '') AS syncs_slots,
 current_setting('hot_standby_feedback') AS feedback, current_setting('primary_slot_name') AS primary_slot,
 coalesce((SELECT setting ~ '(^|\s)dbname\s*=' FROM pg_settings WHERE name = 'primary_conninfo'), true) AS primary_info`

// walPause is how far apart the two looks at the WAL are, from which its rate is taken.
const walPause = 2 * time.Second

// doctor adds to found what only a doctor looks at, and has every fix done as the provider has it done. What it cannot read
// is a warning, because a run does not rest on it.
func (c *Config) doctor(ctx context.Context, conn *pgconn.PgConn, f *facts, found []Finding) []Finding {
	if f.server.Version < minVersion {
		return found
	}
	x, err := c.examine(ctx, conn, f)
	if err != nil {
		return append(found, Finding{Name: "settings", Level: Warn, Detail: err.Error()})
	}
	found = append(found, c.judgeExamined(f, x)...)
	for i := range found {
		found[i].Fix = x.provider().fix(found[i].Fix)
	}
	return found
}

// examine reads what only a doctor asks for. It changes nothing.
func (c *Config) examine(ctx context.Context, conn *pgconn.PgConn, f *facts) (*examined, error) {
	x, err := row[examined](ctx, conn, "read the settings of a doctor", examineQuery)
	if err != nil {
		return nil, err
	}
	if oids := existing(f.tables); len(oids) > 0 {
		type secured struct{ Name string }
		list, err := rows[secured](ctx, conn, "read row-level security",
			"SELECT oid::regclass::text AS name FROM pg_class WHERE oid IN ("+strings.Join(oids, ", ")+") AND row_security_active(oid)")
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			x.Secured = append(x.Secured, s.Name)
		}
	}
	began := time.Now()
	before, err := readServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(walPause):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := readServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	x.measured, x.rateMeasured = time.Since(began), true
	x.rate = float64(after.LSN-before.LSN) / x.measured.Seconds()
	return &x, nil
}

func existing(tables []tableFacts) (oids []string) {
	for i := range tables {
		if tables[i].exists() {
			oids = append(oids, fmt.Sprint(tables[i].OID))
		}
	}
	return oids
}

// judgeExamined says what the facts of a doctor mean. It is pure.
func (c *Config) judgeExamined(f *facts, x *examined) []Finding {
	j := &judgement{cfg: c, f: f}
	j.minor()
	j.rights(x)
	j.outage(x)
	j.standbys(x)
	return j.found
}

// movedBack are the minors that mended a confirmed position that could move backwards.
var movedBack = map[int]int{14: 19, 15: 14, 16: 10, 17: 6}

func (j *judgement) minor() {
	v := j.f.server.Version
	if least, ok := movedBack[v/10000]; ok && v%10000 < least {
		j.add(Warn, "minor version", fmt.Sprintf("Install the newest minor of Postgres %d.", v/10000),
			"Postgres %d.%d can move a slot's confirmed position backwards, which repeats events; %d.%d does not", v/10000, v%10000, v/10000, least)
	}
}

func (j *judgement) rights(x *examined) {
	s := &j.f.server
	if s.Super {
		j.add(Warn, "superuser", "Make a role of its own for walpost: walpost setup prints the SQL.", "role %s is a superuser, which walpost does not need", s.Role)
	}
	if x.ConnLimit >= 0 && x.ConnLimit < 3 && !s.Super {
		j.add(Warn, "connection limit", "ALTER ROLE "+quoteIdent(s.Role)+" CONNECTION LIMIT 10;",
			"role %s may have %d connections at a time; walpost holds one and opens others to look and to recover", s.Role, x.ConnLimit)
	}
	for i := range j.f.tables {
		if t := &j.f.tables[i]; t.exists() && !t.Readable {
			j.add(Warn, "reading "+t.Table.String(), fmt.Sprintf("GRANT SELECT ON %s TO %s;", t.Table.SQL(), quoteIdent(s.Role)),
				"role %s may not read %s: a snapshot, walpost recover and a cleanup would fail", s.Role, t.Table)
		}
	}
	for _, name := range x.Secured {
		j.add(Warn, "row-level security", fmt.Sprintf("ALTER ROLE %s BYPASSRLS; or add a policy that shows it every row.", quoteIdent(s.Role)),
			"row-level security of %s applies to role %s: the stream has every row, a snapshot and walpost recover would not", name, s.Role)
	}
}

// outage says how long the relay may be away.
func (j *judgement) outage(x *examined) {
	const name = "outage"
	if x.KeepMB >= 0 {
		fix := "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); -- less than the free space of the disk"
		lasts := time.Duration(0)
		if x.rateMeasured && x.rate > 0 {
			// In seconds first: an idle server would overflow a duration.
			lasts = time.Duration(min(float64(x.KeepMB<<20)/x.rate, 10*365*86400)) * time.Second
		}
		told := fmt.Sprintf("max_slot_wal_keep_size (%d MB) lasts %s at %.3g MB/s, measured over %s", x.KeepMB, lasts, x.rate/(1<<20), x.measured.Round(time.Second))
		switch {
		case x.KeepMB < x.MaxWALMB:
			j.add(Warn, name, fix, "max_slot_wal_keep_size (%d MB) is less than max_wal_size (%d MB): the slot can be lost between two checkpoints", x.KeepMB, x.MaxWALMB)
		case !x.rateMeasured || x.rate <= 0:
			j.add(OK, name, "", "max_slot_wal_keep_size is %d MB; no WAL was written while check looked, so how long it lasts is not told", x.KeepMB)
		case lasts < time.Hour:
			j.add(Warn, name, fix, "%s: a longer outage loses the slot", told)
		default:
			j.add(OK, name, "", "%s", told)
		}
	}
	if idle := time.Duration(x.IdleTimeout) * time.Second; idle > 0 && idle < 72*time.Hour {
		j.add(Warn, "idle_replication_slot_timeout", "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
			"idle_replication_slot_timeout is %s: the slot is lost when walpost is away for longer", idle)
	}
}

// standbys is about slots that survive a failover, and about decoding that waits for standbys.
func (j *judgement) standbys(x *examined) {
	if j.f.server.Recovery {
		if x.SyncsSlots == "on" && (x.Feedback != "on" || x.PrimarySlot == "" || !x.PrimaryInfo) {
			j.add(Warn, "slot synchronization", "On the standby: hot_standby_feedback = on, primary_slot_name, and dbname=… in primary_conninfo.",
				"sync_replication_slots is on, but what it needs is not set: slots are not copied to this standby")
		}
		return
	}
	slot := j.f.slot
	if !j.cfg.Failover && (slot == nil || !slot.Failover) {
		return
	}
	for name := range strings.SplitSeq(x.WaitsFor, ",") {
		if name = strings.Trim(strings.TrimSpace(name), `"`); name == "" {
			continue
		}
		const fix = "Start that standby, or take it out: ALTER SYSTEM SET synchronized_standby_slots = '…'; SELECT pg_reload_conf();"
		i := slices.IndexFunc(x.Slots, func(s standbySlot) bool { return s.Name == name })
		switch {
		case i < 0:
			j.add(Fail, "synchronized_standby_slots", fix, "synchronized_standby_slots names %s, which is no physical slot: decoding stands still without an error", name)
		case x.Slots[i].Lost:
			j.add(Fail, "synchronized_standby_slots", fix, "slot %s of synchronized_standby_slots is invalidated: decoding stands still without an error", name)
		case !x.Slots[i].Active:
			j.add(Warn, "synchronized_standby_slots", fix, "slot %s of synchronized_standby_slots is inactive: decoding stands still until its standby is back", name)
		}
	}
}
