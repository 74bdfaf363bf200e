package replication

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// Outbox says what a setup makes, and for whom. The stream needs none of it.
type Outbox struct {
	Role       string // that walpost runs as; empty is the role of the DSN
	Slot       bool   // makes the slot too. Otherwise the first run makes it.
	TimeColumn string // when a row was written; empty is created_at
	// Partitioned makes a new table as one that is partitioned by range of TimeColumn, a day each.
	Partitioned bool
	// Deletes lets the role delete rows, Owns makes it the tables' owner, which may make and drop partitions.
	Deletes, Owns bool
	Archives      bool   // old rows go to the archive
	ArchiveTable  string // empty is <table>_archive
}

// Cleans says whether old rows are to be removed.
func (o *Outbox) Cleans() bool { return o.Deletes || o.Owns }

// Time is the column that says when a row was written.
func (o *Outbox) Time() string { return cmp.Or(o.TimeColumn, outboxtable.DefaultTimeColumn) }

// table is a table that a setup makes.
func (c *Config) table(name pgname.Table) *outboxtable.Table {
	return &outboxtable.Table{Name: name, OrderColumn: c.OrderColumn, TimeColumn: c.Outbox.TimeColumn, Partitioned: c.Outbox.Partitioned}
}

// outboxRelation is a new table as the router sees it.
func outboxRelation(t pgname.Table, c *Config) *cdc.Relation {
	rel := &cdc.Relation{Schema: t.Schema, Name: t.Name, ReplicaIdentity: 'd'}
	for i, col := range c.table(t).Columns() {
		rel.Columns = append(rel.Columns, cdc.Column{Name: col.Name, TypeOID: col.OID, TypeMod: -1, Key: i == 0})
	}
	return rel
}

// cleans are the rights of the one who removes old rows, and the index that finds them. fresh says that the setup makes the table.
func cleans(t pgname.Table, o *Outbox, role, name string, fresh bool) (all []statement) {
	if o.Owns {
		all = append(all, statement{
			what: "role " + name + " the owner of " + t.String(), comment: `For cleanup.mode: drop_partitions. Only the owner can create, detach and drop partitions. A partition
and its table can have different owners.`,
			sql: pg.OwningRights(t, name),
		})
	}
	if o.Archives {
		step := outboxtable.Archive(t, t.Archive(o.ArchiveTable), role)
		all = append(all, statement{what: step.What, comment: step.Comment, sql: step.SQL})
	}
	if o.Deletes {
		concurrently := " CONCURRENTLY"
		if fresh {
			concurrently = ""
		}
		column := pgname.QuoteIdent(o.Time())
		all = append(all,
			statement{
				what: "the privilege to delete from " + t.String(), comment: `For cleanup.mode: delete or archive. FOR UPDATE SKIP LOCKED needs the privilege UPDATE; walpost updates nothing.
Each partition of a partitioned table needs this grant, too: walpost check names those without it.`,
				sql: fmt.Sprintf("GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %s;", column, t.SQL(), role),
			},
			statement{
				what: "an index on " + t.String(), comment: "Each pass finds the old rows by this index. (For a partitioned table, leave out CONCURRENTLY.)",
				sql: fmt.Sprintf("CREATE INDEX%s ON %s (%s);", concurrently, t.SQL(), column), apart: !fresh,
			})
	}
	return all
}

// CleanupSQL is the part of SetupSQL about the cleanup, for a table that no slot reads: "" if the role lacks nothing. apart must run
// outside a transaction with other statements. A nil sql knows nothing of the role, which then lacks everything. fresh says that the
// setup makes the table.
func (c *Config) CleanupSQL(ctx context.Context, sql *pgconn.PgConn, role string, fresh bool) (together, apart string, err error) {
	var tables []pgname.Table
	if sql != nil {
		tables, err = c.uncleaned(ctx, sql, role)
	} else if c.Outbox.Cleans() {
		tables = c.tables()
	}
	for _, t := range tables {
		all := cleans(t, &c.Outbox, pgname.QuoteIdent(role), role, fresh)
		n := slices.IndexFunc(all, func(s statement) bool { return s.apart })
		if n < 0 {
			n = len(all)
		}
		together, apart = together+text(all[:n]), apart+text(all[n:])
	}
	return together, apart, err
}

// uncleaned is for which of the tables the role lacks what it needs to remove old rows.
func (c *Config) uncleaned(ctx context.Context, sql *pgconn.PgConn, role string) (tables []pgname.Table, err error) {
	if !c.Outbox.Cleans() {
		return nil, nil
	}
	for _, t := range c.tables() {
		may, err := pg.MayClean(ctx, sql, role, t, c.Outbox.Owns)
		if err == nil && may && c.Outbox.Archives {
			may, err = pg.MayInsert(ctx, sql, role, t.Archive(c.Outbox.ArchiveTable))
		}
		if err != nil {
			return nil, err
		}
		if !may {
			tables = append(tables, t)
		}
	}
	return tables, nil
}
