package cleanup

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const archiveTable = "CREATE TABLE outbox_archive (LIKE outbox)"

func (p *place) query(sql string) string {
	p.Helper()
	rows, err := p.sql.Query(p.ctx, sql)
	if err != nil {
		p.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.Fatal(err)
	}
	return strings.Join(all, " ")
}

// Old, delivered rows are in the archive with all their values, and everything else stays in the outbox: what is not confirmed, what is
// young, what is locked, and the rows of dead events.
func TestOldRowsMoveToTheArchiveWithAllTheirValues(t *testing.T) {
	for _, version := range oldestAndNewest {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, version, `CREATE TABLE outbox (id int PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY, gone int, event text, "a b" numeric(10,2),
 twice int GENERATED ALWAYS AS (id * 2) STORED, created_at timestamptz)`,
				Settings{Config: Config{Mode: MoveToArchive, Keep: time.Hour}, Batch: 2, IDColumn: idColumn, Kept: func(context.Context) ([]string, error) { return []string{"dead"}, nil }})
			p.exec("ALTER TABLE outbox DROP COLUMN gone", "CREATE TABLE outbox_archive (LIKE outbox INCLUDING IDENTITY)", "ALTER TABLE outbox_archive ADD COLUMN archived_at timestamptz DEFAULT now()",
				`INSERT INTO outbox (id, event, "a b", created_at) SELECT i, CASE i WHEN 2 THEN 'dead' ELSE 'e' || i END, i + 0.25, now() - interval '2 hours' FROM generate_series(1, 6) i`,
				`INSERT INTO outbox (id, created_at) VALUES (7, now())`)
			role := p.as() // with the rights that setup prints, and no more
			p.exec("GRANT SELECT, DELETE, UPDATE (created_at) ON outbox TO "+role, "GRANT INSERT ON outbox_archive TO "+role)
			p.run()
			p.want("nothing is confirmed", 1, 2, 3, 4, 5, 6, 7)
			holder := p.connect()
			if _, err := holder.Exec(p.ctx, "BEGIN; SELECT FROM outbox WHERE id = 3 FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			p.settle()
			p.want("2 is dead, 3 is locked, 7 is young", 2, 3, 7)
			if got := p.query(`SELECT concat_ws('/', id, n, event, "a b", twice, archived_at IS NOT NULL) FROM outbox_archive ORDER BY id`); got !=
				"1/1/e1/1.25/2/t 4/4/e4/4.25/8/t 5/5/e5/5.25/10/t 6/6/e6/6.25/12/t" {
				t.Errorf("the archive has %s", got)
			}
			if s := p.Status(); s.Rows != 4 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// An archive that would lose a value, a row or its transaction, or whose rows would be published, takes nothing. The error says why, and the
// rows stay in the outbox. When the archive is mended, the rows move.
func TestAnArchiveThatDoesNotFitStopsTheCleanup(t *testing.T) {
	for name, c := range map[string]struct{ breaks, mends, want string }{
		"no archive":       {"DROP TABLE outbox_archive", archiveTable, "archive table public.outbox_archive does not exist"},
		"a new column":     {"ALTER TABLE outbox ADD COLUMN extra numeric(10,2)", "ALTER TABLE outbox_archive ADD COLUMN extra numeric(10,2)", "it needs extra numeric(10,2) as in public.outbox"},
		"another type":     {"ALTER TABLE outbox_archive ALTER id TYPE bigint", "ALTER TABLE outbox_archive ALTER id TYPE int", "it needs id integer"},
		"a column of NULL": {"ALTER TABLE outbox_archive ADD COLUMN who text NOT NULL", "ALTER TABLE outbox_archive ALTER who DROP NOT NULL", "who is NOT NULL there"},
		"in the publication": {
			"ALTER PUBLICATION pub ADD TABLE outbox_archive", "ALTER PUBLICATION pub DROP TABLE outbox_archive",
			"is published (outbox_archive)",
		},
		"a view":   {"DROP TABLE outbox_archive; CREATE VIEW outbox_archive AS SELECT * FROM outbox", "DROP VIEW outbox_archive; " + archiveTable, "not an ordinary logged table"},
		"unlogged": {"ALTER TABLE outbox_archive SET UNLOGGED", "ALTER TABLE outbox_archive SET LOGGED", "not an ordinary logged table"},
		"a trigger": {
			"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER x BEFORE INSERT ON outbox_archive FOR EACH ROW EXECUTE FUNCTION f()",
			"DROP TRIGGER x ON outbox_archive", "took 0 of 1 rows",
		},
		"a partition is missing": {
			"DROP TABLE outbox_archive; CREATE TABLE outbox_archive (LIKE outbox) PARTITION BY LIST (id)",
			"CREATE TABLE rest PARTITION OF outbox_archive DEFAULT", "no partition of relation",
		},
		"its partition is published": {
			"DROP TABLE outbox_archive; CREATE TABLE outbox_archive (LIKE outbox) PARTITION BY LIST (id); CREATE TABLE rest PARTITION OF outbox_archive DEFAULT; ALTER PUBLICATION pub ADD TABLE rest",
			"ALTER PUBLICATION pub DROP TABLE rest", "is published (rest)",
		},
		"the outbox itself": {"", "", "is published (outbox)"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Settings{Config: Config{Mode: MoveToArchive}}
			if c.breaks == "" {
				cfg.ArchiveTable = "outbox"
			}
			p := newPlace(t, "", plainTable, cfg)
			p.exec(archiveTable, insert(1, "1 hour"))
			if c.breaks != "" {
				p.exec(c.breaks)
			}
			var err error
			for i := 0; i < 3 && err == nil; i++ {
				p.confirm()
				err = p.pass(p.ctx)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %s", err, c.want)
			}
			p.want("it does not fit", 1)
			if c.mends == "" {
				return
			}
			p.exec(c.mends)
			p.settle()
			p.want("it fits")
			if got := p.query("SELECT id::text FROM outbox_archive"); got != "1" {
				t.Errorf("the archive has %q", got)
			}
		})
	}
}

// If both tables are partitioned, rows move one by one too, and the partitions of both stay.
func TestRowsMoveFromPartitionsToPartitions(t *testing.T) {
	p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: MoveToArchive, Keep: 48 * time.Hour}})
	p.exec("CREATE TABLE outbox_archive (LIKE outbox) PARTITION BY RANGE (created_at)", part("outbox_old", -5, -4), part("outbox_now", 0, 1),
		"CREATE TABLE archived PARTITION OF outbox_archive DEFAULT", "INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-5 days 2 hours'", insert(2, "0"))
	p.settle()
	p.want("only 2 is young", 2)
	if got := p.query("SELECT tableoid::regclass || ' ' || id FROM outbox_archive"); got != "archived 1" {
		t.Errorf("the archive has %q (%+v)", got, p.Status())
	}
	if got := p.parts(); !slices.Equal(got, []string{"outbox_now", "outbox_old"}) {
		t.Errorf("the outbox has the partitions %v", got)
	}
}

// An archive in another schema without the right to use the schema is a missing right, and not a missing table.
func TestTheArchiveMayBeInASchemaThatTheRoleMayNotUse(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: MoveToArchive, ArchiveTable: `"Old".outbox`}})
	role := p.as()
	p.exec(`CREATE SCHEMA "Old"`, `CREATE TABLE "Old".outbox (LIKE outbox)`, insert(1, "1 hour"),
		"GRANT SELECT, DELETE, UPDATE (created_at) ON outbox TO "+role, `GRANT INSERT ON "Old".outbox TO `+role)
	p.run()
	p.confirm()
	if err := p.pass(p.ctx); err == nil || !strings.Contains(err.Error(), `archive table "Old".outbox may not be written by role `) {
		t.Errorf("%v", err)
	}
	p.exec(`GRANT USAGE ON SCHEMA "Old" TO ` + role)
	p.settle()
	if got := p.query(`SELECT id::text FROM "Old".outbox`); got != "1" {
		t.Errorf("the archive has %q (%+v)", got, p.Status())
	}
}
