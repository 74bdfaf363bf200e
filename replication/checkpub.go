package replication

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/pg"
)

// publication judges the publication. tableMissing says that a table is missing, which was said already.
func (j *judgement) publication(tableMissing bool) {
	const name = "publication"
	p, pub := j.f.Publication, pg.QuoteIdent(j.cfg.Publication)
	if p == nil {
		j.noPublication(tableMissing)
		return
	}
	from := len(j.found)
	fail := func(fix, detail string, args ...any) {
		f := j.add(Fail, name, fix, detail, args...)
		if j.known() {
			f.behave = lostEvents
		}
	}
	if !p.Insert {
		fail(fmt.Sprintf("ALTER PUBLICATION %s SET (%s);", pub, j.cfg.publishSetting()), "publication %s does not publish inserts", j.cfg.Publication)
	}
	if j.cfg.updates() && !p.Update {
		fail(fmt.Sprintf("ALTER PUBLICATION %s SET (%s); or set source.publish to insert.", pub, j.cfg.publishSetting()),
			"publication %s does not publish updates, which source.publish wants", j.cfg.Publication)
	}
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		if !t.Exists() {
			continue
		}
		published := p.Table(t.Table)
		add := fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s;", pub, t.Table.SQL())
		switch {
		case published != nil && published.Filter != "":
			fail(fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s; (a list of all its tables)", pub, t.Table.SQL()),
				"publication %s has a row filter for %s: %s", j.cfg.Publication, t.Table, published.Filter)
		case published != nil:
		case t.Kind == "p" && !p.ViaRoot:
			fail(fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true);", pub),
				"publication %s publishes the partitions of %s under their own names", j.cfg.Publication, t.Table)
		case t.Root != "":
			fail("Set source.table to the partitioned table.",
				"publication %s does not publish %s by itself: it is a partition of %s", j.cfg.Publication, t.Table, t.Root)
		default:
			fail(add, "publication %s does not contain table %s", j.cfg.Publication, t.Table)
		}
	}
	if len(j.found) > from {
		return
	}
	what := "inserts into"
	if j.cfg.updates() {
		what = "inserts into and updates of"
	}
	j.add(OK, name, "", "publication %s publishes %s %s", j.cfg.Publication, what, strings.Join(tableNames(j.cfg.tables()), ", "))
	j.further()
	j.identities()
}

func (j *judgement) noPublication(tableMissing bool) {
	const name = "publication"
	if j.known() {
		j.add(Fail, name, "A publication made now does not help the slot that is there: it reads the catalog as it was. "+recoverWithout(j.cfg.Slot)+
			" Where walpost has never run, walpost run makes both once the slot is dropped.",
			"publication %s does not exist, but slot %s does: what was written without the publication cannot be read any more",
			j.cfg.Publication, j.cfg.Slot).behave = lostEvents
		return
	}
	sql := publicationSQL(j.cfg)
	switch {
	case !j.makes:
		j.add(Fail, name, sql, "publication %s does not exist", j.cfg.Publication)
	case tableMissing:
		j.add(OK, name, "", "publication %s does not exist yet: it will be made when the tables are there", j.cfg.Publication)
	case j.f.Server.Recovery:
		j.add(Fail, name, "On the primary: "+sql, "publication %s does not exist, and a standby cannot make it", j.cfg.Publication)
	default:
		if j.unidentified() {
			return
		}
		if lacks := j.rightsToPublish(); lacks != "" {
			j.add(Fail, name, "As the owner of the tables: "+sql, "publication %s does not exist, and role %s may not make it: %s",
				j.cfg.Publication, j.f.Server.Role, lacks)
			return
		}
		j.add(OK, name, "", "publication %s does not exist yet: it will be made", j.cfg.Publication)
	}
}

// unidentified refuses to make a publication that would have an application's updates fail.
func (j *judgement) unidentified() bool {
	for i := range j.f.Tables {
		if t := &j.f.Tables[i]; j.cfg.updates() && t.Exists() && !t.Identified() {
			j.add(Fail, "publication", "Give "+t.Table.String()+" a primary key, or set source.publish to insert.",
				"publication %s would publish updates, and %s has no replica identity: the application's UPDATE of it would fail", j.cfg.Publication, t.Table)
			return true
		}
	}
	return false
}

// rightsToPublish is what the role lacks to make the publication, or "".
func (j *judgement) rightsToPublish() string {
	if j.f.Server.Super {
		return ""
	}
	if !j.f.Server.CanCreate {
		return "it has not the right CREATE on database " + j.f.Server.Database
	}
	for i := range j.f.Tables {
		if t := &j.f.Tables[i]; t.Exists() && !t.Owned {
			return fmt.Sprintf("%s belongs to %s", t.Table, t.Owner)
		}
	}
	return ""
}

// further warns of what is published beside inserts into our tables: it works, and costs.
func (j *judgement) further() {
	p, name := j.f.Publication, "publication extras"
	ours := map[Table]bool{}
	for _, t := range j.cfg.tables() {
		ours[t] = true
	}
	var tables []string
	for _, t := range p.Tables {
		if table := (Table{Schema: t.Schema, Name: t.Name}); !ours[table] {
			tables = append(tables, table.String())
		}
	}
	var operations []string
	for _, o := range []struct {
		on   bool
		name string
	}{{p.Update && !j.cfg.updates(), "update"}, {p.Delete, "delete"}, {p.Truncate, "truncate"}} {
		if o.on {
			operations = append(operations, o.name)
		}
	}
	pub := pg.QuoteIdent(j.cfg.Publication)
	if p.AllTables || len(tables) > 0 {
		n := len(tables)
		if n > 3 {
			tables = append(tables[:3], fmt.Sprintf("%d more", n-3))
		}
		// Of schemas too (15 and newer): the list replaces all that is in the publication.
		fix := fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", pub, strings.Join(sqlNames(j.cfg.tables()), ", "))
		if p.AllTables {
			fix = j.ownPublication()
		}
		if n == 0 {
			j.add(Warn, name, fix, "publication %s is FOR ALL TABLES: each change of a table that will be made is decoded and sent to walpost, which drops it", j.cfg.Publication).logged = true
		} else {
			j.add(Warn, name, fix, "publication %s also has %s: each change there is decoded and sent to walpost, which drops it", j.cfg.Publication, strings.Join(tables, ", ")).logged = true
		}
	}
	if len(operations) > 0 {
		j.add(Warn, "publication operations", fmt.Sprintf("ALTER PUBLICATION %s SET (%s);", pub, j.cfg.publishSetting())+j.thenRecover(),
			"publication %s also publishes %s: cleaning up the table is decoded and sent to walpost too", j.cfg.Publication, strings.Join(operations, ", ")).logged = true
	}
}

// thenRecover is what to do after an ALTER of the publication that harms nothing, where a slot is read: nobody can tell it from one that does.
func (j *judgement) thenRecover() string {
	if !j.known() {
		return ""
	}
	return " Then walpost run halts, because a publication that was altered may have left rows out: walpost recover finds that none is missing, and walpost run goes on."
}

// ownPublication replaces a publication of all tables, out of which none can be taken. A slot reads the catalog as it was: one that is
// there reads the new publication only from where that was made
// (TestASlotTakesAnotherPublicationOnceItIsConfirmedBeyondItsMaking).
func (j *judgement) ownPublication() string {
	own := *j.cfg
	own.Publication += "_outbox"
	sql := publicationSQL(&own)
	if !j.known() {
		return "Make a publication of its own for walpost and set source.publication: " + sql
	}
	return "Make a publication of its own for walpost: " + sql + " Then SELECT pg_current_wal_lsn(); and once walpost status says that the slot has confirmed that position, " +
		"restart walpost with source.publication: " + own.Publication + " (not before: the slot cannot read what was written without it)."
}

// identities warns of tables on which an application's UPDATE or DELETE fails, because it is published and nothing
// identifies the row.
func (j *judgement) identities() {
	p := j.f.Publication
	if !p.Update && !p.Delete {
		return
	}
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		if !t.Exists() || t.Identified() {
			continue
		}
		j.add(Warn, "replica identity", fmt.Sprintf("Give %s a primary key. Or ALTER PUBLICATION %s SET (publish = 'insert');", t.Table.SQL(), pg.QuoteIdent(j.cfg.Publication))+j.thenRecover(),
			"%s has no replica identity while publication %s publishes updates or deletes: the application's UPDATE and DELETE of it fail",
			t.Table, j.cfg.Publication).logged = true
	}
}

func tableNames(tables []Table) []string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.String()
	}
	return names
}

func sqlNames(tables []Table) []string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.SQL()
	}
	return names
}

// publicationSQL makes the publication: inserts only, unless updates are wanted, so that the application's updates and deletes
// need no replica identity and cost nothing here; a partitioned table under its own name.
func publicationSQL(c *Config) string {
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s, publish_via_partition_root = true);",
		pg.QuoteIdent(c.Publication), strings.Join(sqlNames(c.tables()), ", "), c.publishSetting())
}

// slotSQL makes the slot by SQL. It must run after the publication is committed.
func slotSQL(c *Config) string {
	if c.Failover {
		return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true);", pg.QuoteLiteral(c.Slot))
	}
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput');", pg.QuoteLiteral(c.Slot))
}
