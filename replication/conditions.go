package replication

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// Conditions judges everything that a stream rests on, in the order of a report. A start refuses the first Fail, and logs each Warn. makes says
// that the start makes the slot if it is missing or lost. It is pure.
func (c *Config) Conditions(f *pg.Facts, makes bool) []condition.Finding {
	j := c.judge(f, makes)
	if j.server(); f.Server.Version >= pg.MinVersion {
		j.published()
		j.slot()
	}
	for i := range j.Found {
		if bad := &j.Found[i]; bad.Need == condition.Losing && f.Publication != nil {
			bad.Fix = c.afterLoss(f, bad)
		}
	}
	return j.Found
}

// unmetRunning is what a stream that runs rests on, and that is gone.
func (c *Config) unmetRunning(f *pg.Facts) []*condition.Finding {
	j := c.judge(f, false)
	j.slot()
	j.published()
	return condition.Unmet(j.Found)
}

// afterLoss is what to do about something that the stream rested on: to mend it is not enough, since what was written meanwhile is missing.
func (c *Config) afterLoss(f *pg.Facts, bad *condition.Finding) fix.Fix {
	switch {
	case f.Slot == nil || f.Slot.Lost() != "":
		return fix.Fix{fix.Words(recoverGone(c.tableless()))}
	case f.Publication == nil || len(bad.Fix) == 0:
		return fix.Fix{fix.Words(recoverWithout(c.Slot, "", c.tableless()))}
	}
	return append(slices.Clip(bad.Fix), fix.Words("The slot may lack rows that were written before this repair. After the repair, run "+fault.Command("recover")+" to publish the missing events from the table."))
}

// A judgement collects the findings about facts.
type judgement struct {
	condition.List
	cfg   *Config
	f     *pg.Facts
	makes bool // the slot, and with it a missing publication, is to be made
}

func (c *Config) judge(f *pg.Facts, makes bool) *judgement {
	return &judgement{List: condition.List{Side: condition.Postgres, Provider: f.Server.Provider}, cfg: c, f: f, makes: makes}
}

// fail is about what a start needs.
func (j *judgement) fail(name string, by fix.Fix, why string, args ...any) {
	j.Unmet(condition.Start, name, by, why, args...)
}

// lose is fail for a condition without which a slot that exists loses events.
func (j *judgement) lose(name string, by fix.Fix, why string, args ...any) {
	j.Unmet(j.loses(), name, by, why, args...)
}

func (j *judgement) loses() condition.Need {
	if j.known() {
		return condition.Losing
	}
	return condition.Start
}

// misconfigured is fail if the configuration must change.
func (j *judgement) misconfigured(name string, by fix.Fix, why string, args ...any) {
	j.Unmet(condition.Misconfigured, name, by, why, args...)
}

// known says that the slot is there and is to be read.
func (j *judgement) known() bool {
	return j.f.Slot != nil && !j.foreign() && (!j.makes || j.f.Slot.Lost() == "")
}

// foreign says that the slot cannot be walpost's, so nothing must be said about what it read, and nobody must drop it lightly.
func (j *judgement) foreign() bool {
	s := j.f.Slot
	return s != nil && (s.Database != j.f.Server.Database || s.Plugin != "pgoutput")
}

func (j *judgement) server() {
	s := &j.f.Server
	if !j.Version(s) {
		return
	}
	if s.Recovery && s.Version < pg.StandbyVersion {
		j.fail("primary", fix.ByWords("Point source.dsn at the primary."),
			"the server is a standby of version %d.%d; logical decoding on a standby needs 16 or newer", s.Version/10000, s.Version%10000)
	}
	if s.WALLevel != "logical" {
		j.fail("wal_level", fix.Fix{fix.Setting{Name: "wal_level", Value: "logical", Restart: true}}, "wal_level is %s, but logical decoding needs logical", s.WALLevel)
	}
	j.Met("wal_level", "wal_level is logical")
	if !s.Super && !s.Replication && !s.Managed && !j.f.Streams {
		j.fail("role", fix.BySQL(pg.ReplicationRightHint(s.Role)), "role %s lacks the REPLICATION attribute", s.Role)
	}
	j.Met("role", "role %s may replicate", s.Role)
	if s.Slots >= s.MaxSlots && j.f.Slot == nil {
		j.fail("max_replication_slots", fix.Fix{fix.Setting{Name: "max_replication_slots", Value: fmt.Sprint(s.MaxSlots + 4), Restart: true}, fix.Words("Or drop a slot that nobody uses.")},
			"all %d replication slots are in use", s.MaxSlots)
	}
	j.Met("max_replication_slots", "%d of %d replication slots in use", s.Slots, s.MaxSlots)
	// A walsender of ours may be among those in use.
	if ours := j.f.Streams || j.f.Slot != nil && j.f.Slot.Active; s.Senders >= s.MaxSenders && !ours {
		j.fail("max_wal_senders", fix.Fix{fix.Setting{Name: "max_wal_senders", Value: fmt.Sprint(s.MaxSenders + 4), Restart: true}},
			"all %d walsenders are in use", s.MaxSenders)
	}
	j.Met("max_wal_senders", "%d of %d walsenders in use", s.Senders, s.MaxSenders)
	if strings.Contains(s.SyncStandbys, "*") {
		j.Warn("synchronous_standby_names", fix.ByWords("Name the standbys in synchronous_standby_names instead of '*'."),
			"synchronous_standby_names is %q: commits may wait for walpost as if it were a standby", s.SyncStandbys)
	}
	j.Met("synchronous_standby_names", "synchronous_standby_names does not name walpost")
}

// slot judges the slot itself. A lost slot that is made again is fine.
func (j *judgement) slot() {
	const name = condition.Slot
	s := j.f.Slot
	other := fix.Fix{fix.Words("Set source.slot to another name, or drop that slot if nobody needs it:"), fix.SQL("SELECT pg_drop_replication_slot(" + pgname.QuoteLiteral(j.cfg.Slot) + ");")}
	absent, missing := s == nil, "does not exist"
	if s != nil && s.Lost() != "" && !j.foreign() {
		absent, missing = true, "is invalidated ("+s.Lost()+")"
	}
	switch {
	case absent && j.makes && j.cfg.Failover && j.f.Server.Version < pg.FailoverVersion:
		j.misconfigured(name, j.cannotFailover(),
			"source.failover: needs Postgres 17 or newer (this is %d)", j.f.Server.Version/10000)
	case absent && j.makes && j.cfg.Failover && j.f.Server.Recovery:
		j.fail(name, j.cannotFailover(),
			"slot %s %s, and a standby cannot create a slot that survives a failover (source.failover)", j.cfg.Slot, missing)
	case s == nil && !j.makes:
		j.fail(name, fix.Fix{fix.Words("Check source.dsn and source.slot first: the server or the slot's name may be wrong, or the slot of a Debezium connector was dropped. " +
			"A new slot has no events from before its creation. If walpost used the slot before, do not create the slot. " + fault.Recover(j.cfg.tableless()) +
			" Only for a new relay, create the slot:"), fix.SQL(slotSQL(j.cfg, j.cfg.Failover && j.cannotFailover() == nil))},
			"slot %s does not exist", j.cfg.Slot)
	case s == nil:
		j.OK(name, "slot %s does not exist yet: it will be created", j.cfg.Slot)
	case s.Type != "logical":
		j.fail(name, other, "slot %s is a %s slot, not a logical one", j.cfg.Slot, s.Type)
	case s.Plugin != "pgoutput":
		j.fail(name, other, "slot %s uses the plugin %s, not pgoutput", j.cfg.Slot, s.Plugin)
	case s.Database != j.f.Server.Database:
		j.fail(name, other, "slot %s belongs to the database %s, not to %s", j.cfg.Slot, s.Database, j.f.Server.Database)
	case s.Synced && j.f.Server.Recovery:
		j.fail(name, fix.ByWords("Read from the primary, or set source.slot to a name of its own for this standby."),
			"slot %s is a copy that is synchronized from the primary: it can be read only after a promotion", j.cfg.Slot)
	case s.Temporary:
		j.fail(name, other, "slot %s is temporary: it ends with the session of process %d that created it", j.cfg.Slot, s.ActivePID)
	case s.TwoPhase:
		j.fail(name, other, "slot %s was created for two-phase decoding, which walpost does not read", j.cfg.Slot)
	case s.Lost() != "" && !j.makes:
		j.Unmet(condition.Losing, name, fix.ByWords(recoverGone(j.cfg.tableless())), "slot %s is invalidated (%s), and the WAL after %s may be gone", j.cfg.Slot, s.Lost(), s.Confirmed)
	default:
		j.goodSlot(s)
	}
}

// goodSlot is about a slot that can be read.
func (j *judgement) goodSlot(s *pg.Slot) {
	const name = condition.Slot
	active := ""
	if s.Active {
		active = fmt.Sprintf(", in use by server process %d", s.ActivePID)
	}
	switch {
	case s.Lost() != "":
		return
	case s.WALStatus == "unreserved":
		j.Warn(name, fix.ByWords("Run walpost, or raise max_slot_wal_keep_size, before the next checkpoint of Postgres."),
			"slot %s is about to be lost: it retains more WAL than max_slot_wal_keep_size%s", j.cfg.Slot, active)
	default:
		j.OK(name, "slot %s exists, confirmed up to %s, WAL %s%s", j.cfg.Slot, s.Confirmed, s.WALStatus, active)
	}
	if j.cfg.Failover && !s.Failover {
		how := j.cannotFailover()
		if how == nil {
			how = fix.Fix{fix.Words(`Stop walpost, connect with psql "dbname=` + j.f.Server.Database + ` replication=database", and run:`), fix.SQL("ALTER_REPLICATION_SLOT " + pgname.QuoteIdent(j.cfg.Slot) + " (FAILOVER);")}
		}
		j.Warn("slot failover", how, "slot %s was created without failover: it does not survive a failover", j.cfg.Slot)
	}
}

// cannotFailover is what to do where the server's slots cannot survive a failover, nil where they can.
func (j *judgement) cannotFailover() fix.Fix {
	switch {
	case j.f.Server.Version < pg.FailoverVersion:
		return fix.ByWords("Leave source.failover out, or upgrade to Postgres 17.")
	case j.f.Server.Recovery:
		return fix.ByWords("Point source.dsn at the primary; its slot is copied to the standbys.")
	}
	return nil
}

// published judges the tables and the publication.
func (j *judgement) published() {
	missing := false
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		j.table(t)
		missing = missing || !t.Exists()
	}
	j.publication(missing)
	if p := j.f.Publication; p != nil && p.Insert {
		j.extras(p)
		j.leftOut(p)
		j.identities(p)
	}
}

func (j *judgement) table(t *pg.TableFacts) {
	if j.Table(j.loses(), t, j.f.Server.Database, j.missingTable()) {
		j.OK(condition.TableName(t.Table), "table %s exists", t.Table)
		j.columns(t)
	}
}

// missingTable says how to repair a missing table. A table that was renamed is still in the publication.
func (j *judgement) missingTable() fix.Fix {
	var others []string
	if p := j.f.Publication; p != nil {
		for _, t := range p.Tables {
			if !j.configured(t) {
				others = append(others, t.Schema+"."+t.Name)
			}
		}
	}
	if len(others) == 0 {
		return fix.ByWords("Correct source.table, or create the table: walpost setup prints the SQL.")
	}
	return fix.ByWords(fmt.Sprintf("Publication %s has %s. If the table was renamed, set source.table to its current name. "+
		"Don't create a new table under the old name: walpost would leave out what is written into the renamed one.", j.cfg.Publication, strings.Join(others, ", ")))
}

// columns judges what the router needs, in the table and in what is published of it.
func (j *judgement) columns(t *pg.TableFacts) {
	if j.cfg.Needs == nil {
		return
	}
	name := "columns of " + t.Table.String()
	all, fits := j.Columns(t, j.cfg.Needs)
	if !fits {
		return
	}
	needs := all
	// The router may do without a column that is not published (table.field.additional.missing).
	if enough, err := j.cfg.Needs(t.Streamed(j.f.Publication, j.f.Server.Version)); err == nil {
		needs = enough
	}
	var generated, unlisted []string
	var published *pg.PublishedTable
	if p := j.f.Publication; p != nil {
		published = p.Table(t.Table)
	}
	for _, need := range needs {
		i := t.Relation.Index(need)
		if i < 0 {
			continue // Columns says it
		}
		switch isGenerated := t.Relation.Columns[i].Generated; {
		case published != nil && published.Columns != nil && !slices.Contains(published.Columns, need):
			if isGenerated {
				generated = append(generated, need)
			} else {
				unlisted = append(unlisted, need)
			}
		case isGenerated && (j.f.Server.Version < 180000 || published == nil):
			generated = append(generated, need)
		}
	}
	if len(generated) > 0 {
		j.fail(name, fix.ByWords("Use an ordinary column, filled by the application."),
			"column %s of %s is generated: publication %s does not send it", strings.Join(generated, ", "), t.Table, j.cfg.Publication)
	}
	if len(unlisted) > 0 {
		j.lose(name, fix.BySQL(j.cfg.republishSQL(t.Table)), "publication %s has a column list for %s that lacks %s", j.cfg.Publication, t.Table, strings.Join(unlisted, ", "))
	}
	if lacks := slices.DeleteFunc(slices.Clone(all), func(c string) bool { return slices.Contains(needs, c) }); len(lacks) > 0 && !j.Has(name) && published != nil {
		j.Warn(name, append(fix.Fix{fix.Words("To include it in the records:")}, j.publishWhole(t)...),
			"publication %s does not publish column %s of %s: records do not have it (router.table.field.additional.missing is ignore)", j.cfg.Publication, condition.Some(lacks), t.Table)
	}
	j.Met(name, "%s has %s", t.Table, strings.Join(all, ", "))
}

// republishSQL publishes all columns of a table, and leaves the other tables of the publication as they are,
// which SET TABLE does not.
func (c *Config) republishSQL(t pgname.Table) string {
	return fmt.Sprintf("BEGIN; ALTER PUBLICATION %[1]s DROP TABLE %[2]s; ALTER PUBLICATION %[1]s ADD TABLE %[2]s; COMMIT;", pgname.QuoteIdent(c.Publication), t.SQL())
}

// publication judges the publication. tableMissing says that a table is missing, which was said already.
func (j *judgement) publication(tableMissing bool) {
	const name = "publication"
	p := j.f.Publication
	if p == nil {
		j.noPublication(tableMissing)
		return
	}
	j.publishes(p)
	what, names := "inserts into", make([]string, len(j.f.Tables))
	if j.cfg.updates() && p.Update {
		what = "inserts into and updates of"
	}
	for i := range j.f.Tables {
		names[i] = j.f.Tables[i].Table.String()
	}
	if tableMissing {
		j.Met(name, "publication %s exists; it is examined further when all tables exist", j.cfg.Publication)
	}
	j.Met(name, "publication %s publishes %s %s", j.cfg.Publication, what, strings.Join(names, ", "))
}

// publishes judges whether the publication has inserts into each table.
func (j *judgement) publishes(p *pg.Publication) {
	const name = "publication"
	pub := pgname.QuoteIdent(j.cfg.Publication)
	publish := fmt.Sprintf("ALTER PUBLICATION %s SET (%s);", pub, j.cfg.publishSetting())
	if !p.Insert && len(j.f.Tables) > 0 {
		j.lose(name, fix.BySQL(publish), "publication %s does not publish inserts", j.cfg.Publication)
	}
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		if !t.Exists() {
			continue
		}
		published := p.Table(t.Table)
		switch {
		case published != nil:
		case t.Kind == "p" && !p.ViaRoot:
			j.lose(name, fix.BySQL(fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true);", pub)),
				"publication %s publishes the partitions of %s under their own names", j.cfg.Publication, t.Table)
		case t.Root != "":
			j.lose(name, fix.ByWords("Set source.table to the partitioned table."),
				"publication %s does not publish %s on its own, because it is a partition of %s", j.cfg.Publication, t.Table, t.Root)
		default:
			add := fix.BySQL(fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s;", pub, t.Table.SQL()))
			// The slot reads this publication already. If the publication has no other table than the configured ones, both are ours.
			if len(p.Tables) > 0 && (!j.known() || slices.ContainsFunc(p.Tables, func(p pg.PublishedTable) bool { return !j.configured(p) })) {
				add = append(fix.ByWords(ownNames+" Or:"), add...)
			}
			if j.known() && len(j.f.Tables) > 1 { // the record does not have a table that is new, so it has no gap
				add = append(fix.ByWords(fmt.Sprintf("If %[1]s is new in source.tables, walpost recover does not publish the rows that %[1]s already has. "+
					"Run the statement below, wait until every transaction that began before it has ended, publish these rows with walpost replay --all --table=%[1]s, and then start walpost.", t.Table)), add...)
			}
			j.lose(name, add, "publication %s does not contain table %s", j.cfg.Publication, t.Table)
		}
	}
}

// ownNames is the advice if another relay of the database may have the publication, and so the slot of the same name.
const ownNames = "Another relay may use this publication: set source.slot and source.publication to names that only this relay uses."

// configured reports whether a published table is one of the configured tables.
func (j *judgement) configured(p pg.PublishedTable) bool {
	return slices.ContainsFunc(j.f.Tables, func(t pg.TableFacts) bool { return t.Table.Schema == p.Schema && t.Table.Name == p.Name })
}

func (j *judgement) noPublication(tableMissing bool) {
	const name = "publication"
	make := fix.SQL(publicationSQL(j.cfg.publishable(j.f)))
	switch {
	case j.foreign(): // slot says why it cannot be read
	case j.known():
		j.lose(name, fix.ByWords("If another relay uses slot "+j.cfg.Slot+", set source.slot to a name that only this relay uses. "+
			"Otherwise it is not enough to create the publication: the existing slot reads an old state of the catalog, which does not contain it. "+recoverWithout(j.cfg.Slot, cmp.Or(j.cfg.Outbox.Role, j.f.Server.Role), j.cfg.tableless())+
			" If walpost has never run, drop the slot, and walpost run creates both."),
			"publication %s does not exist, but slot %s does: what was written without the publication can no longer be read",
			j.cfg.Publication, j.cfg.Slot)
	case !j.makes:
		j.fail(name, fix.Fix{make}, "publication %s does not exist", j.cfg.Publication)
	case tableMissing:
		j.OK(name, "publication %s does not exist yet: it will be created when the tables exist", j.cfg.Publication)
	case j.f.Server.Recovery:
		j.fail(name, fix.Fix{fix.Words("On the primary:"), make}, "publication %s does not exist, and a standby cannot create it", j.cfg.Publication)
	default:
		if lacks := j.rightsToPublish(); lacks != "" {
			j.fail(name, fix.Fix{fix.Words("As the owner of the tables:"), make}, "publication %s does not exist, and role %s may not create it: %s",
				j.cfg.Publication, j.f.Server.Role, lacks)
		}
		j.Met(name, "publication %s does not exist yet: it will be created", j.cfg.Publication)
	}
}

// rightsToPublish is what the role lacks to make the publication, or "".
func (j *judgement) rightsToPublish() string {
	if j.f.Server.Super {
		return ""
	}
	if !j.f.Server.CanCreate {
		return "it lacks the privilege CREATE on database " + j.f.Server.Database
	}
	for i := range j.f.Tables {
		if t := &j.f.Tables[i]; t.Exists() && !t.Owned {
			return fmt.Sprintf("%s belongs to %s", t.Table, t.Owner)
		}
	}
	return ""
}
