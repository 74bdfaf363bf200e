package replication

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// extras warns of what is published beside inserts into our tables: it works, and costs.
func (j *judgement) extras(p *pg.Publication) {
	const name = "publication extras"
	ours := j.cfg.Names().Tables
	tables := j.otherTables(p)
	pub := pgname.QuoteIdent(j.cfg.Publication)
	// Of schemas too (15 and newer): the list replaces all that is in the publication.
	own := j.ownPublication()
	only := own
	if len(ours) > 0 && j.f.Slot == nil { // no statement takes all tables out of a publication, and under a slot the entry of a table must stay
		only = append(own, fix.Words("Or, if no other relay and no subscriber reads publication "+j.cfg.Publication+" (they would lose events):"), fix.SQL(fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", pub, j.cfg.publishedTables())))
	}
	if j.lacksTable() {
		only = append(fix.ByWords("When all configured tables exist:"), only...)
	}
	switch {
	case p.AllTables && len(tables) == 0:
		j.Warn(name, j.ownPublication(), "publication %s covers all tables (FOR ALL TABLES): Postgres also sends the changes of future tables to walpost, which ignores them", j.cfg.Publication)
	case len(tables) > 0:
		if p.AllTables {
			only = own
		}
		j.Warn(name, only, "publication %s also has %s: Postgres sends their changes to walpost, which ignores them", j.cfg.Publication, condition.Some(tables))
	}
	if len(ours) == 0 {
		return // an empty publication publishes no operation
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
	if len(operations) > 0 {
		j.Warn("publication operations", j.publishLess(p, j.cfg.publishSetting()),
			"publication %s also publishes %s: Postgres sends them to walpost, too, for example when rows are cleaned up, and walpost ignores them", j.cfg.Publication, strings.Join(operations, ", "))
	}
}

// otherTables are the tables of the publication that are not configured.
func (j *judgement) otherTables(p *pg.Publication) (others []string) {
	for _, t := range p.Tables {
		if table := (pgname.Table{Schema: t.Schema, Name: t.Name}); !slices.Contains(j.cfg.Names().Tables, table) {
			others = append(others, table.String())
		}
	}
	return others
}

// shared reports whether the publication has tables that are not configured, so that it probably has other readers.
func (j *judgement) shared(p *pg.Publication) bool {
	return p.AllTables || len(j.otherTables(p)) > 0
}

// publishLess changes what the publication publishes. Whoever else reads it would lose operations without an error, so a shared
// publication stays as it is. A relay that has read it halts at any ALTER of its options.
func (j *judgement) publishLess(p *pg.Publication, setting string) fix.Fix {
	if j.shared(p) || j.f.Slot != nil {
		return j.ownPublication()
	}
	return fix.Fix{
		fix.Words("If no other relay and no subscriber reads publication " + j.cfg.Publication + " (they would lose updates, deletes or truncates without an error):"),
		fix.SQL(fmt.Sprintf("ALTER PUBLICATION %s SET (%s);", pgname.QuoteIdent(j.cfg.Publication), setting)),
	}
}

// leftOut warns of what a publication of the user's own does not publish.
func (j *judgement) leftOut(p *pg.Publication) {
	updates := j.cfg.updates() && !p.Update
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		if !t.Exists() {
			continue
		}
		if updates && !t.Identified() {
			updates = false
			j.Warn("publication updates", fix.ByWords("Set source.publish to insert. Or give "+t.Table.String()+" a primary key, and let the publication publish updates."),
				"publication %s publishes no updates, and %s has no replica identity: a changed primary key produces no record, although source.publish has update", j.cfg.Publication, t.Table)
		}
		if filter := p.Filter(t.Table); filter != "" {
			j.Warn("row filter of "+t.Table.String(), append(fix.Fix{fix.Words("To publish every row:")}, j.publishWhole(t)...),
				"publication %s has a row filter for %s: walpost publishes only rows for which %s is true, and so do a snapshot and walpost recover", j.cfg.Publication, t.Table, filter)
		}
	}
	if updates {
		j.Warn("publication updates", append(fix.ByWords("Set source.publish to insert. Or:"), j.publishLess(p, j.cfg.publishSetting())...),
			"publication %s publishes no updates: a changed primary key produces no record, although source.publish has update", j.cfg.Publication)
	}
}

// lacksTable reports whether a configured table does not exist.
func (j *judgement) lacksTable() bool {
	return slices.ContainsFunc(j.f.Tables, func(t pg.TableFacts) bool { return !t.Exists() })
}

// publishWhole publishes every row and column of a table.
func (j *judgement) publishWhole(t *pg.TableFacts) fix.Fix {
	if j.f.Slot != nil {
		return j.ownPublication()
	}
	return fix.BySQL(j.cfg.republishSQL(t.Table))
}

// ownPublication leaves the publication as it is, and replaces it. A slot reads the catalog as it was: one that is there reads the new
// publication only from where that was made (TestASlotTakesAnotherPublicationOnceItIsConfirmedBeyondItsMaking).
func (j *judgement) ownPublication() fix.Fix {
	own := *j.cfg.publishable(j.f)
	what, filters := "messages", ""
	if tables := j.cfg.Names().Tables; len(tables) > 0 {
		what = tables[0].Name
	}
	if slices.ContainsFunc(j.f.Tables, func(t pg.TableFacts) bool { return j.f.Publication.Filter(t.Table) != "" }) {
		filters = ", with any row filter of publication " + j.cfg.Publication + " that is still needed"
	}
	own.Publication += "_" + what
	sql := fix.SQL(publicationSQL(&own))
	if j.f.Slot == nil {
		return fix.Fix{fix.Words("Create a separate publication for walpost" + filters + ", and set source.publication:"), sql}
	}
	return fix.Fix{
		fix.Words("Create a separate publication for walpost" + filters + ":"), sql,
		fix.Words("A minute later, note the position server in walpost status. Once walpost status shows that the slot has confirmed that position, restart walpost with source.publication: " +
			own.Publication + " (not earlier: the slot cannot read older WAL with the new publication)."),
	}
}

// identities warns of tables on which an application's UPDATE or DELETE fails, because it is published and nothing
// identifies the row.
func (j *judgement) identities(p *pg.Publication) {
	if !p.Update && !p.Delete {
		return
	}
	for i := range j.f.Tables {
		if t := &j.f.Tables[i]; t.Exists() && !t.Identified() {
			how := fix.ByWords("Give " + t.Table.SQL() + " a primary key.")
			if !j.shared(p) && j.f.Slot == nil {
				how = append(fix.ByWords("Give "+t.Table.SQL()+" a primary key, or let the publication publish only inserts."), j.publishLess(p, "publish = 'insert'")...)
			}
			j.Warn("replica identity", how,
				"%s has no replica identity, but publication %s publishes updates or deletes: the application's UPDATE and DELETE statements on the table fail", t.Table, j.cfg.Publication)
		}
	}
}
