package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication"
)

// examineWithin bounds an examination: two connections, of which each may try several hosts, some twenty short questions and a pause.
const examineWithin = 30 * time.Second

// walPause is how far apart the two looks at the WAL are, from which its rate is taken.
const walPause = 2 * time.Second

// An examination collects what a doctor finds of a database.
type examination struct {
	cfg   *replication.Config
	f     *pg.Facts
	makes bool // a run would make the slot
	settings
	found []Finding
}

func (x *examination) add(verdict Verdict, name string, by fix.Fix, why string, args ...any) {
	f := Finding{Side: Postgres, Name: name, Verdict: verdict, Why: fmt.Sprintf(why, args...), Fix: by}
	if x.f != nil {
		f.Provider = x.f.Server.Provider
	}
	x.found = append(x.found, f)
}

// CheckPostgres looks at every precondition in the database and does not stop at the first problem. If the server does not answer,
// this is a finding after half a minute, or when the time that ctx gives is over.
func CheckPostgres(ctx context.Context, cfg *replication.Config) []Finding {
	return checkPostgres(ctx, cfg, examineWithin, walPause)
}

// checkPostgres ends after within; pause is between the two looks at the WAL.
func checkPostgres(parent context.Context, cfg *replication.Config, within, pause time.Duration) []Finding {
	began := time.Now()
	ctx, cancel := context.WithTimeout(parent, within)
	defer cancel()
	x := &examination{cfg: cfg}
	// fail says what went wrong in a step, and whether it was only that nobody answered.
	fail := func(name string, err error) {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			x.add(Fail, name, fix.ByWords("Check whether the server is overloaded or stopped (its log, its load), and whether the network drops packets."),
				"no answer within %s, and the rest was not checked: %s", time.Since(began).Round(time.Second), err)
			return
		}
		x.add(Fail, name, fix.ByWords(fault.Hint(err)), "%s", err)
	}
	sql, err := cfg.Connection().ConnectSQL(ctx)
	if err != nil {
		fail("connection", err)
		return x.found
	}
	defer pg.Close(sql)
	x.add(OK, "connection", nil, "connected to %s", endpoint(sql))
	f, err := cfg.Names().Describe(ctx, sql)
	if err != nil {
		fail("catalog", err)
		return x.found
	}
	x.f, x.makes = f, f.Slot == nil && cfg.Create
	stream, err := cfg.Connection().ConnectReplication(ctx)
	if err != nil {
		fail("replication connection", err)
		if ctx.Err() != nil {
			return x.found
		}
	} else {
		pg.Close(stream)
		x.add(OK, "replication connection", nil, "a connection in replication mode is accepted")
		f.Streams = true
	}
	x.stream()
	if f.Server.Version < pg.MinVersion {
		return x.found
	}
	if err := x.examineSettings(ctx, sql, pause); err != nil {
		fail("settings", err)
		return x.found
	}
	if x.makes && !slices.ContainsFunc(x.found, func(f Finding) bool { return f.Verdict == Fail }) {
		if err := cfg.RefuseRows(ctx, sql, f); err != nil {
			fail("source.snapshot", err)
		}
	}
	return x.found
}

func endpoint(conn *pgconn.PgConn) string {
	if c := conn.Conn(); c != nil && c.RemoteAddr() != nil && c.RemoteAddr().String() != "" {
		return c.RemoteAddr().String()
	}
	return "Postgres"
}

// stream reports on what a start judges: what is not met (replication.Config.Unmet), what is advice, and what is met.
func (x *examination) stream() {
	s, before := &x.f.Server, x.found
	x.found = nil
	usable := s.Version >= pg.MinVersion // the slot
	for _, u := range x.cfg.Unmet(x.f, x.makes) {
		x.add(Fail, u.Name, u.Fix, "%s", u.Why)
		usable = usable && u.Name != "slot"
	}
	if s.Version >= pg.MinVersion {
		x.walSettings()
		x.advise()
	}
	if usable {
		x.adviseSlot()
	}
	judged := x.found
	x.found = before
	// place puts the findings of a name where they belong, or says that the precondition is met.
	place := func(name, met string, args ...any) (isMet bool) {
		n := len(x.found)
		judged = slices.DeleteFunc(judged, func(f Finding) bool {
			if f.Name == name {
				x.found = append(x.found, f)
			}
			return f.Name == name
		})
		if len(x.found) == n && met != "" {
			x.add(OK, name, nil, met, args...)
		}
		return len(x.found) == n || x.found[n].Verdict == OK
	}
	if place("version", "Postgres %d.%d", s.Version/10000, s.Version%10000); s.Version < pg.MinVersion {
		return
	}
	place("primary", "")
	place("wal_level", "wal_level is logical")
	place("role", "role %s may replicate", s.Role)
	place("max_replication_slots", "%d of %d replication slots in use", s.Slots, s.MaxSlots)
	place("max_wal_senders", "%d of %d walsenders in use", s.Senders, s.MaxSenders)
	place("wal_sender_timeout", "wal_sender_timeout is %s", pg.Millis(s.SenderTimeout))
	place("max_slot_wal_keep_size", "max_slot_wal_keep_size is %d MB", s.KeepMB)
	place("synchronous_standby_names", "synchronous_standby_names does not name walpost")
	for i := range x.f.Tables {
		t := &x.f.Tables[i]
		if place("table "+t.Table.String(), "table %s exists", t.Table) && x.cfg.Needs != nil {
			needs, _ := x.cfg.Needs(t.Relation)
			place("columns of "+t.Table.String(), "%s has %s", t.Table, strings.Join(needs, ", "))
		}
	}
	place("publication", "%s", x.publicationMet())
	place("publication extras", "")
	place("publication updates", "")
	place("publication operations", "")
	place("replica identity", "")
	for i := range x.f.Tables {
		place("row filter of "+x.f.Tables[i].Table.String(), "")
	}
	place("slot", "%s", x.slotMet())
	x.found = append(x.found, judged...)
}

func (x *examination) publicationMet() string {
	name := x.cfg.Publication
	switch {
	case x.f.Publication == nil && x.lacksTable():
		return "publication " + name + " does not exist yet: it will be created when the tables exist"
	case x.f.Publication == nil:
		return "publication " + name + " does not exist yet: it will be created"
	case x.lacksTable():
		return "publication " + name + " exists; it is examined further when all tables exist"
	}
	what := "inserts into"
	if x.cfg.Updates() && x.f.Publication.Update {
		what = "inserts into and updates of"
	}
	tables := make([]string, len(x.f.Tables))
	for i := range x.f.Tables {
		tables[i] = x.f.Tables[i].Table.String()
	}
	return fmt.Sprintf("publication %s publishes %s %s", name, what, strings.Join(tables, ", "))
}

func (x *examination) slotMet() string {
	s := x.f.Slot
	if s == nil {
		return "slot " + x.cfg.Slot + " does not exist yet: it will be created"
	}
	return fmt.Sprintf("slot %s exists, confirmed up to %s, WAL %s%s", x.cfg.Slot, s.Confirmed, s.WALStatus, activeBy(s))
}

func activeBy(s *pg.Slot) string {
	if s.Active {
		return fmt.Sprintf(", in use by server process %d", s.ActivePID)
	}
	return ""
}
