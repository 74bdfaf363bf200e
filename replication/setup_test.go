package replication

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// made is what the catalog has of a setup, by its names.
func (w *world) made() string {
	w.Helper()
	return w.value(`SELECT concat_ws(', ', (SELECT string_agg('table ' || relname, ', ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'),
 (SELECT string_agg('publication ' || pubname, ', ') FROM pg_publication), (SELECT 'slot' FROM pg_replication_slots WHERE slot_name = current_database()))`)
}

// needsRealColumns needs the columns by their names, as the router does.
func needsRealColumns(columns ...string) func(*cdc.Relation) ([]string, error) {
	return func(rel *cdc.Relation) ([]string, error) {
		for _, c := range columns {
			if rel.Index(c) < 0 {
				return nil, errors.New("there is no column " + c)
			}
		}
		return columns, nil
	}
}

// A setup makes everything that is missing or nothing, in each state of a database.
func TestSetupInEachStateOfADatabase(t *testing.T) {
	const table, publication = "table outbox", "table outbox, publication walpost"
	slot := "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')"
	unfit := "CREATE TABLE outbox (id int PRIMARY KEY, body text)"
	for _, c := range []struct {
		name string
		sql  []string
		set  func(w *world)
		made string // what the catalog has afterwards
		says string // of Apply, if it makes something
		err  string // behaviour and text
		hint string
		sqls string // what the printed SQL must contain, or must not with a leading !
	}{
		{name: "no table", made: publication, says: "table public.outbox (set source.order_column: seq), publication walpost", sqls: "seq            bigint      GENERATED ALWAYS AS IDENTITY"},
		{name: "no table, and a column that orders", set: func(w *world) { w.cfg.OrderColumn = "Position" }, made: publication, says: "table public.outbox, publication walpost", sqls: `"Position"     bigint      GENERATED`},
		{name: "no table, and ids that order", set: func(w *world) { w.cfg.OrderColumn = "id" }, made: publication, says: "table public.outbox, publication walpost", sqls: "!uuid"},
		{
			name: "no table, and other columns than it would have", set: func(w *world) { w.cfg.Needs = needsRealColumns("id", "customer") },
			err: "config there is no column customer", hint: "Create the table yourself", sqls: "!PUBLICATION",
		},
		{name: "a table of another case", sql: []string{`CREATE TABLE "Outbox" (id int)`}, made: "table Outbox", err: `fail table public.outbox does not exist, but public."Outbox" does`, hint: "source.table", sqls: "!CREATE"},
		{name: "a table that fits", sql: []string{outboxTable}, made: publication, says: "publication walpost"},
		{name: "a table that fits, and rows", sql: []string{outboxTable, insertRow}, made: publication, says: "publication walpost"},
		{name: "a table that does not fit", sql: []string{unfit}, made: table, err: "config there is no column aggregate_id", sqls: "!PUBLICATION"},
		{name: "a table that does not fit, and a slot is wanted", sql: []string{unfit}, set: func(w *world) { w.cfg.Outbox.Slot = true }, made: table, err: "config there is no column aggregate_id", sqls: "!slot"},
		{name: "a view", sql: []string{"CREATE VIEW outbox AS SELECT 1 AS id"}, made: "", err: "fail is a view", sqls: "!PUBLICATION"},
		{name: "a publication", sql: []string{outboxTable, publicationForOutbox}, made: publication},
		{name: "a publication without the table", sql: []string{outboxTable, "CREATE PUBLICATION walpost"}, made: publication, err: "fail publication walpost does not contain table public.outbox", hint: "ADD TABLE", sqls: "!CREATE"},
		{name: "a publication without the table, which is missing", sql: []string{"CREATE PUBLICATION walpost WITH (publish = 'insert')"}, made: publication, says: "table public.outbox in publication walpost", sqls: "ALTER PUBLICATION \"walpost\" ADD TABLE"},
		{
			name: "a publication of another table, and no table", sql: []string{"CREATE TABLE other (id int)", "CREATE PUBLICATION walpost FOR TABLE other WITH (publish = 'insert')"}, made: "table other, publication walpost",
			err: "fail publication walpost exists, and has other tables than public.outbox", hint: "set source.slot and source.publication", sqls: "!ADD TABLE",
		},
		{name: "a publication of all tables, and no table", sql: []string{"CREATE PUBLICATION walpost FOR ALL TABLES"}, made: publication, says: "table public.outbox", sqls: "!ADD TABLE"},
		{name: "a publication of the schema, and no table", sql: []string{"CREATE PUBLICATION walpost FOR TABLES IN SCHEMA public"}, made: publication, says: "table public.outbox in publication walpost"},
		{name: "a publication without inserts, and no table", sql: []string{"CREATE PUBLICATION walpost WITH (publish = 'update')"}, made: "publication walpost", err: "fail does not publish inserts", sqls: "!ADD TABLE"},
		{name: "another program's slot", sql: []string{outboxTable, strings.Replace(slot, "pgoutput", "test_decoding", 1)}, made: table + ", slot", err: "fail uses the plugin test_decoding", hint: "Set source.slot to another name", sqls: "!CREATE"},
		{name: "a slot", sql: []string{outboxTable, publicationForOutbox, slot}, made: publication + ", slot"},
		{name: "a slot without its publication", sql: []string{outboxTable, slot}, made: table + ", slot", err: "person publication walpost does not exist, but slot", hint: "walpost recover", sqls: "!CREATE"},
		{name: "a slot is wanted", set: func(w *world) { w.cfg.Outbox.Slot = true }, made: publication + ", slot", says: "slot ", sqls: "pg_create_logical_replication_slot"},
		{name: "a slot is wanted, and rows", sql: []string{outboxTable, insertRow}, set: func(w *world) { w.cfg.Outbox.Slot = true }, made: table, err: "config source.snapshot"},
		{name: "a slot is wanted, and a snapshot", sql: []string{outboxTable}, set: func(w *world) { w.cfg.Outbox.Slot, w.cfg.Snapshot = true, "initial" }, made: table, err: "config the first run creates the slot", sqls: "!slot"},
		{name: "updates without an identity", sql: []string{strings.Replace(outboxTable, "PRIMARY KEY", "", 1)}, set: func(w *world) { w.cfg.Publish = []string{"insert", "update"} }, made: publication, says: "publication walpost", sqls: "has no primary key:\n-- if updates were published"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testenv.Postgres(t, ""), c.sql...)
			w.cfg.Needs = needsRealColumns("id", "aggregate_id", "payload")
			if c.set != nil {
				c.set(w)
			}
			opts, err := w.source().Missing(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			sql := SetupSQL(w.cfg, opts)
			if want, not := strings.CutPrefix(c.sqls, "!"); strings.Contains(sql, want) == not && want != "" {
				t.Errorf("printed, and wanted %q:\n%s", c.sqls, sql)
			}
			if code, _, _ := strings.Cut(c.err, " "); c.err != "" && !strings.Contains(c.err, "source.snapshot") && (opts.Err() == nil || behaviourOf(opts.Err()) != code) {
				t.Errorf("printed beside the error %v, want %s", opts.Err(), c.err)
			}
			said, err := w.source().Apply(t.Context())
			code, text, _ := strings.Cut(c.err, " ")
			switch {
			case c.err == "" && err != nil:
				t.Errorf("%v (%s)", err, fault.Hint(err))
			case c.err != "" && (err == nil || behaviourOf(err) != code || !strings.Contains(err.Error(), text) || !strings.Contains(fault.Hint(err), c.hint)):
				t.Errorf("%s %v (%s), want %s (%s)", behaviourOf(err), err, fault.Hint(err), c.err, c.hint)
			}
			if got := strings.Join(said, ", "); !strings.Contains(got, c.says) || c.says == "" && got != "" {
				t.Errorf("said %q, want %q", got, c.says)
			}
			if got := w.made(); got != c.made {
				t.Errorf("the database has %q, want %q", got, c.made)
			}
			if c.err != "" {
				return
			}
			if opts, err = w.source().Missing(t.Context()); err != nil || !opts.Empty() || opts.SlotByRun == strings.HasSuffix(c.made, "slot") {
				t.Errorf("afterwards %+v %v", opts, err)
			}
			if said, err = w.source().Apply(t.Context()); err != nil || len(said) > 0 {
				t.Errorf("again: %v %v", said, err)
			}
		})
	}
}

func TestSetupMakesNothingIfTheWALIsNotLogical(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "", testenv.Param("wal_level", "replica")))
	w.cfg.Outbox.Slot = true
	said, err := w.source().Apply(t.Context())
	if len(said) > 0 || behaviourOf(err) != "fail" || !strings.Contains(err.Error(), "wal_level is replica") || !strings.Contains(fault.Hint(err), "ALTER SYSTEM SET wal_level = 'logical'; then restart") {
		t.Errorf("said %v, %v (%s)", said, err, fault.Hint(err))
	}
	if got := w.made(); got != "" {
		t.Errorf("made %s", got)
	}
	// The SQL for the rest is printed beside the error.
	if opts, err := w.source().Missing(t.Context()); err != nil || opts.Err() == nil || !strings.Contains(SetupSQL(w.cfg, opts), "CREATE TABLE") {
		t.Errorf("%+v %v", opts, err)
	}
}

func TestSetupDoesNotTouchTheSlotOfAnotherDatabase(t *testing.T) {
	pg := testenv.Postgres(t, "")
	other, w := newWorld(t, pg), newWorld(t, pg, outboxTable)
	w.cfg.Slot = other.cfg.Slot
	other.exec("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
	_, err := w.source().Apply(t.Context())
	if behaviourOf(err) != "fail" || !strings.Contains(err.Error(), "belongs to the database "+other.cfg.Slot) || strings.Contains(fault.Hint(err), "recover") {
		t.Errorf("%s %v (%s)", behaviourOf(err), err, fault.Hint(err))
	}
	w.exec("CREATE PUBLICATION walpost")
	if _, err = w.source().Apply(t.Context()); behaviourOf(err) != "fail" || !strings.Contains(fault.Hint(err), "ADD TABLE") || strings.Contains(fault.Hint(err), "recover") {
		t.Errorf("with a publication: %s %v (%s)", behaviourOf(err), err, fault.Hint(err))
	}
}

// An administrator sets walpost up for a role that cannot do it.
func TestSetupForAnotherRole(t *testing.T) {
	for _, c := range []struct {
		name string
		role string // SQL that makes it
		set  func(w *world)
		says string
	}{
		{"no role", "", nil, "table public.outbox (set source.order_column: seq), role {role} without a password, membership of role {role} in pg_monitor, the privilege to read public.outbox, publication walpost"},
		{"a role without rights", "CREATE ROLE {role} NOLOGIN", nil, "table public.outbox (set source.order_column: seq), the REPLICATION attribute of role {role}, membership of role {role} in pg_monitor, the privilege to read public.outbox, publication walpost"},
		{"a role that may replicate", "CREATE ROLE {role} LOGIN REPLICATION", nil, "table public.outbox (set source.order_column: seq), membership of role {role} in pg_monitor, the privilege to read public.outbox, publication walpost"},
		{
			"a role that may read the table, but not use its schema",
			"CREATE ROLE {role} LOGIN REPLICATION; REVOKE ALL ON SCHEMA public FROM public; " + outboxTable + "; GRANT SELECT ON outbox TO {role}",
			nil, "membership of role {role} in pg_monitor, the privilege to read public.outbox, publication walpost",
		},
		{
			"a role that removes rows", "CREATE ROLE {role} LOGIN REPLICATION", func(w *world) { w.cfg.Outbox.Deletes = true },
			"table public.outbox (set source.order_column: seq), membership of role {role} in pg_monitor, the privilege to read public.outbox, the privilege to delete from public.outbox, an index on public.outbox, publication walpost",
		},
		{
			"a role that drops partitions", "CREATE ROLE {role} LOGIN REPLICATION", func(w *world) { w.cfg.Outbox.Owns, w.cfg.Outbox.Partitioned = true, true },
			"table public.outbox (set source.order_column: seq), partitions of public.outbox, membership of role {role} in pg_monitor, the privilege to read public.outbox, role {role} the owner of public.outbox, publication walpost",
		},
		{
			"a role that archives rows", "CREATE ROLE {role} LOGIN REPLICATION", func(w *world) {
				w.cfg.Outbox.Deletes, w.cfg.Outbox.Archives, w.cfg.Outbox.ArchiveTable = true, true, `"Old"`
			},
			`table public.outbox (set source.order_column: seq), membership of role {role} in pg_monitor, the privilege to read public.outbox, archive table public."Old", the privilege to delete from public.outbox, an index on public.outbox, publication walpost`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testenv.Postgres(t, ""))
			role := "role_" + w.cfg.Slot
			fill := func(s string) string { return strings.ReplaceAll(s, "{role}", role) }
			if c.role != "" {
				w.exec(fill(c.role))
			}
			t.Cleanup(func() { w.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
			w.cfg.Outbox.Role = role
			if c.set != nil {
				c.set(w)
			}
			said, err := w.source().Apply(t.Context())
			if got := strings.Join(said, ", "); err != nil || got != fill(c.says) {
				t.Fatalf("%v (%s): said\n%q, want\n%q", err, fault.Hint(err), got, fill(c.says))
			}
			if said, err = w.source().Apply(t.Context()); err != nil || len(said) > 0 {
				t.Errorf("again: %v %v", said, err)
			}
			w.cfg.Outbox.Role, w.cfg.DSN = "", conf.Secret(strings.Replace(w.dsn, "postgres@", role+"@", 1))
			if opts, err := w.source().Missing(t.Context()); err != nil || !opts.Empty() {
				t.Errorf("%+v %v is missing for the role itself", opts, err)
			}
			if !w.mustOpen(w.source(), true).Identity().SlotFound.Created {
				t.Error("the role cannot make the slot")
			}
		})
	}
}

// An administrator with CREATEROLE may lack REPLICATION or pg_monitor. Then nothing is made, and a superuser runs what setup prints.
func TestSetupByAnAdministratorWhoIsNoSuperuserSaysWhoCanDoIt(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg)
		role, admin := "role_"+w.cfg.Slot, "admin_"+w.cfg.Slot
		w.exec("CREATE ROLE "+admin+" LOGIN CREATEROLE REPLICATION", "GRANT CREATE ON SCHEMA public TO "+admin, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", w.cfg.Slot, admin))
		t.Cleanup(func() { w.exec("DROP OWNED BY "+role+", "+admin, "DROP ROLE "+role, "DROP ROLE "+admin) })
		w.cfg.DSN, w.cfg.Outbox.Role = conf.Secret(strings.Replace(w.dsn, "postgres@", admin+"@", 1)), role
		said, err := w.source().Apply(t.Context())
		if len(said) > 0 || err == nil || w.made() != "" || !strings.HasSuffix(fault.Hint(err), "Ask a superuser to run the SQL that setup prints without --apply.") {
			t.Errorf("said %v, %v (%s), made %q", said, err, fault.Hint(err), w.made())
		}
		opts, err := w.source().Missing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.exec(SetupSQL(w.cfg, opts))
		if _, err = w.source().Apply(t.Context()); err == nil || !strings.Contains(fault.Hint(err), "GRANT \""+role+"\" TO \""+admin+"\";") {
			t.Errorf("%v (%s)", err, fault.Hint(err))
		}
		w.exec("GRANT " + role + " TO " + admin)
		if said, err = w.source().Apply(t.Context()); err != nil || len(said) > 0 {
			t.Errorf("again: %v %v", said, err)
		}
		w.exec("REVOKE pg_monitor FROM " + role) // walpost does without it: it is printed, and no setup fails
		if said, err = w.source().Apply(t.Context()); err != nil || len(said) > 0 {
			t.Errorf("without pg_monitor: %v %v", said, err)
		}
		if opts, err = w.source().Missing(t.Context()); err != nil || !strings.Contains(SetupSQL(w.cfg, opts), "GRANT pg_monitor TO") {
			t.Errorf("without pg_monitor: %+v %v", opts, err)
		}
		w.cfg.Outbox.Role, w.cfg.DSN = "", conf.Secret(strings.Replace(w.dsn, "postgres@", role+"@", 1))
		if !w.mustOpen(w.source(), true).Identity().SlotFound.Created {
			t.Error("the role cannot make the slot")
		}
	})
}

func TestSetupOfAPartitionedTableNeedsAPublicationByItsRoot(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, "CREATE PUBLICATION walpost WITH (publish = 'insert')")
		w.cfg.Outbox.Partitioned = true
		const fix = `ALTER PUBLICATION "walpost" SET (publish_via_partition_root = true);`
		said, err := w.source().Apply(t.Context())
		if len(said) > 0 || behaviourOf(err) != "fail" || !strings.HasSuffix(fault.Hint(err), fix) || w.value("SELECT to_regclass('outbox') IS NULL") != "true" {
			t.Errorf("said %v, %v (%s)", said, err, fault.Hint(err))
		}
		w.exec(fix)
		if said, err = w.source().Apply(t.Context()); err != nil || len(said) != 3 {
			t.Errorf("said %v, %v (%s)", said, err, fault.Hint(err))
		}
		if got := w.value("SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables WHERE pubname = 'walpost'"); got != "outbox" {
			t.Errorf("published: %s", got)
		}
		if said, err = w.source().Apply(t.Context()); err != nil || len(said) > 0 {
			t.Errorf("again: %v %v", said, err)
		}
	})
}

// Postgres cuts a name that is too long, and would cut the day.
func TestThePartitionsOfALongNameAreMade(t *testing.T) {
	for name, table := range map[string]string{"bytes": strings.Repeat("o", 60), "letters": strings.Repeat("ж", 27)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testenv.Postgres(t, ""))
			w.cfg.Table, w.cfg.Tables, w.cfg.Outbox.Partitioned = "", []string{`public."` + table + `"`}, true
			if _, err := w.source().Apply(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := w.value(`SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relkind = 'r' AND c.relname ~ '_p[0-9]{8}$'`); got != "4" {
				t.Errorf("%s partitions have the name of their day, must be 4", got)
			}
		})
	}
}

func TestSetupByARoleThatMayNotMakesNothing(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""))
	role := "role_" + w.cfg.Slot
	w.exec("CREATE ROLE "+role+" LOGIN", "GRANT CREATE ON SCHEMA public TO "+role, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", w.cfg.Slot, role))
	t.Cleanup(func() { w.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
	w.cfg.DSN = conf.Secret(strings.Replace(w.dsn, "postgres@", role+"@", 1))
	said, err := w.source().Apply(t.Context())
	want := []string{"ALTER ROLE \"" + role + "\" LOGIN REPLICATION;", "run setup as an administrator: walpost setup --role=" + role + ` --apply --dsn "<DSN of an administrator>"`}
	if len(said) > 0 || err == nil || !strings.Contains(err.Error(), "nothing was changed") || slices.ContainsFunc(want, func(s string) bool { return !strings.Contains(fault.Hint(err), s) }) {
		t.Errorf("said %v, %v (%s)", said, err, fault.Hint(err))
	}
	if got := w.made(); got != "" {
		t.Errorf("made %s", got)
	}
}
