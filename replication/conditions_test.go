package replication

import (
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
)

// What a run cannot use needs no advice on how to use it.
func TestAForeignSlotGetsNoAdvice(t *testing.T) {
	for name, change := range map[string]func(*ipg.Facts){
		"physical":         func(f *ipg.Facts) { f.Slot.Type = "physical" },
		"another database": func(f *ipg.Facts) { f.Slot.Database = "other" },
		"a standby's copy": func(f *ipg.Facts) { f.Server.Recovery, f.Slot.Synced = true, true },
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			cfg := valid()
			cfg.Failover = true
			f := &ipg.Facts{Server: ipg.Server{Version: 170011, Database: "shop"}, Slot: &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop", WALStatus: "unreserved", Confirmed: 1}}
			change(f)
			var about []condition.Finding
			for _, found := range cfg.Conditions(f, false) {
				if strings.HasPrefix(found.Name, "slot") {
					about = append(about, found)
				}
			}
			if len(about) != 1 || about[0].Verdict != condition.Fail {
				t.Errorf("found %+v", about)
			}
		})
	}
}

// The same facts that a server of any version could show, judged without one.
func TestConditionsOfAStream(t *testing.T) {
	good := func() *ipg.Facts {
		return &ipg.Facts{
			Server: ipg.Server{Version: 150004, Database: "shop", WALLevel: "logical", SenderTimeout: "60000", MaxSlots: 10, MaxSenders: 10, KeepMB: 1024, Role: "u", Replication: true, CanCreate: true},
			Tables: []ipg.TableFacts{{Table: pgname.Table{Schema: "public", Name: "outbox"}, OID: 7, Kind: "r", Persistence: "p", Identity: "d", HasKey: true, Owned: true, Relation: &cdc.Relation{}}},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*ipg.Facts)
		level  condition.Verdict
		on     string
		detail string
		fix    string
	}{
		{"all is well", func(*ipg.Facts) {}, condition.OK, "slot", "will be created", ""},
		{"an old server", func(f *ipg.Facts) { f.Server.Version = 130010 }, condition.Fail, "version", "Postgres is version 13.10", "14"},
		{"wal_level", func(f *ipg.Facts) { f.Server.WALLevel = "replica" }, condition.Fail, "wal_level", "wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical';"},
		{"no right", func(f *ipg.Facts) { f.Server.Replication = false }, condition.Fail, "role", "role u lacks the REPLICATION attribute", `ALTER ROLE "u" REPLICATION;`},
		{"the right of RDS", func(f *ipg.Facts) { f.Server.Replication, f.Server.Managed = false, true }, condition.OK, "role", "may replicate", ""},
		{"no slot left", func(f *ipg.Facts) { f.Server.Slots = 10 }, condition.Fail, "max_replication_slots", "all 10 replication slots are in use", "max_replication_slots = 14"},
		{"no walsender left", func(f *ipg.Facts) { f.Server.Senders = 10 }, condition.Fail, "max_wal_senders", "all 10 walsenders are in use", "max_wal_senders = 14"},
		{"any standby", func(f *ipg.Facts) { f.Server.SyncStandbys = "ANY 1 (*)" }, condition.Warn, "synchronous_standby_names", "ANY 1 (*)", "Name the standbys"},
		{"an old standby", func(f *ipg.Facts) { f.Server.Recovery = true }, condition.Fail, "primary", "needs 16 or newer", "primary"},
		{"a standby without publication", func(f *ipg.Facts) { f.Server.Recovery, f.Server.Version = true, 170000 }, condition.Fail, "publication", "a standby cannot create it", "On the primary: CREATE PUBLICATION"},
		{"somebody else's table", func(f *ipg.Facts) { f.Tables[0].Owned, f.Tables[0].Owner = false, "app" }, condition.Fail, "publication", "role u may not create it: public.outbox belongs to app", "As the owner of the tables: CREATE PUBLICATION"},
		{"no right on the database", func(f *ipg.Facts) { f.Server.CanCreate = false }, condition.Fail, "publication", "lacks the privilege CREATE on database shop", "CREATE PUBLICATION"},
		{"a temporary slot", func(f *ipg.Facts) {
			f.Slot = &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop", Temporary: true, ActivePID: 9}
		}, condition.Fail, "slot", "temporary: it ends with the session of process 9", "source.slot"},
		{"a slot that the primary owns", func(f *ipg.Facts) {
			f.Server.Recovery, f.Server.Version = true, 170000
			f.Slot = &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop", Synced: true, Confirmed: 1}
		}, condition.Fail, "slot", "synchronized from the primary", "primary"},
		{"one that is not ready yet", func(f *ipg.Facts) {
			f.Server.Recovery, f.Server.Version = true, 170000
			f.Slot = &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop", Synced: true, Temporary: true, Confirmed: 1}
		}, condition.Fail, "slot", "synchronized from the primary", "primary"},
		{"one that was before the promotion", func(f *ipg.Facts) {
			f.Server.Version = 170000
			f.Slot = &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop", Synced: true, Confirmed: 1, WALStatus: "reserved"}
		}, condition.OK, "slot", "exists, confirmed up to 0/1", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			cfg, f := valid(), good()
			c.change(f)
			found := cfg.Conditions(f, true)
			for _, got := range found {
				if got.Name == c.on {
					if got.Verdict != c.level || !strings.Contains(got.Why, c.detail) || !strings.Contains(got.FixText(), c.fix) {
						t.Errorf("got %+v", got)
					}
					return
				}
			}
			t.Errorf("nothing about %s: %+v", c.on, found)
		})
	}
}

// Setup by an administrator advises for the role that walpost runs as.
func TestAMissingPublicationIsForTheRoleOfTheSetup(t *testing.T) {
	for outbox, want := range map[string]string{"": "--role=postgres ", "relay": "--role=relay "} {
		cfg := valid()
		cfg.Outbox.Role = outbox
		found := cfg.Conditions(&ipg.Facts{
			Server: ipg.Server{Version: 170000, Database: "shop", Role: "postgres"}, Slot: &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop"},
		}, false)
		if i := slices.IndexFunc(found, func(f condition.Finding) bool { return f.Name == "publication" }); i < 0 || !strings.Contains(found[i].FixText(), want) {
			t.Errorf("role %q: %+v", outbox, found)
		}
	}
}

// source.failover asks for what the server may not have. What is printed works on this server.
func TestASlotThatIsToSurviveAFailover(t *testing.T) {
	exists := &ipg.Slot{Type: "logical", Plugin: "pgoutput", Confirmed: 1}
	const failover, plain = "'pgoutput', false, false, true);", "'pgoutput');"
	for _, c := range []struct {
		version                int
		recovery               bool
		makes, exists, without string // the fix where the slot is made, exists, or is made by the user
	}{
		{160004, false, "upgrade to Postgres 17", "upgrade to Postgres 17", plain},
		{160004, true, "upgrade to Postgres 17", "upgrade to Postgres 17", plain},
		{170000, true, "Point source.dsn at the primary", "Point source.dsn at the primary", plain},
		{170000, false, "", "ALTER_REPLICATION_SLOT", failover},
	} {
		cfg := valid()
		fixOf := func(slot *ipg.Slot, makes bool) (all string) {
			j := cfg.judge(&ipg.Facts{Server: ipg.Server{Version: c.version, Recovery: c.recovery}, Slot: slot}, makes)
			j.slot()
			for i := range j.Found {
				if got := &j.Found[i]; got.Verdict != condition.OK {
					all += got.FixText()
				}
			}
			return all
		}
		if all := fixOf(nil, true) + fixOf(exists, false); all != "" {
			t.Errorf("%+v: without source.failover: %s", c, all)
		}
		cfg.Failover = true
		lost := &ipg.Slot{Type: "logical", Plugin: "pgoutput", WALStatus: "lost", Confirmed: 1} // one that is made is dropped before
		for _, slot := range []*ipg.Slot{nil, lost} {
			if got := fixOf(slot, true); !strings.Contains(got, c.makes) || c.makes == "" && got != "" {
				t.Errorf("%+v: the slot is made, was %+v: %s", c, slot, got)
			}
		}
		if got := fixOf(exists, false); !strings.Contains(got, c.exists) {
			t.Errorf("%+v: the slot exists: %s", c, got)
		}
		if got := fixOf(nil, false); !strings.HasSuffix(got, c.without) {
			t.Errorf("%+v: the slot is missing: %s", c, got)
		}
	}
}

// A run that makes no slot (source.create: false) says what makes it, and the publication.
func TestWhatARunMayNotMakeIsNamed(t *testing.T) {
	cfg := valid()
	f := &ipg.Facts{
		Server: ipg.Server{Version: 150004, Database: "shop", WALLevel: "logical", MaxSlots: 10, MaxSenders: 10, Role: "u", Replication: true},
		Tables: []ipg.TableFacts{{Table: pgname.Table{Schema: "public", Name: "outbox"}, OID: 7, Kind: "r", Persistence: "p", Identity: "d", HasKey: true, Relation: &cdc.Relation{}}},
	}
	unmet := condition.Unmet(cfg.Conditions(f, false))
	if len(unmet) != 2 || unmet[0].Why != "publication walpost does not exist" || unmet[0].FixText() != publicationSQL(&cfg) ||
		unmet[1].Why != "slot walpost does not exist" || !strings.Contains(unmet[1].FixText(), "Only for a new relay, create the slot: "+slotSQL(&cfg, false)) {
		t.Errorf("unmet: %+v", unmet)
	}
}

// Whoever else reads a publication would lose what it publishes no more.
func TestConditionsOfAPublication(t *testing.T) {
	outbox, orders := ipg.PublishedTable{Schema: "public", Name: "outbox"}, ipg.PublishedTable{Schema: "public", Name: "orders"}
	listed, filtered := outbox, outbox
	listed.Columns, filtered.Filter = []string{"id"}, "(event_type <> 'x')"
	const separate, alter, guarded = `CREATE PUBLICATION "walpost_outbox"`, "ALTER PUBLICATION", "no other relay and no subscriber reads publication walpost"
	for _, c := range []struct {
		name    string
		p       ipg.Publication
		keyless bool
		updates bool
		on, why string
		fix     []string // "!" before what it must not have
	}{
		{"another table", ipg.Publication{Insert: true, Tables: []ipg.PublishedTable{outbox, orders}}, false, false, "publication extras", "also has public.orders", []string{separate, guarded}},
		{"all tables", ipg.Publication{Insert: true, AllTables: true, Tables: []ipg.PublishedTable{outbox, orders}}, false, false, "publication extras", "also has public.orders", []string{separate, "!" + alter}},
		{"future tables", ipg.Publication{Insert: true, AllTables: true, Tables: []ipg.PublishedTable{outbox}}, false, false, "publication extras", "covers all tables", []string{separate, "!" + alter}},
		{"operations", ipg.Publication{Insert: true, Update: true, Delete: true, Tables: []ipg.PublishedTable{outbox}}, false, false, "publication operations", "also publishes update, delete", []string{guarded, alter}},
		{"operations for others", ipg.Publication{Insert: true, Delete: true, Tables: []ipg.PublishedTable{outbox, orders}}, false, false, "publication operations", "also publishes delete", []string{separate, "!" + alter}},
		{"no identity", ipg.Publication{Insert: true, Update: true, Tables: []ipg.PublishedTable{outbox}}, true, false, "replica identity", "UPDATE and DELETE statements on the table fail", []string{"primary key", guarded, alter}},
		{"no identity, with others", ipg.Publication{Insert: true, Update: true, Tables: []ipg.PublishedTable{outbox, orders}}, true, false, "replica identity", "has no replica identity", []string{"primary key", "!" + alter}},
		{"no updates", ipg.Publication{Insert: true, Tables: []ipg.PublishedTable{outbox}}, false, true, "publication updates", "publishes no updates: a changed primary key", []string{guarded, alter}},
		{"no updates and no identity", ipg.Publication{Insert: true, Tables: []ipg.PublishedTable{outbox}}, true, true, "publication updates", "publishes no updates, and public.outbox has no replica identity", []string{"primary key", "!" + alter}},
		{"a row filter", ipg.Publication{Insert: true, Tables: []ipg.PublishedTable{filtered, orders}}, false, false, "row filter of public.outbox", "for which (event_type <> 'x') is true", []string{"DROP TABLE", "ADD TABLE", "!SET TABLE"}},
		{"a column list", ipg.Publication{Insert: true, Tables: []ipg.PublishedTable{listed, orders}}, false, false, "columns of public.outbox", "does not publish column note", []string{"DROP TABLE", "ADD TABLE", "!SET TABLE"}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			cfg := valid()
			if c.updates {
				cfg.Publish = []string{"insert", "update"}
			}
			cfg.Needs = func(rel *cdc.Relation) (needs []string, _ error) { // as the router does that may do without a column
				for i := range rel.Columns {
					needs = append(needs, rel.Columns[i].Name)
				}
				return needs, nil
			}
			f := &ipg.Facts{
				Server: ipg.Server{Version: 150020, Database: "shop", WALLevel: "logical", MaxSlots: 10, MaxSenders: 10, Role: "u", Replication: true}, Publication: &c.p,
				Tables: []ipg.TableFacts{{
					Table: pgname.Table{Schema: "public", Name: "outbox"}, OID: 7, Kind: "r", Persistence: "p", Identity: "d", HasKey: !c.keyless,
					Relation: &cdc.Relation{Columns: []cdc.Column{{Name: "id"}, {Name: "note"}}},
				}},
			}
			found := cfg.Conditions(f, true)
			if unmet := condition.Unmet(found); len(unmet) > 0 {
				t.Errorf("unmet: %+v", unmet)
			}
			var about []condition.Finding
			for _, got := range found {
				if got.Name == c.on {
					about = append(about, got)
				}
			}
			if len(about) != 1 || about[0].Verdict != condition.Warn || !strings.Contains(about[0].Why, c.why) {
				t.Fatalf("%+v", found)
			}
			for _, part := range c.fix {
				if without, none := strings.CutPrefix(part, "!"); strings.Contains(about[0].FixText(), without) == none {
					t.Errorf("%q: %s", part, about[0].FixText())
				}
			}
			// A relay that has read the publication halts once it is altered.
			f.Slot = &ipg.Slot{Type: "logical", Plugin: "pgoutput", Database: "shop", WALStatus: "reserved", Confirmed: 1}
			for _, got := range cfg.Conditions(f, false) {
				if got.Verdict != condition.OK && strings.Contains(got.FixText(), alter) {
					t.Errorf("with a slot: %s", got.FixText())
				}
				if got.Name == "row filter of public.outbox" && !strings.Contains(got.FixText(), "with any row filter of publication walpost that is still needed: CREATE PUBLICATION") {
					t.Errorf("a row filter: %s", got.FixText())
				}
			}
		})
	}
}

// A table can get the column of the placement headers later. A publication must not leave it out.
func TestTheColumnOfThePlacementHeaders(t *testing.T) {
	all := []cdc.Column{{Name: "id"}, {Name: "headers"}}
	for _, c := range []struct {
		name      string
		has       []cdc.Column
		published []string
		want      condition.Verdict
		why, fix  string
	}{
		{"there", all, nil, condition.OK, "public.outbox has id, headers", ""},
		{"absent", all[:1], nil, condition.Warn, "table public.outbox has no column headers", `ALTER TABLE "public"."outbox" ADD COLUMN "headers" jsonb;`},
		{"absent from the publication", all, []string{"id"}, condition.Fail, "has a column list for public.outbox that lacks headers", "ADD TABLE"},
	} {
		cfg := valid()
		cfg.Needs = func(*cdc.Relation) ([]string, error) { return []string{"id", "headers"}, nil } // as the router does
		outbox := pgname.Table{Schema: "public", Name: "outbox"}
		found := cfg.Conditions(&ipg.Facts{
			Server:      ipg.Server{Version: 150020, Database: "shop", WALLevel: "logical", MaxSlots: 10, MaxSenders: 10, Role: "u", Replication: true},
			Publication: &ipg.Publication{Insert: true, Tables: []ipg.PublishedTable{{Schema: "public", Name: "outbox", Columns: c.published}}},
			Tables:      []ipg.TableFacts{{Table: outbox, OID: 7, Kind: "r", Persistence: "p", Identity: "d", HasKey: true, Relation: &cdc.Relation{Columns: c.has}}},
		}, true)
		found = slices.DeleteFunc(found, func(f condition.Finding) bool { return f.Name != "columns of public.outbox" })
		if len(found) != 1 || found[0].Verdict != c.want || !strings.Contains(found[0].Why, c.why) || !strings.Contains(found[0].FixText(), c.fix) {
			t.Errorf("%s: %+v", c.name, found)
		}
	}
}
