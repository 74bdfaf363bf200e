package replication

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
)

// Outbox says what a setup makes, and for whom. The stream needs none of it.
type Outbox struct {
	// Role is the role that walpost runs as; empty is the role of the DSN.
	Role string
	// Slot makes the slot too. Otherwise the first run makes it.
	Slot bool
	// TimeColumn is when a row was written; empty is created_at.
	TimeColumn string
	// Partitioned makes a new table as one that is partitioned by range of TimeColumn, a day each.
	Partitioned bool
	// Deletes lets the role delete rows, Owns makes it the tables' owner, which may make and drop partitions.
	Deletes, Owns bool
}

// Cleans says whether old rows are to be removed.
func (o *Outbox) Cleans() bool { return o.Deletes || o.Owns }

// Time is the column that says when a row was written.
func (o *Outbox) Time() string { return cmp.Or(o.TimeColumn, "created_at") }

// DefaultOrderColumn is the column that orders the rows of a new table, unless Config.OrderColumn names one.
const DefaultOrderColumn = "seq"

// A newColumn is a column of a table that a setup makes.
type newColumn struct {
	name, definition, comment string
	typ                       uint32
}

// outboxColumns are the columns of a new table.
func outboxColumns(c *Config) []newColumn {
	identity := "bigint      GENERATED ALWAYS AS IDENTITY"
	if c.Outbox.Partitioned { // before Postgres 17, a partitioned table has no identity
		identity = "bigserial   NOT NULL"
	}
	columns := []newColumn{
		{"id", "uuid        NOT NULL DEFAULT gen_random_uuid()", `the event's id, in the header "id"`, pgtype.UUIDOID},
		{"aggregate_type", "text        NOT NULL", "decides the topic: outbox.event.<aggregate_type>", pgtype.TextOID},
		{"aggregate_id", "text        NOT NULL", "the record's key: events with the same key stay in order", pgtype.TextOID},
		{"event_type", "text        NOT NULL", "", pgtype.TextOID},
		{"payload", "jsonb", "the record's value", pgtype.JSONBOID},
		{c.Outbox.Time(), "timestamptz NOT NULL DEFAULT now()", "", pgtype.TimestamptzOID},
	}
	order := newColumn{cmp.Or(c.OrderColumn, DefaultOrderColumn), identity, "orders rows that walpost reads from the table", pgtype.Int8OID}
	switch i := slices.IndexFunc(columns, func(c newColumn) bool { return c.name == order.name }); i {
	case -1:
		columns = append(columns, order)
	case 0: // a random id orders nothing
		columns[0].definition, columns[0].typ = identity, order.typ
	}
	return columns
}

// outboxRelation is a new table as the router sees it.
func outboxRelation(t pg.Table, c *Config) *cdc.Relation {
	rel := &cdc.Relation{Schema: t.Schema, Name: t.Name, ReplicaIdentity: 'd'}
	for i, col := range outboxColumns(c) {
		rel.Columns = append(rel.Columns, cdc.Column{Name: col.name, TypeOID: col.typ, TypeMod: -1, Key: i == 0})
	}
	return rel
}

// outboxSQL makes a table.
func outboxSQL(t pg.Table, c *Config) string {
	key, end := "PRIMARY KEY (id)", ");"
	if c.Outbox.Partitioned { // its key must hold the column that it is partitioned by
		column := pg.QuoteIdent(c.Outbox.Time())
		key, end = "PRIMARY KEY (id, "+column+")", ") PARTITION BY RANGE ("+column+");"
	}
	var b strings.Builder
	for _, col := range outboxColumns(c) {
		name := col.name
		if !slices.Contains([]string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at", DefaultOrderColumn}, name) {
			name = pg.QuoteIdent(name)
		}
		line := fmt.Sprintf("  %-14s %s,", name, col.definition)
		if col.comment != "" {
			line = fmt.Sprintf("%-66s -- %s", line, col.comment)
		}
		b.WriteString(line + "\n")
	}
	return fmt.Sprintf("CREATE TABLE %s (\n%s  %s\n%s", t.SQL(), b.String(), key, end)
}

// partitionsSQL makes the partitions of today and of the three days to come, in UTC.
func partitionsSQL(t pg.Table) string {
	return fmt.Sprintf(`DO $$
DECLARE today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
  FOR d IN 0..3 LOOP
    EXECUTE format('CREATE TABLE %%I.%%I PARTITION OF %%I.%%I FOR VALUES FROM (%%L) TO (%%L)', %[1]s, %[2]s || to_char(today + d, '"_p"YYYYMMDD'),
      %[1]s, %[2]s, (today + d)::text || ' 00:00:00+00', (today + d + 1)::text || ' 00:00:00+00');
  END LOOP;
END $$;`, pg.QuoteLiteral(t.Schema), pg.QuoteLiteral(t.Name))
}

// cleans are the rights of the one who removes old rows, and the index that finds them. fresh says that the setup makes the table.
func cleans(t pg.Table, o *Outbox, role, name string, fresh bool) (all []statement) {
	if o.Owns {
		all = append(all, statement{
			what: "role " + name + " the owner of " + t.String(), comment: `For cleanup.mode: drop_partitions. Only the owner makes, detaches and drops partitions. A partition
and its table can have different owners.`,
			sql: fmt.Sprintf(`GRANT USAGE, CREATE ON SCHEMA %[1]s TO %[2]s;
ALTER TABLE %[3]s OWNER TO %[2]s;
DO $$
DECLARE part regclass;
BEGIN
  FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = %[4]s::regclass LOOP
    EXECUTE format('ALTER TABLE %%s OWNER TO %%I', part, %[5]s);
  END LOOP;
END $$;`, pg.QuoteIdent(t.Schema), role, t.SQL(), pg.QuoteLiteral(t.SQL()), pg.QuoteLiteral(name)),
		})
	}
	if o.Deletes {
		concurrently := " CONCURRENTLY"
		if fresh {
			concurrently = ""
		}
		column := pg.QuoteIdent(o.Time())
		all = append(all,
			statement{
				what: "the right to delete from " + t.String(), comment: `For cleanup.mode: delete. FOR UPDATE SKIP LOCKED needs the right to update; walpost updates nothing.
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

// uncleaned is which of the tables lack what the one who removes old rows needs.
func (c *Config) uncleaned(ctx context.Context, sql *pgconn.PgConn) (tables []pg.Table, err error) {
	if !c.Outbox.Cleans() {
		return nil, nil
	}
	for _, t := range c.tables() {
		found, err := pg.Rows[struct{ May bool }](ctx, sql, "look at the rights on "+t.String(), fmt.Sprintf(
			`SELECT CASE WHEN %v THEN pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(c.relnamespace, 'CREATE')
  AND NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = c.oid AND NOT pg_has_role(p.relowner, 'USAGE'))
 ELSE has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'DELETE') AND has_any_column_privilege(c.oid, 'UPDATE') END AS may
 FROM pg_class c WHERE c.oid = to_regclass(%s)`, c.Outbox.Owns, pg.QuoteLiteral(t.SQL())))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 || !found[0].May {
			tables = append(tables, t)
		}
	}
	return tables, nil
}
