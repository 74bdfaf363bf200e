package outbox_test

import (
	"cmp"
	"database/sql"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/replication"
)

// ofTheTable is what the catalog says of the tables of a database.
const ofTheTable = `SELECT string_agg(concat_ws(' ', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid), c.relkind, pg_get_partkeydef(c.oid)), E'\n' ORDER BY c.relname, a.attnum)
 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'i', 'I')`

// gooseStatements are the statements of one direction of a file, by the rules of goose: a block
// between StatementBegin and StatementEnd is one statement, and otherwise a semicolon ends one.
func gooseStatements(t *testing.T, file, direction string) (statements []string) {
	t.Helper()
	_, section, found := strings.Cut(file, "-- +goose "+direction+"\n")
	if !found {
		t.Fatalf("no direction %s in %s", direction, file)
	}
	section, _, _ = strings.Cut(section, "-- +goose Down\n")
	block := regexp.MustCompile(`(?s)-- \+goose StatementBegin\n(.*?)-- \+goose StatementEnd\n`)
	for _, m := range block.FindAllStringSubmatch(section, -1) {
		statements = append(statements, m[1])
	}
	for s := range strings.SplitSeq(block.ReplaceAllString(section, ""), ";") {
		if s = strings.TrimSpace(regexp.MustCompile(`(?m)^--.*$`).ReplaceAllString(s, "")); s != "" {
			statements = append(statements, s)
		}
	}
	return statements
}

// Each form of the migration makes the table that walpost setup makes, and drops it.
func TestEachMigrationMakesTheTableOfSetup(t *testing.T) {
	for _, version := range []string{"14", "18"} {
		for name, opts := range map[string]outbox.Options{"plain": {}, "partitioned": {Partitioned: true}} {
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				pg, o := testenv.Postgres(t, version), open(t, opts)
				setup := replication.DefaultConfig()
				setup.DSN, setup.Table, setup.Outbox.Partitioned = "postgres://postgres@127.0.0.1/x", "public.outbox", opts.Partitioned
				all := replication.FullSetup(setup)
				want := pg.Database(t)
				pg.Exec(t, want, replication.SetupSQL(setup, replication.SetupOptions{Tables: all.Tables}))
				made := pg.Value(t, want, ofTheTable)
				if !strings.Contains(made, "outbox seq bigint t") {
					t.Fatalf("setup made %s", made)
				}
				up, down := o.DDL()
				gooseUp, gooseDown := gooseStatements(t, o.Goose(), "Up"), gooseStatements(t, o.Goose(), "Down")
				for form, run := range map[string]struct{ up, down []string }{
					"golang-migrate": {[]string{up}, []string{down}}, // one call for a file
					"goose":          {gooseUp, gooseDown},
				} {
					dsn := pg.Database(t)
					for range 2 {
						for _, s := range run.up {
							execute(t, dsn, s, form == "goose")
						}
						if got := pg.Value(t, dsn, ofTheTable); got != made {
							t.Errorf("%s made\n%s\nand setup\n%s", form, got, made)
						}
						for _, s := range run.down {
							execute(t, dsn, s, form == "goose")
						}
						if got := pg.Value(t, dsn, ofTheTable); got != "" {
							t.Errorf("%s left %s", form, got)
						}
					}
				}
			})
		}
	}
}

// execute runs one text, which must be one statement if alone is set.
func execute(t *testing.T, dsn, sql string, alone bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	mode := pgx.QueryExecModeSimpleProtocol
	if alone {
		mode = pgx.QueryExecModeExec // the extended protocol refuses several statements
	}
	if _, err := conn.Exec(t.Context(), sql, mode); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Processes that start together make one table. Handles of every kind can make it, and one that exists stays as it is.
func TestMigrateMakesTheTableOnce(t *testing.T) {
	pg := testenv.Postgres(t, "")
	for name, opts := range map[string]outbox.Options{
		"plain":       {},
		"partitioned": {Partitioned: true},
		"odd names":   {Table: `shop."$outbox$ 'x' \"`, Headers: []string{"$o$outbox$"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, dsn := open(t, opts), pg.Database(t)
			pg.Exec(t, dsn, "CREATE SCHEMA shop")
			pool, err := pgxpool.New(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			dbs := []any{pool, pool, pool}
			for _, driver := range []string{"pgx", "postgres"} {
				db, err := sql.Open(driver, dsn)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = db.Close() })
				dbs = append(dbs, db, db)
			}
			errs := make(chan error)
			for _, db := range dbs {
				go func() { errs <- o.Migrate(t.Context(), db) }()
			}
			for range dbs {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				return o.Write(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "1", Type: "t", Payload: 1})
			})
			var rows int
			again := o.Migrate(t.Context(), pool)
			read := pool.QueryRow(t.Context(), "SELECT count(*) FROM "+cmp.Or(opts.Table, "outbox")).Scan(&rows)
			if err := errors.Join(err, again, read); err != nil || rows != 1 {
				t.Errorf("%d rows, want the one of before: %v", rows, err)
			}
		})
	}
}

// In a transaction that is rolled back, no table remains. A role without the privilege gets the error of Postgres.
func TestMigrateIsAPartOfItsTransaction(t *testing.T) {
	pg := testenv.Postgres(t, "")
	for name, begin := range handles {
		t.Run(name, func(t *testing.T) {
			dsn := pg.Database(t)
			h := begin(t, dsn)
			if err := outbox.Migrate(t.Context(), h.tx); err != nil {
				t.Fatal(err)
			}
			h.must(t, "SELECT FROM outbox")
			if err := h.rollback(); err != nil {
				t.Fatal(err)
			}
			if got := pg.Value(t, dsn, "SELECT coalesce(to_regclass('outbox')::text, 'none')"); got != "none" {
				t.Errorf("after a rollback there is %s", got)
			}
		})
	}
	tx := beginPGX(t, pg.Database(t), "")
	tx.must(t, "CREATE SCHEMA closed", "SET ROLE pg_monitor")
	err := open(t, outbox.Options{Table: "closed.outbox"}).Migrate(t.Context(), tx.tx)
	if err == nil || !strings.Contains(err.Error(), "outbox: make closed.outbox: ") || !strings.Contains(err.Error(), "permission denied") {
		t.Error(err)
	}
	if err := outbox.Migrate(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "string cannot run SQL") {
		t.Error(err)
	}
}
