package replication

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/pg"
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
	SeesAll      bool   `json:"sees_all"`     // what the sessions of other roles do
	Encoding     string // of the database
	ReadOnly     bool   `json:"read_only"`           // default_transaction_read_only, on our connections
	Statement    int64  `json:"statement_timeout"`   // on our connections, in milliseconds
	Transaction  int64  `json:"transaction_timeout"` // likewise; 0 before 17
	WorkMem      int64  `json:"work_mem"`            // logical_decoding_work_mem, in kB, as a walsender of ours has it
	Spilled      *spillFacts
	Secured      []string
	cleaned      []cleanedTable
	remote       net.Addr // of the server
	encrypted    bool
	rate         float64 // bytes of WAL a second
	measured     time.Duration
	rateMeasured bool
}

// examineQuery is one text for every version: a setting that a version does not have is NULL.
func examineQuery(slot string) string {
	return `SELECT
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
 coalesce((SELECT setting ~ '(^|\s)dbname\s*=' FROM pg_settings WHERE name = 'primary_conninfo'), true) AS primary_info,
 pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all,
 current_setting('server_encoding') AS encoding, current_setting('default_transaction_read_only')::bool AS read_only,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'transaction_timeout') AS transaction_timeout,
 (SELECT setting::bigint FROM pg_settings WHERE name = 'logical_decoding_work_mem') AS work_mem,
 (SELECT to_json(d) FROM pg_stat_replication_slots d WHERE d.slot_name = ` + pg.QuoteLiteral(slot) + `) AS spilled`
}

// walPause is how far apart the two looks at the WAL are, from which its rate is taken.
const walPause = 2 * time.Second

// doctor adds to found what only a doctor looks at, and has every fix done as the provider has it done. What it cannot read
// is a warning, because a run does not rest on it; that the server does not answer any more is for the caller to say (err).
func (c *Config) doctor(ctx context.Context, conn *pgconn.PgConn, f *pg.Facts, makes bool, pause time.Duration, found []Finding) (_ []Finding, err error) {
	if f.Server.Version < pg.MinVersion {
		return found, nil
	}
	x, err := pg.Row[examined](ctx, conn, "read the settings of a doctor", examineQuery(c.Slot))
	if err != nil {
		if ctx.Err() != nil || conn.IsClosed() {
			return found, err
		}
		return append(found, Finding{Name: "settings", Level: Warn, Detail: err.Error()}), nil
	}
	x.remote, x.encrypted = transport(conn)
	for _, look := range []func(context.Context, *pgconn.PgConn, *examined) error{
		func(ctx context.Context, conn *pgconn.PgConn, x *examined) error {
			return c.examineCleanup(ctx, conn, f, x)
		},
		func(ctx context.Context, conn *pgconn.PgConn, x *examined) error {
			return examinePolicies(ctx, conn, f, x)
		},
		func(ctx context.Context, conn *pgconn.PgConn, x *examined) error {
			return examineRate(ctx, conn, pause, x)
		},
	} {
		e := look(ctx, conn, &x)
		if ctx.Err() != nil || conn.IsClosed() {
			err = e
			break
		}
		if e != nil {
			found = append(found, Finding{Name: "settings", Level: Warn, Detail: e.Error()})
		}
	}
	found = append(found, c.judgeExamined(f, &x, makes)...)
	for i := range found {
		found[i].Fix = x.provider().fix(found[i].Fix)
	}
	return found, err
}

// examinePolicies reads which tables hide rows from the role.
func examinePolicies(ctx context.Context, conn *pgconn.PgConn, f *pg.Facts, x *examined) error {
	oids := existing(f.Tables)
	if len(oids) == 0 {
		return nil
	}
	list, err := pg.Rows[struct{ Name string }](ctx, conn, "read row-level security",
		"SELECT oid::regclass::text AS name FROM pg_class WHERE oid IN ("+strings.Join(oids, ", ")+") AND row_security_active(oid)")
	for _, s := range list {
		x.Secured = append(x.Secured, s.Name)
	}
	return err
}

// examineRate looks at the WAL twice.
func examineRate(ctx context.Context, conn *pgconn.PgConn, pause time.Duration, x *examined) error {
	began := time.Now()
	before, err := pg.ReadServer(ctx, conn)
	if err != nil {
		return err
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
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

// judgeExamined says what the facts of a doctor mean. It is pure.
func (c *Config) judgeExamined(f *pg.Facts, x *examined, makes bool) []Finding {
	j := &judgement{cfg: c, f: f, makes: makes}
	j.minor()
	j.transport(x)
	j.rights(x)
	j.sessions(x)
	j.outage(x)
	j.spilled(x)
	j.standbys(x)
	j.cleanup(x)
	return j.found
}

func (j *judgement) rights(x *examined) {
	s := &j.f.Server
	if x.Encoding == "SQL_ASCII" {
		j.add(Warn, "encoding", "Move the database into one with the encoding UTF8 (pg_dump, createdb --encoding UTF8), or allow only UTF-8 texts in the outbox.",
			"the encoding of database %s is SQL_ASCII, where a text may be any bytes: a row with a text that is not UTF-8 halts the relay", s.Database)
	}
	if s.Super {
		j.add(Warn, "superuser", "Name a new role in source.dsn: walpost setup then prints the SQL that makes the role.", "role %s is a superuser, which walpost does not need", s.Role)
	}
	if x.ConnLimit >= 0 && x.ConnLimit < 3 && !s.Super {
		j.add(Warn, "connection limit", "ALTER ROLE "+pg.QuoteIdent(s.Role)+" CONNECTION LIMIT 10;",
			"role %s may have %d connections at a time; walpost holds one and opens others to look and to recover", s.Role, x.ConnLimit)
	}
	if x.SeesAll {
		j.add(OK, "monitoring", "", "role %s sees what the sessions of other roles do", s.Role)
	} else {
		j.add(Warn, "monitoring", "GRANT pg_monitor TO "+pg.QuoteIdent(s.Role)+";",
			"role %s does not see what the sessions of other roles do: who holds WAL back is not named, but for its process", s.Role)
	}
	for i := range j.f.Tables {
		if t := &j.f.Tables[i]; t.Exists() && !t.Readable {
			j.add(Warn, "reading "+t.Table.String(), fmt.Sprintf("GRANT SELECT ON %s TO %s;", t.Table.SQL(), pg.QuoteIdent(s.Role)),
				"role %s may not read %s: a snapshot, walpost recover and a cleanup would fail", s.Role, t.Table)
		}
	}
	for _, name := range x.Secured {
		j.add(Warn, "row-level security", fmt.Sprintf("ALTER ROLE %s BYPASSRLS; or add a policy that shows it every row.", pg.QuoteIdent(s.Role)),
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
