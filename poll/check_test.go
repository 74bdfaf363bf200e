package poll

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

// What may keep walpost from writing to a row, or make the order of rows unclear, is known before the first row.
func TestThePolledTableIsExamined(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t, "17")
	column := func(name string) func(*cdc.Relation) string { return func(*cdc.Relation) string { return name } }
	guard := func(event string) string {
		return "CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER guard BEFORE " + event + " ON outbox FOR EACH ROW EXECUTE FUNCTION guard()"
	}
	const order = "ALTER TABLE outbox DROP COLUMN seq; ALTER TABLE outbox ADD COLUMN seq bigint NOT NULL DEFAULT 0"
	for name, c := range map[string]struct{ strategy, sql, want string }{
		"nothing":                            {Delete, "SELECT 1", ""},
		"a trigger before updates":           {Claim, guard("UPDATE"), "trigger guard of table public.outbox"},
		"a trigger for another column":       {Claim, guard("UPDATE OF payload"), ""},
		"a trigger before deletes":           {Delete, guard("DELETE"), "trigger guard of table public.outbox"},
		"a trigger before deletes and claim": {Claim, guard("DELETE"), ""},
		"a trigger before inserts":           {Delete, guard("INSERT"), ""},
		"a rule":                             {Delete, "CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING", "rule keep of table public.outbox"},
		"an order without an index":          {Claim, order, "the order of such rows is not defined"},
		"a unique order":                     {Claim, order + "; CREATE UNIQUE INDEX ON outbox (seq)", ""},
		"a trigger beside the cursor":        {Cursor, guard("UPDATE"), ""},
	} {
		dsn := server.Database(t)
		set := Settings{Config: DefaultConfig(), Name: "relay", DB: pg.Database{DSN: dsn}, Table: pgname.Table{Schema: "public", Name: "outbox"}, OrderColumn: "seq", TimeColumn: "at", ID: column("id"), Key: column("key")}
		set.Strategy, set.XIDColumn = c.strategy, "xid"
		server.Exec(t, dsn, "CREATE TABLE outbox (id text, key text, payload text, at timestamptz, seq bigint GENERATED ALWAYS AS IDENTITY)", c.sql)
		server.Exec(t, dsn, set.SetupSQL(nil))
		var warnings string
		for _, f := range set.Check(t.Context(), nil) {
			if f.Verdict != condition.OK {
				warnings += f.Why + "\n"
			}
		}
		if c.want == "" && warnings != "" || !strings.Contains(warnings, c.want) {
			t.Errorf("%s: %q, must have %q", name, warnings, c.want)
		}
	}
}

// Only an index on the transaction and then the order gives the rows of a large transaction in their order.
func TestTheIndexOfTransactionsIsDemanded(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t, "14")
	dsn := server.Database(t)
	column := func(name string) func(*cdc.Relation) string { return func(*cdc.Relation) string { return name } }
	set := Settings{Config: DefaultConfig(), Name: "relay", DB: pg.Database{DSN: dsn}, Table: pgname.Table{Schema: "public", Name: "outbox"}, OrderColumn: "seq", TimeColumn: "at", ID: column("id"), Key: column("key")}
	set.XIDColumn = "xid"
	server.Exec(t, dsn, "CREATE TABLE outbox (id text, key text, payload text, at timestamptz, seq bigint GENERATED ALWAYS AS IDENTITY)", set.SetupSQL(nil), "DROP INDEX outbox_xid_seq_idx")
	for _, c := range []struct {
		index string
		fails bool
	}{
		{"(id)", true},
		{"(xid)", true},
		{"(seq, xid)", true},
		{"(xid, seq) WHERE id > ''", true},
		{"(xid, seq, id)", false},
		{"(xid, seq)", false},
	} {
		server.Exec(t, dsn, "CREATE INDEX other ON outbox "+c.index)
		var fixes string
		for _, f := range set.Check(t.Context(), nil) {
			if f.Verdict == condition.Fail {
				fixes += f.Fix.Text(f.Provider)
			}
		}
		if fails := strings.Contains(fixes, `CREATE INDEX CONCURRENTLY ON "public"."outbox" ("xid", "seq")`); fails != c.fails || !c.fails && fixes != "" {
			t.Errorf("with an index on %s, check demands %q", c.index, fixes)
		}
		server.Exec(t, dsn, "DROP INDEX other")
	}
}
