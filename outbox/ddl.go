package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// Migrate creates public.outbox if it's missing. See Outbox.Migrate.
func Migrate(ctx context.Context, db any) error { return standard.Migrate(ctx, db) }

// Migrate creates the table if it's missing, with the SQL of DDL. It never changes an existing
// table. db is a pool, connection or transaction of pgx or database/sql, whose role must be allowed
// to create tables in the schema. Any number of processes can call Migrate when they start.
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

// DDL returns the SQL that creates the table, and the SQL that drops it. The table is the one that
// walpost setup creates, but with Options.PayloadType and the columns of Options.Headers. The two
// texts can be the up and down files of a golang-migrate migration.
func (o *Outbox) DDL() (up, down string) { return outboxtable.Migration("", "", &o.table) }

// Goose returns the SQL of DDL as one migration file for goose.
func (o *Outbox) Goose() string { return outboxtable.Goose(&o.table) }

// Placement returns the value for router.table.fields.additional.placement in walpost.yaml. It
// places the event's type in the header eventType, and the column headers or the columns of
// Options.Headers.
func (o *Outbox) Placement() string {
	return outboxtable.Placement(append([]string{"event_type"}, o.opts.Headers...), o.opts.Headers == nil)
}
