package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// Migrate makes public.outbox if it is missing. See Outbox.Migrate.
func Migrate(ctx context.Context, db any) error { return standard.Migrate(ctx, db) }

// Migrate makes the table if it is missing, by the SQL of DDL. It never changes a table that exists. db
// is a pool, a connection or a transaction, of pgx or database/sql, whose role may create tables in the
// schema. Any number of processes can call it, each at its start.
func (o *Outbox) Migrate(ctx context.Context, db any) error {
	to, err := anytx.Any(db)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	up, _ := o.DDL()
	name := pgname.QuoteLiteral(o.table.Name.SQL())
	quote := "$outbox$"
	for strings.Contains(up, quote) { // a name would end the block
		quote = "$o" + quote[1:]
	}
	// One statement is one transaction, also on a pool.
	block := fmt.Sprintf("DO %[1]s BEGIN\nPERFORM pg_advisory_xact_lock(%[2]d);\nIF to_regclass(%[3]s) IS NULL THEN\n%[4]s\nEND IF;\nEND %[1]s",
		quote, migrationLock, name, up)
	if _, err := to.Exec(ctx, block); err != nil {
		return fmt.Errorf("outbox: make %s: %w", o.table.Name, err)
	}
	return nil
}

// migrationLock is the key of the advisory lock that Migrate takes: the bytes of "walpost" and a 2.
const migrationLock = 0x77616c706f737402

// DDL returns the SQL that makes the table, and the SQL that drops it. It is the table that walpost
// setup makes, with the type of Options.PayloadType and the columns of Options.Headers. Both texts can
// be the files of a migration of golang-migrate.
func (o *Outbox) DDL() (up, down string) { return outboxtable.Migration("", "", &o.table) }

// Goose returns DDL as one file of a migration of goose.
func (o *Outbox) Goose() string { return outboxtable.Goose(&o.table) }

// Placement returns the value for router.table.fields.additional.placement in walpost.yaml: the
// type of the event in the header eventType, and the column headers or those of Options.Headers.
func (o *Outbox) Placement() string {
	return outboxtable.Placement(append([]string{"event_type"}, o.opts.Headers...), o.opts.Headers == nil)
}
