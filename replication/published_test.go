package replication

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

// changedBy are what may happen to a publication, and what the next look says of it: "" where nothing is missing.
var changedBy = []struct {
	name string
	min  int
	pub  string // the publication at first; "" is the one that walpost makes
	sql  []string
	want string
}{
	{name: "frozen", sql: []string{"VACUUM FREEZE pg_publication", "VACUUM FREEZE pg_publication_rel", "VACUUM FREEZE pg_class"}},
	{name: "written anew by VACUUM FULL", sql: []string{"VACUUM FULL pg_publication", "VACUUM FULL pg_publication_rel", "VACUUM FULL pg_class"}},
	{name: "written anew after it was frozen", sql: []string{"VACUUM FREEZE pg_publication_rel", "VACUUM (FULL, FREEZE) pg_publication_rel", "VACUUM (FULL, FREEZE) pg_publication"}},
	{name: "another table", sql: []string{"CREATE TABLE orders (id int)", "ALTER PUBLICATION walpost ADD TABLE orders", "ALTER PUBLICATION walpost DROP TABLE orders"}},
	{name: "the same list of tables", sql: []string{"ALTER PUBLICATION walpost SET TABLE outbox"}},
	{name: "the table is altered", sql: []string{"ALTER TABLE outbox ADD x int", "CREATE INDEX ON outbox (x)", "ALTER TABLE outbox OWNER TO CURRENT_USER", "TRUNCATE outbox", "VACUUM FULL outbox", "ANALYZE outbox"}},
	{name: "a row filter", min: 15, sql: []string{"ALTER PUBLICATION walpost SET TABLE outbox WHERE (event_type <> 'x')"}, want: "was removed from"},
	{name: "another row filter", min: 15, pub: "FOR TABLE outbox WHERE (event_type <> 'x')", sql: []string{"ALTER PUBLICATION walpost SET TABLE outbox WHERE (event_type <> 'y')"}, want: "was removed from"},
	{name: "the same row filter", min: 15, pub: "FOR TABLE outbox WHERE (event_type <> 'x')", sql: []string{"ALTER PUBLICATION walpost SET TABLE outbox WHERE (event_type <> 'x')"}},
	{name: "a row filter that goes again", min: 15, sql: []string{"ALTER PUBLICATION walpost SET TABLE outbox WHERE (event_type <> 'x')", "ALTER PUBLICATION walpost SET TABLE outbox"}, want: "was removed from"},

	{name: "set to what it is", sql: []string{"ALTER PUBLICATION walpost SET (publish = 'insert')"}, want: `publication "walpost" was altered`},
	{name: "updates only for a moment", sql: []string{"ALTER PUBLICATION walpost SET (publish = 'update')", "ALTER PUBLICATION walpost SET (publish = 'insert')"}, want: `publication "walpost" was altered`},
	{name: "its owner", sql: []string{"ALTER PUBLICATION walpost OWNER TO postgres", "ALTER PUBLICATION walpost OWNER TO pg_database_owner", "ALTER PUBLICATION walpost OWNER TO CURRENT_USER"}, want: `publication "walpost" was altered`},
	{name: "its name", sql: []string{"ALTER PUBLICATION walpost RENAME TO w", "ALTER PUBLICATION w RENAME TO walpost"}, want: `publication "walpost" was altered`},
	{name: "the table out and in", sql: []string{"ALTER PUBLICATION walpost DROP TABLE outbox", "ALTER PUBLICATION walpost ADD TABLE outbox"}, want: `table public.outbox was removed from publication "walpost" and added again`},
	{name: "the table made again", sql: []string{"DROP TABLE outbox", outboxTable, "ALTER PUBLICATION walpost ADD TABLE outbox"}, want: `table public.outbox in publication "walpost" was dropped and created again`},
	{name: "the publication created again", sql: []string{"DROP PUBLICATION walpost", publicationForOutbox}, want: `publication "walpost" was dropped and created again`},
	{name: "the table out, and its schema in", min: 15, sql: []string{"ALTER PUBLICATION walpost DROP TABLE outbox", "ALTER PUBLICATION walpost ADD TABLES IN SCHEMA public"}, want: "was removed from"},
	{name: "its schema in, and then the table out", min: 15, sql: []string{"ALTER PUBLICATION walpost ADD TABLES IN SCHEMA public"}},

	{name: "the schema out and in", min: 15, pub: "FOR TABLES IN SCHEMA public", sql: []string{"ALTER PUBLICATION walpost DROP TABLES IN SCHEMA public", "ALTER PUBLICATION walpost ADD TABLES IN SCHEMA public"}, want: "was removed from"},
	{name: "another schema", min: 15, pub: "FOR TABLES IN SCHEMA public", sql: []string{"CREATE SCHEMA s", "ALTER PUBLICATION walpost ADD TABLES IN SCHEMA s", "ALTER PUBLICATION walpost DROP TABLES IN SCHEMA s"}},
	{name: "a table of the schema made again", min: 15, pub: "FOR TABLES IN SCHEMA public", sql: []string{"DROP TABLE outbox", outboxTable}, want: "was dropped and created again"},
	{name: "the schema's entry frozen", min: 15, pub: "FOR TABLES IN SCHEMA public", sql: []string{"VACUUM FREEZE pg_publication_namespace", "VACUUM FULL pg_publication_namespace"}},

	{name: "all tables, frozen", pub: "FOR ALL TABLES", sql: []string{"VACUUM FREEZE pg_publication", "CREATE TABLE orders (id int)", "DROP TABLE orders"}},
	{name: "all tables, updates only for a moment", pub: "FOR ALL TABLES", sql: []string{"ALTER PUBLICATION walpost SET (publish = 'update')", "ALTER PUBLICATION walpost SET (publish = 'insert')"}, want: `publication "walpost" was altered`},
	{name: "all tables, made again", pub: "FOR ALL TABLES", sql: []string{"DROP PUBLICATION walpost", "CREATE PUBLICATION walpost FOR ALL TABLES WITH (publish = 'insert')"}, want: "was dropped and created again"},
	{name: "all tables, one made again", pub: "FOR ALL TABLES", sql: []string{"DROP TABLE outbox", outboxTable}, want: "was dropped and created again"},
}

// Both a look beside the stream and a start see each change, and nothing else.
func TestAChangedPublicationIsSeen(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		for _, c := range changedBy {
			if pg.Version() < c.min {
				continue
			}
			t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				w := newWorld(t, pg, outboxTable)
				if c.pub != "" {
					w.exec("CREATE PUBLICATION walpost " + c.pub + " WITH (publish = 'insert')")
				}
				s := w.source()
				before := w.mustOpen(s, true).Identity()
				rec := &checkpoint.Record{Name: "shop", Epoch: 1, Published: checkpoint.Seen(before)}
				judge := func() {
					t.Helper()
					looked, err := s.Check(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					opened, err := w.open(s, false, false)
					if err != nil {
						t.Fatal(err)
					}
					look, start := checkpoint.JudgePublished(rec, looked), checkpoint.JudgePublished(rec, opened.Identity())
					if (look == nil) != (c.want == "") || look != nil && !strings.Contains(look.Error(), c.want) {
						t.Errorf("a look says %v, want %q\nwas %+v\nis  %+v", look, c.want, rec.Published, looked.Published)
					}
					if (start == nil) != (look == nil) || start != nil && start.Error() != look.Error() {
						t.Errorf("a start says %v, and a look %v", start, look)
					}
					if looked.Server < rec.Published.LSN || looked.Time.Before(rec.Published.Time) || looked.Started != before.Started {
						t.Errorf("looked at %s, %s of %q; before at %s, %s of %q", looked.Server, looked.Time, looked.Started, rec.Published.LSN, rec.Published.Time, before.Started)
					}
				}
				w.exec(c.sql...)
				judge()
				if c.name == "its schema in, and then the table out" {
					// The table's own entry is gone, but its schema's was there before: seen by a look in between.
					looked, err := s.Check(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					rec.Published = checkpoint.Seen(looked)
					w.exec("ALTER PUBLICATION walpost DROP TABLE outbox")
					judge()
				}
			})
		}
	})
}

// The fix for a column list or a row filter publishes the table whole. Another table of the publication
// keeps its own, and another reader of the publication loses no event of it.
func TestATableThatIsPublishedWholeLeavesTheOthersAsTheyAre(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		list := ""
		if pg.Version() >= 15 {
			list = " (id) WHERE (id <> '00000000-0000-0000-0000-000000000000')"
		}
		w := newWorld(t, pg, outboxTable, "CREATE TABLE orders (id uuid PRIMARY KEY, note text)",
			"CREATE PUBLICATION walpost FOR TABLE outbox"+list+", orders"+list+" WITH (publish = 'insert')",
			"SELECT pg_create_logical_replication_slot(current_database() || '_other', 'pgoutput')")
		look := func() *ipg.Publication {
			f := w.facts(&w.cfg)
			unmet := condition.Unmet(w.cfg.Conditions(f, true))
			if hasList := f.Publication.Filter(f.Tables[0].Table) != ""; (len(unmet) > 0) != hasList || hasList && unmet[0].Fix.Text("") != w.cfg.republishSQL(f.Tables[0].Table) {
				t.Errorf("unmet: %v", unmet)
			}
			return f.Publication
		}
		orders, before := pgname.Table{Schema: "public", Name: "orders"}, look()
		const insert = "INSERT INTO orders SELECT gen_random_uuid()"
		w.exec(insert, w.cfg.republishSQL(pgname.Table{Schema: "public", Name: "outbox"}), insert)
		after := look()
		if !reflect.DeepEqual(after.Table(orders), before.Table(orders)) || after.Filter(orders) != before.Filter(orders) {
			t.Errorf("orders is %+v %q, was %+v %q", after.Table(orders), after.Filter(orders), before.Table(orders), before.Filter(orders))
		}
		if n := w.value("SELECT count(*) FROM pg_logical_slot_get_binary_changes(current_database() || '_other', NULL, NULL, 'proto_version', '1', 'publication_names', 'walpost') WHERE substr(data, 1, 1) = 'I'"); n != "2" {
			t.Errorf("another reader gets %s of 2 events", n)
		}
	})
}

// A partition is in the publication by the table that it is a partition of.
func TestAPartitionIsPublishedByItsParent(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), strings.Replace(outboxTable, "id uuid PRIMARY KEY", "id uuid", 1)+" PARTITION BY LIST (aggregate_type)",
		"CREATE TABLE part PARTITION OF outbox DEFAULT", "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')")
	w.cfg.Tables = []string{"public.part"}
	s := w.source()
	id := w.mustOpen(s, true).Identity()
	if tables := id.Published.Tables; len(tables) != 1 || len(tables[0].Entries) != 1 {
		t.Fatalf("published: %+v", id.Published)
	}
	rec := &checkpoint.Record{Name: "shop", Epoch: 1, Published: checkpoint.Seen(id)}
	w.exec("ALTER PUBLICATION walpost DROP TABLE outbox", "ALTER PUBLICATION walpost ADD TABLE outbox")
	found, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.JudgePublished(rec, found); err == nil {
		t.Errorf("not seen: %+v", found.Published)
	}
}

// A standby has the rows of its primary, with the same OIDs and xmins: a failover is no change.
func TestAStandbyPublishesTheSame(t *testing.T) {
	for _, v := range []string{"16", "18"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, v, testenv.Private())
			w := newWorld(t, pg, outboxTable)
			s := w.source()
			before := w.mustOpen(s, true).Identity()
			rec := &checkpoint.Record{Name: "shop", Epoch: 1, Published: checkpoint.Seen(before)}
			sb := pg.Standby(t)
			sb.CatchUp(t, pg)
			sb.Promote(t)
			s.cfg.DSN = conf.Secret(sb.DSN(w.value("SELECT current_database()")))
			f := w.facts(&s.cfg)
			found := identityOf(ipg.System{ID: f.Server.SystemID}, &s.cfg, f)
			if err := checkpoint.JudgePublished(rec, found); err != nil || found.Published.OID == 0 || found.Started == before.Started {
				t.Errorf("%v, found %+v", err, found)
			}
		})
	}
}

// What is printed about a publication under a slot is no change for a relay that has read the slot: neither at a look, nor at a start
// with the new publication. Only a start that comes too early refuses.
func TestTheSeparatePublicationIsNoGap(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable, "CREATE PUBLICATION walpost FOR TABLE outbox")
		s := w.source()
		rec := &checkpoint.Record{Name: "shop", Epoch: 1, Published: checkpoint.Seen(w.mustOpen(s, true).Identity())}
		found := w.cfg.Conditions(w.facts(&w.cfg), false)
		i := slices.IndexFunc(found, func(f condition.Finding) bool { return f.Name == "publication operations" })
		if i < 0 {
			t.Fatalf("found %+v", found)
		}
		w.exec(string(found[i].Fix[1].(fix.SQL)))
		looked, err := s.Check(t.Context())
		if err == nil {
			err = checkpoint.JudgePublished(rec, looked)
		}
		if err != nil {
			t.Errorf("a look: %v", err)
		}
		w.cfg.Publication = "walpost_outbox"
		start := func() error { return checkpoint.JudgePublished(rec, w.mustOpen(w.source(), false).Identity()) }
		if err := start(); err == nil {
			t.Error("an early start is not refused")
		}
		w.exec("CHECKPOINT", fmt.Sprintf("SELECT pg_replication_slot_advance('%s', pg_current_wal_lsn())", w.cfg.Slot))
		if err := start(); err != nil {
			t.Errorf("a start: %v", err)
		}
	})
}
