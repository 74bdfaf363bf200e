package replication

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// A Level says how bad a Finding is.
type Level string

// The levels of a Finding.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, and costs or threatens something
	Fail Level = "fail" // does not work
)

// A Finding is what was found about one precondition: what it is, and what to run where it is not right.
type Finding struct {
	Name   string // of the precondition, such as "wal_level" or "columns of public.outbox"
	Level  Level
	Detail string // a clause without a full stop
	Fix    string // a statement, a setting or a command; "" where there is nothing to do

	behave behaviour
	logged bool // a warning that a start logs, not only a doctor prints
}

type behaviour uint8

const (
	plain         behaviour = iota
	lostEvents              // events are lost where the slot is there already
	misconfigured           // the configuration must change
)

// err is the finding as an error. running says that the stream rested on the precondition already.
func (f *Finding) err(running bool) error {
	err := errors.New(f.Detail)
	switch {
	case f.behave == misconfigured && !running:
		return fault.Config(err, f.Fix)
	case f.behave == lostEvents || running:
		return fault.Person(err, f.Fix)
	}
	return fault.WithHint(err, f.Fix)
}

// judgement collects findings about facts. It is pure.
type judgement struct {
	cfg   *Config
	f     *pg.Facts
	found []Finding
	// makes says that the slot, and with it the publication where it is missing, is to be made.
	makes bool
}

func (j *judgement) add(level Level, name, fix, detail string, args ...any) *Finding {
	j.found = append(j.found, Finding{Name: name, Level: level, Detail: fmt.Sprintf(detail, args...), Fix: fix})
	return &j.found[len(j.found)-1]
}

// judge says what the facts mean for a start, one finding or more for each precondition. makes is whether the slot would be
// made where it is missing or lost.
func (c *Config) judge(f *pg.Facts, makes bool) []Finding {
	j := &judgement{cfg: c, f: f, makes: makes}
	j.server()
	if f.Server.Version >= pg.MinVersion {
		j.published()
		j.slot()
	}
	return j.found
}

// judgeRunning says what the facts mean for a stream that is running: only what it rests on.
func (c *Config) judgeRunning(f *pg.Facts) []Finding {
	j := &judgement{cfg: c, f: f}
	j.slot()
	j.published()
	return j.found
}

func firstFail(found []Finding) *Finding {
	for i := range found {
		if found[i].Level == Fail {
			return &found[i]
		}
	}
	return nil
}

func (j *judgement) server() {
	s := &j.f.Server
	version := fmt.Sprintf("%d.%d", s.Version/10000, s.Version%10000)
	if s.Version < pg.MinVersion {
		j.add(Fail, "version", "Upgrade Postgres to 14 or newer.", "Postgres is version %s; 14 is the oldest that walpost reads from", version)
		return
	}
	j.add(OK, "version", "", "Postgres %s", version)
	if s.Recovery && s.Version < pg.StandbyVersion {
		j.add(Fail, "primary", "Point source.dsn at the primary.", "the server is a standby of version %s; logical decoding on a standby needs 16 or newer", version)
	}
	if s.WALLevel == "logical" {
		j.add(OK, "wal_level", "", "wal_level is logical")
	} else {
		j.add(Fail, "wal_level", "ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres (on Amazon RDS: the parameter rds.logical_replication = 1; on Cloud SQL: the flag cloudsql.logical_decoding = on).",
			"wal_level is %s, logical decoding needs logical", s.WALLevel)
	}
	switch {
	case s.Super, s.Replication, s.Managed, j.f.Streams:
		j.add(OK, "role", "", "role %s may replicate", s.Role)
	default:
		j.add(Fail, "role", pg.ReplicationRightHint(s.Role), "role %s has not the right to replicate", s.Role)
	}
	j.room()
	j.timeouts()
}

// room is about slots and walsenders that are left.
func (j *judgement) room() {
	s := &j.f.Server
	slot := j.f.Slot
	switch left := s.MaxSlots - s.Slots; {
	case left > 0 || slot != nil:
		j.add(OK, "max_replication_slots", "", "%d of %d replication slots in use", s.Slots, s.MaxSlots)
	default:
		j.add(Fail, "max_replication_slots", fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = %d; then restart Postgres, or drop a slot that nobody uses.", s.MaxSlots+4),
			"all %d replication slots are in use", s.MaxSlots)
	}
	// A standby's own stream, and ours where this is asked beside it, are among them.
	ours := 0
	if slot != nil && slot.Active || j.f.Streams {
		ours = 1
	}
	switch left := s.MaxSenders - s.Senders; {
	case left > 0 || ours == 1:
		j.add(OK, "max_wal_senders", "", "%d of %d walsenders in use", s.Senders, s.MaxSenders)
	default:
		j.add(Fail, "max_wal_senders", fmt.Sprintf("ALTER SYSTEM SET max_wal_senders = %d; then restart Postgres.", s.MaxSenders+4),
			"all %d walsenders are in use", s.MaxSenders)
	}
}

func (j *judgement) timeouts() {
	s := &j.f.Server
	const name = "wal_sender_timeout"
	switch d := pg.Millis(s.SenderTimeout); {
	case d == 0:
		j.add(Warn, name, "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
			"wal_sender_timeout is off: after a network failure the slot may stay taken by a dead connection")
	case d < time.Second:
		j.add(Warn, name, "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
			"wal_sender_timeout is %s: a short pause of the network ends the stream", d)
	case d > 5*time.Minute:
		j.add(Warn, name, "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
			"wal_sender_timeout is %s: after a network failure nobody can take the slot for that long", d)
	default:
		j.add(OK, name, "", "wal_sender_timeout is %s", d)
	}
	if s.KeepMB < 0 {
		j.add(Warn, "max_slot_wal_keep_size", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); -- less than the free space of the disk",
			"max_slot_wal_keep_size is not set: a slot that is not read holds WAL until the disk is full")
	} else {
		j.add(OK, "max_slot_wal_keep_size", "", "max_slot_wal_keep_size is %d MB", s.KeepMB)
	}
	if strings.Contains(s.SyncStandbys, "*") {
		j.add(Warn, "synchronous_standby_names", "Name the standbys in synchronous_standby_names instead of '*'.",
			"synchronous_standby_names is %q: commits may wait for walpost as if it were a standby", s.SyncStandbys).logged = true
	} else {
		j.add(OK, "synchronous_standby_names", "", "synchronous_standby_names does not mean walpost")
	}
}

// slot judges the slot itself.
func (j *judgement) slot() {
	s, name := j.f.Slot, "slot"
	quoted := pg.QuoteLiteral(j.cfg.Slot)
	other := "Set source.slot to another name, or drop that slot if nobody needs it: SELECT pg_drop_replication_slot(" + quoted + ");"
	switch {
	case s == nil && j.makes && j.cfg.Failover && j.f.Server.Version < pg.FailoverVersion:
		j.add(Fail, name, "Leave source.failover out, or upgrade to Postgres 17.",
			"source.failover: needs Postgres 17 or newer (this is %d)", j.f.Server.Version/10000).behave = misconfigured
	case s == nil && j.makes && j.cfg.Failover && j.f.Server.Recovery:
		j.add(Fail, name, "Point source.dsn at the primary; its slot is copied to the standbys.",
			"slot %s does not exist, and a standby cannot make one that survives a failover (source.failover)", j.cfg.Slot)
	case s == nil && j.makes:
		j.add(OK, name, "", "slot %s does not exist yet: it will be made", j.cfg.Slot)
	case s == nil:
		j.add(Fail, name, slotSQL(j.cfg)+" -- only if nobody has read from a slot of that name: a new one begins now, and what was written since the old one went is not in it. If walpost has: "+fault.Command("recover"),
			"slot %s does not exist", j.cfg.Slot)
	case s.Type != "logical":
		j.add(Fail, name, other, "slot %s is a %s slot, not a logical one", j.cfg.Slot, s.Type)
	case s.Plugin != "pgoutput":
		j.add(Fail, name, other, "slot %s is of the plugin %s, not of pgoutput", j.cfg.Slot, s.Plugin)
	case s.Database != j.f.Server.Database:
		j.add(Fail, name, other, "slot %s belongs to the database %s, not to %s", j.cfg.Slot, s.Database, j.f.Server.Database)
	case s.Synced && j.f.Server.Recovery:
		j.add(Fail, name, "Read from the primary, or set source.slot to a name of its own for this standby.",
			"slot %s is a copy that is synchronized from the primary: it can be read only after a promotion", j.cfg.Slot)
	case s.Temporary:
		j.add(Fail, name, other, "slot %s is temporary: it ends with the session of process %d that made it", j.cfg.Slot, s.ActivePID)
	case s.TwoPhase:
		j.add(Fail, name, other, "slot %s is made for two-phase decoding, which walpost does not read", j.cfg.Slot)
	case s.Lost() != "" && j.makes:
		j.add(Warn, name, "", "slot %s is invalidated (%s): it will be made again", j.cfg.Slot, s.Lost())
	case s.Lost() != "":
		j.add(Fail, name, recoverGone(),
			"slot %s is invalidated (%s), and the WAL after %s may be gone", j.cfg.Slot, s.Lost(), position(s.Confirmed)).behave = lostEvents
	default:
		j.usable(s)
		if j.cfg.Failover && !s.Failover {
			j.add(Warn, "slot failover", "Stop walpost and run, on a replication connection: ALTER_REPLICATION_SLOT "+pg.QuoteIdent(j.cfg.Slot)+" (FAILOVER);",
				"slot %s exists without failover: it will not survive one", j.cfg.Slot).logged = true
		}
	}
}

// usable describes a slot that can be read.
func (j *judgement) usable(s *pg.Slot) {
	active := ""
	if s.Active {
		active = fmt.Sprintf(", in use by process %d", s.ActivePID)
	}
	if s.WALStatus == "unreserved" {
		j.add(Warn, "slot", "Run walpost, or raise max_slot_wal_keep_size, before the next checkpoint.",
			"slot %s is about to be lost: it holds more WAL than max_slot_wal_keep_size%s", j.cfg.Slot, active).logged = true
		return
	}
	j.add(OK, "slot", "", "slot %s exists, confirmed up to %s, WAL %s%s", j.cfg.Slot, position(s.Confirmed), s.WALStatus, active)
}

// known says that the slot is there, so that a missing precondition means that events are lost.
func (j *judgement) known() bool { return j.f.Slot != nil && (!j.makes || j.f.Slot.Lost() == "") }

// published judges the tables and the publication.
func (j *judgement) published() {
	missing := false
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		j.table(t)
		missing = missing || !t.Exists()
	}
	j.publication(missing)
}

func (j *judgement) table(t *pg.TableFacts) {
	name := "table " + t.Table.String()
	fix := ""
	switch {
	case !t.Exists() && len(t.Similar) > 0:
		fix = fmt.Sprintf("Write source.table: '%s' (in double quotes, a name keeps its case).", t.Similar[0])
		j.add(Fail, name, fix, "table %s does not exist, but %s does", t.Table, strings.Join(t.Similar, ", "))
	case !t.Exists():
		j.add(Fail, name, "Set source.table, or make the table: walpost setup prints the SQL.", "table %s does not exist in database %s", t.Table, j.f.Server.Database)
	case t.Kind != "r" && t.Kind != "p":
		j.add(Fail, name, "Set source.table to an ordinary or partitioned table.", "%s is a %s: only tables are in the WAL", t.Table, kinds[t.Kind])
	case t.Persistence == "u":
		j.add(Fail, name, "ALTER TABLE "+t.Table.SQL()+" SET LOGGED;", "table %s is UNLOGGED: its rows are not in the WAL", t.Table)
	case t.Persistence == "t":
		j.add(Fail, name, "Set source.table to a permanent table.", "table %s is temporary: its rows are not in the WAL", t.Table)
	default:
		j.add(OK, name, "", "table %s exists", t.Table)
		j.columns(t)
		return
	}
	if j.known() {
		j.found[len(j.found)-1].behave = lostEvents
	}
}

var kinds = map[string]string{"v": "view", "m": "materialized view", "f": "foreign table"}

// columns judges what the router needs, in the table and in what is published of it.
func (j *judgement) columns(t *pg.TableFacts) {
	if j.cfg.Needs == nil {
		return
	}
	name := "columns of " + t.Table.String()
	needs, err := j.cfg.Needs(t.Relation)
	if err != nil {
		f := j.add(Fail, name, cmp.Or(fault.Hint(err), mapped(t)), "%s does not fit the configuration: %s", t.Table, err)
		f.behave = misconfigured
		return
	}
	var missing, generated, unlisted []string
	var published *pg.PublishedTable
	if p := j.f.Publication; p != nil {
		published = p.Table(t.Table)
	}
	for _, need := range needs {
		c := t.Column(need)
		switch {
		case c == nil:
			missing = append(missing, need)
		case published != nil && published.Columns != nil && !slices.Contains(published.Columns, need):
			if c.Generated != "" {
				generated = append(generated, need)
			} else {
				unlisted = append(unlisted, need)
			}
		case c.Generated != "" && (j.f.Server.Version < 180000 || published == nil):
			generated = append(generated, need)
		}
	}
	if len(missing) > 0 {
		has := make([]string, len(t.Columns))
		for i, c := range t.Columns {
			has[i] = c.Name
		}
		j.add(Fail, name, mapped(t),
			"table %s has no column %s (it has %s)", t.Table, strings.Join(missing, ", "), strings.Join(has, ", "))
	}
	if len(generated) > 0 {
		j.add(Fail, name, "Use an ordinary column, filled by the application.",
			"column %s of %s is generated: publication %s does not send it", strings.Join(generated, ", "), t.Table, j.cfg.Publication)
	}
	if len(unlisted) > 0 {
		f := j.add(Fail, name, fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s; (a list of all its tables)", pg.QuoteIdent(j.cfg.Publication), t.Table.SQL()),
			"publication %s has a column list for %s that lacks %s", j.cfg.Publication, t.Table, strings.Join(unlisted, ", "))
		if j.known() {
			f.behave = lostEvents
		}
	}
	if len(missing)+len(generated)+len(unlisted) == 0 {
		j.add(OK, name, "", "%s has %s", t.Table, strings.Join(needs, ", "))
	}
}

// mapped says what mends a configuration that names columns which the table has not.
func mapped(t *pg.TableFacts) string {
	return "Set the router options table.field.event.* and route.by.field to columns of the table, or add them with ALTER TABLE " + t.Table.SQL() + "."
}

func position(l pg.LSN) string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }
