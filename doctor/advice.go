package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication"
)

// Advise returns the warnings that a start logs, judged by what it found of the server, the slot and the publication. It is pure.
func Advise(cfg *replication.Config, f *pg.Facts) []Finding {
	x := &examination{cfg: cfg, f: f}
	x.advise()
	x.adviseSlot()
	return x.found
}

func (x *examination) advise() {
	if s := &x.f.Server; strings.Contains(s.SyncStandbys, "*") {
		x.add(Warn, "synchronous_standby_names", fix.ByWords("Name the standbys in synchronous_standby_names instead of '*'."),
			"synchronous_standby_names is %q: commits may wait for walpost as if it were a standby", s.SyncStandbys)
	}
	if p := x.f.Publication; p != nil && p.Insert {
		x.extras(p)
		x.leftOut(p)
		x.identities(p)
	}
}

// adviseSlot is about a slot that can be read.
func (x *examination) adviseSlot() {
	s := x.f.Slot
	if s == nil || s.Lost() != "" {
		return
	}
	if s.WALStatus == "unreserved" {
		x.add(Warn, "slot", fix.ByWords("Run walpost, or raise max_slot_wal_keep_size, before the next checkpoint of Postgres."),
			"slot %s is about to be lost: it holds more WAL than max_slot_wal_keep_size%s", x.cfg.Slot, activeBy(s))
	}
	if x.cfg.Failover && !s.Failover {
		x.add(Warn, "slot failover", fix.Fix{fix.Words(`Stop walpost, connect with psql "dbname=` + x.f.Server.Database + ` replication=database", and run:`), fix.SQL("ALTER_REPLICATION_SLOT " + pg.QuoteIdent(x.cfg.Slot) + " (FAILOVER);")},
			"slot %s was created without failover: it does not survive a failover", x.cfg.Slot)
	}
}

// walSettings is about the server's settings that a stream lives with.
func (x *examination) walSettings() {
	const name = "wal_sender_timeout"
	minute := fix.Fix{fix.Setting{Name: name, Value: "60s", Bare: "60000 (in ms)"}}
	switch d := pg.Millis(x.f.Server.SenderTimeout); {
	case d == 0:
		x.add(Warn, name, minute, "wal_sender_timeout is off: after a network failure a dead connection may keep the slot in use")
	case d < time.Second:
		x.add(Warn, name, minute, "wal_sender_timeout is %s: a short network interruption ends the stream", d)
	case d > 5*time.Minute:
		x.add(Warn, name, minute, "wal_sender_timeout is %s: after a network failure nobody can take the slot for that long", d)
	}
	if x.f.Server.KeepMB < 0 {
		x.add(Warn, "max_slot_wal_keep_size", keepSize, "max_slot_wal_keep_size is not set: a slot that nobody reads holds WAL until the disk is full")
	}
}

var keepSize = fix.Fix{fix.Setting{Name: "max_slot_wal_keep_size", Value: "50GB", Bare: "51200 (in MB)", Note: "(keep it below the free space of the disk)"}}

// extras warns of what is published beside inserts into our tables: it works, and costs.
func (x *examination) extras(p *pg.Publication) {
	const name = "publication extras"
	ours := x.cfg.Names().Tables
	tables := x.otherTables(p)
	pub := pg.QuoteIdent(x.cfg.Publication)
	// Of schemas too (15 and newer): the list replaces all that is in the publication.
	own := x.ownPublication()
	only := own
	if len(ours) > 0 { // no statement takes all tables out of a publication
		only = append(own, fix.Words("Or, if no other relay and no subscriber reads publication "+x.cfg.Publication+" (they would lose events):"), fix.SQL(fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", pub, x.cfg.PublishedTables())))
	}
	if x.lacksTable() {
		only = append(fix.ByWords("When all configured tables exist:"), only...)
	}
	switch {
	case p.AllTables && len(tables) == 0:
		x.add(Warn, name, x.ownPublication(), "publication %s covers all tables (FOR ALL TABLES): Postgres also sends the changes of future tables to walpost, which ignores them", x.cfg.Publication)
	case len(tables) > 0:
		if p.AllTables {
			only = own
		}
		x.add(Warn, name, only, "publication %s also has %s: Postgres sends their changes to walpost, which ignores them", x.cfg.Publication, some(tables))
	}
	if len(ours) == 0 {
		return // an empty publication publishes no operation
	}
	var operations []string
	for _, o := range []struct {
		on   bool
		name string
	}{{p.Update && !x.cfg.Updates(), "update"}, {p.Delete, "delete"}, {p.Truncate, "truncate"}} {
		if o.on {
			operations = append(operations, o.name)
		}
	}
	if len(operations) > 0 {
		x.add(Warn, "publication operations", x.publishLess(p, x.cfg.PublishSetting()),
			"publication %s also publishes %s: Postgres sends them to walpost, too, for example when rows are cleaned up, and walpost ignores them", x.cfg.Publication, strings.Join(operations, ", "))
	}
}

// otherTables are the tables of the publication that are not configured.
func (x *examination) otherTables(p *pg.Publication) (others []string) {
	for _, t := range p.Tables {
		if table := (pg.Table{Schema: t.Schema, Name: t.Name}); !slices.Contains(x.cfg.Names().Tables, table) {
			others = append(others, table.String())
		}
	}
	return others
}

// shared reports whether the publication has tables that are not configured, so that it probably has other readers.
func (x *examination) shared(p *pg.Publication) bool {
	return p.AllTables || len(x.otherTables(p)) > 0
}

// publishLess changes what the publication publishes. Whoever else reads it would lose operations without an error, so a shared
// publication stays as it is.
func (x *examination) publishLess(p *pg.Publication, setting string) fix.Fix {
	if x.shared(p) {
		return x.ownPublication()
	}
	return append(fix.ByWords("If no other relay and no subscriber reads publication "+x.cfg.Publication+" (they would lose updates, deletes or truncates without an error):"),
		x.thenRecover(fix.SQL(fmt.Sprintf("ALTER PUBLICATION %s SET (%s);", pg.QuoteIdent(x.cfg.Publication), setting)))...)
}

// leftOut warns of what a publication of the user's own does not publish.
func (x *examination) leftOut(p *pg.Publication) {
	updates := x.cfg.Updates() && !p.Update
	for i := range x.f.Tables {
		t := &x.f.Tables[i]
		if !t.Exists() {
			continue
		}
		if updates && !t.Identified() {
			updates = false
			x.add(Warn, "publication updates", fix.ByWords("Set source.publish to insert. Or give "+t.Table.String()+" a primary key, and let the publication publish updates."),
				"publication %s publishes no updates, and %s has no replica identity: a changed primary key produces no record, although source.publish has update", x.cfg.Publication, t.Table)
		}
		whole := fix.BySQL(x.cfg.RepublishSQL(t.Table))
		if x.f.Slot != nil {
			whole = append(whole, fix.Words("If walpost has run with this publication before, walpost run then halts once, because the publication was altered. Run walpost recover, and then walpost run."))
		}
		if filter := p.Filter(t.Table); filter != "" {
			x.add(Warn, "row filter of "+t.Table.String(), append(fix.Fix{fix.Words("To publish every row:")}, whole...),
				"publication %s has a row filter for %s: walpost publishes only rows for which %s is true, and so do a snapshot and walpost recover", x.cfg.Publication, t.Table, filter)
		}
		if x.cfg.Needs == nil {
			continue
		}
		all, _ := x.cfg.Needs(t.Relation)
		streamed, err := x.cfg.Needs(t.Streamed(p, x.f.Server.Version))
		lacks := slices.DeleteFunc(all, func(c string) bool { return slices.Contains(streamed, c) })
		if err == nil && len(lacks) > 0 {
			x.add(Warn, "columns of "+t.Table.String(), append(fix.Fix{fix.Words("To include it in the records:")}, whole...),
				"publication %s does not publish column %s of %s: records do not have it (router.table.field.additional.missing is ignore)", x.cfg.Publication, some(lacks), t.Table)
		}
	}
	if updates {
		x.add(Warn, "publication updates", append(fix.ByWords("Set source.publish to insert. Or:"), x.publishLess(p, x.cfg.PublishSetting())...),
			"publication %s publishes no updates: a changed primary key produces no record, although source.publish has update", x.cfg.Publication)
	}
}

// lacksTable reports whether a configured table does not exist.
func (x *examination) lacksTable() bool {
	return slices.ContainsFunc(x.f.Tables, func(t pg.TableFacts) bool { return !t.Exists() })
}

// thenRecover adds what to do after an ALTER of the publication that harms nothing, if a slot is read: nobody can tell it from one that does.
func (x *examination) thenRecover(steps ...fix.Step) fix.Fix {
	if x.f.Slot == nil {
		return steps
	}
	return append(steps, fix.Words("If walpost has run with this publication before, walpost run then halts once, because the publication was altered. Run walpost recover, which finds nothing missing, and then walpost run."))
}

// ownPublication replaces a publication of all tables, out of which none can be taken. A slot reads the catalog as it was: one that is
// there reads the new publication only from where that was made
// (TestASlotTakesAnotherPublicationOnceItIsConfirmedBeyondItsMaking).
func (x *examination) ownPublication() fix.Fix {
	own := *x.cfg
	what := "messages"
	if tables := x.cfg.Names().Tables; len(tables) > 0 {
		what = tables[0].Name
	}
	own.Publication += "_" + what
	sql := fix.SQL(replication.PublicationSQL(&own))
	if x.f.Slot == nil {
		return fix.Fix{fix.Words("Create a separate publication for walpost and set source.publication:"), sql}
	}
	return fix.Fix{
		fix.Words("Create a separate publication for walpost:"), sql,
		fix.Words("Then read the position:"), fix.SQL("SELECT pg_current_wal_lsn();"),
		fix.Words("Once walpost status says that the slot has confirmed that position, restart walpost with source.publication: " +
			own.Publication + " (not earlier: the slot cannot read older WAL with the new publication)."),
	}
}

// identities warns of tables on which an application's UPDATE or DELETE fails, because it is published and nothing
// identifies the row.
func (x *examination) identities(p *pg.Publication) {
	if !p.Update && !p.Delete {
		return
	}
	for i := range x.f.Tables {
		if t := &x.f.Tables[i]; t.Exists() && !t.Identified() {
			how := fix.ByWords("Give " + t.Table.SQL() + " a primary key.")
			if !x.shared(p) {
				how = append(fix.ByWords("Give "+t.Table.SQL()+" a primary key, or let the publication publish only inserts."), x.publishLess(p, "publish = 'insert'")...)
			}
			x.add(Warn, "replica identity", how,
				"%s has no replica identity, but publication %s publishes updates or deletes: the application's UPDATE and DELETE statements on the table fail", t.Table, x.cfg.Publication)
		}
	}
}

// some is a list that does not become longer than a line.
func some(names []string) string {
	if n := len(names); n > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), n-3)
	}
	return strings.Join(names, ", ")
}
