package inbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/lib/anytx"
)

// Version is the version of the tables that this package uses. A database stores its version in
// inbox_retention.version. The functions that process events also work with tables that are one
// version older or newer, so that a service can be updated while it runs. Retain needs exactly
// Version.
const Version = 2

// A Schema is the Postgres schema that contains the tables. An empty Schema stands for the
// search_path.
type Schema string

// DDL returns the SQL that upgrades the tables from a version to Version, and the SQL that reverts
// that. Version 0 means that the tables don't exist. Run each text in one transaction. The two
// texts can be the up and down files of a golang-migrate migration. The schema must exist. DDL
// panics if there's no such version.
//
// The role that processes events needs SELECT and INSERT on inbox_processed, SELECT and UPDATE on
// inbox_generations, and SELECT, INSERT, UPDATE and DELETE on inbox_messages. For Retain, it also
// needs DELETE on inbox_processed, and SELECT and UPDATE on inbox_retention.
func (s Schema) DDL(from int) (up, down string) {
	up, down = s.migration(from)
	return withoutGoose(up), withoutGoose(down)
}

// Goose returns DDL as one file of a migration of goose.
func (s Schema) Goose(from int) string {
	up, down := s.migration(from)
	return "-- +goose Up\n" + up + "\n-- +goose Down\n" + down
}

// The files contain @ before the names of tables, and @@ for the same as a text of SQL.
//
//go:embed migrations
var migrations embed.FS

func (s Schema) migration(from int) (up, down string) {
	if from < 0 || from > Version {
		panic(fmt.Sprintf("inbox: the tables have no version %d", from))
	}
	read := func(version int, direction string) string {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%d.%s.sql", version, direction))
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	for v := from + 1; v <= Version; v++ {
		up += read(v, "up")
		down = read(v, "down") + down
	}
	if from == 0 {
		down = read(1, "down")
	}
	prefix, quote := s.table(""), "$inbox$"
	for strings.Contains(prefix, quote) { // the name would end the text of SQL that it is in
		quote = "$i" + quote[1:]
	}
	named := strings.NewReplacer("@@", "'"+strings.ReplaceAll(prefix, "'", "''")+"'", "@", prefix, "$inbox$", quote)
	return named.Replace(up), named.Replace(down)
}

func withoutGoose(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "-- +goose ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// table returns the name of a table as SQL has it.
func (s Schema) table(name string) string {
	if s == "" {
		return name
	}
	return pgx.Identifier{string(s)}.Sanitize() + "." + name
}

// A schemaTx is a transaction whose SQL has @ before the names of this package's tables.
type schemaTx struct {
	anytx.Tx
	schema Schema
}

func (t schemaTx) named(query string) string {
	return strings.ReplaceAll(query, "@", t.schema.table(""))
}

func (t schemaTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return t.Tx.Exec(ctx, t.named(query), args...)
}

func (t schemaTx) QueryRow(ctx context.Context, query string, args []any, into ...any) error {
	return t.Tx.QueryRow(ctx, t.named(query), args, into...)
}

// of returns the transaction that a caller's handle is.
func (s Schema) of(ctx context.Context, handle any) (schemaTx, error) {
	tx, err := anytx.Of(ctx, handle)
	return schemaTx{tx, s}, err
}

// Migrate creates the tables, or upgrades those of an earlier version to Version, in one
// transaction. Any number of processes can call it when they start. The role must be allowed to
// create tables, and must own existing ones. Tables of a later version are an error.
func (db *DB[T]) Migrate(ctx context.Context) error {
	err := db.readCommitted(ctx, func(tx *transaction[T]) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", migrationLock); err != nil {
			return err
		}
		version, err := tx.version(ctx)
		switch {
		case err != nil || version == Version:
			return err
		case version > Version:
			return db.schema.errVersion(version)
		}
		up, _ := db.schema.DDL(version)
		_, err = tx.Tx.Exec(ctx, up)
		return err
	})
	if err != nil {
		return fmt.Errorf("inbox: migrate the tables: %w", err)
	}
	return nil
}

// migrationLock is the key of the advisory lock that Migrate takes: the bytes of "walpost" and a 1.
const migrationLock = 0x77616c706f737401

// version returns the version of the tables, or 0 if there are none.
func (t schemaTx) version(ctx context.Context) (version int, err error) {
	var made bool
	err = t.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", []any{t.schema.table("inbox_retention")}, &made)
	if err != nil || !made {
		return 0, err
	}
	// Version 1 has no column for it.
	err = t.QueryRow(ctx, "SELECT coalesce((to_jsonb(r) ->> 'version')::int, 1) FROM @inbox_retention r", nil, &version)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errors.New("inbox_retention has no row: restore its one row")
	}
	return version, err
}

func (s Schema) errVersion(version int) error {
	of := ""
	if s != "" {
		of = fmt.Sprintf(" --schema %q", s)
	}
	switch {
	case version == 0:
		return fmt.Errorf("the tables of the inbox are missing: call Migrate, or run the SQL of walpost setup --inbox --migration up%s", of)
	case version < Version:
		return fmt.Errorf("the tables of the inbox have version %d, but this program needs version %d: call Migrate, or run the SQL of walpost setup --inbox --migration up --from %[1]d%[3]s", version, Version, of)
	}
	return fmt.Errorf("the tables of the inbox have version %d, but this program uses version %d: update the program", version, Version)
}
