package replication

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/pg"
)

// Outbox says what a setup makes of the tables for the one who removes old rows (package cleanup). The stream needs none of it.
type Outbox struct {
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
func (o *Outbox) Time() string {
	if o.TimeColumn == "" {
		return "created_at"
	}
	return o.TimeColumn
}

// outboxSQL makes a table.
func outboxSQL(t Table, o *Outbox) string {
	key, primary, end := " PRIMARY KEY", "", ");"
	column := "created_at"
	if c := o.Time(); c != column {
		column = pg.QuoteIdent(c)
	}
	if o.Partitioned { // its key must hold the column that it is partitioned by
		key, primary, end = "", ",\n  PRIMARY KEY (id, "+column+")", ") PARTITION BY RANGE ("+column+");"
	}
	return fmt.Sprintf(`CREATE TABLE %s (
  id             uuid        NOT NULL DEFAULT gen_random_uuid()%s, -- the event's id, in the header "id"
  aggregate_type text        NOT NULL, -- decides the topic: outbox.event.<aggregate_type>
  aggregate_id   text        NOT NULL, -- the record's key: events with the same key stay in order
  event_type     text        NOT NULL,
  payload        jsonb,                -- the record's value
  %-14s timestamptz NOT NULL DEFAULT now()%s
%s`, t.SQL(), key, column, primary, end)
}

// partitionsSQL makes the partitions of today and of the three days to come, in UTC.
func partitionsSQL(t Table) string {
	return fmt.Sprintf(`DO $$
DECLARE today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
  FOR d IN 0..3 LOOP
    EXECUTE format('CREATE TABLE %%I.%%I PARTITION OF %%I.%%I FOR VALUES FROM (%%L) TO (%%L)', %[1]s, %[2]s || to_char(today + d, '"_p"YYYYMMDD'),
      %[1]s, %[2]s, (today + d)::text || ' 00:00:00+00', (today + d + 1)::text || ' 00:00:00+00');
  END LOOP;
END $$;`, pg.QuoteLiteral(t.Schema), pg.QuoteLiteral(t.Name))
}

// cleans adds the rights of the one who removes old rows.
func cleans(add func(what, comment, sql string), t Table, o *Outbox, name string) {
	role := pg.QuoteIdent(name)
	if o.Owns {
		add("the owner of "+t.String(), `For cleanup.mode drop_partitions: only the owner makes, detaches and drops partitions, and the table's owner is not that of the
partitions that are there.`,
			fmt.Sprintf(`GRANT USAGE, CREATE ON SCHEMA %[1]s TO %[2]s;
ALTER TABLE %[3]s OWNER TO %[2]s;
DO $$
DECLARE part regclass;
BEGIN
  FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = %[4]s::regclass LOOP
    EXECUTE format('ALTER TABLE %%s OWNER TO %%I', part, %[5]s);
  END LOOP;
END $$;`, pg.QuoteIdent(t.Schema), role, t.SQL(), pg.QuoteLiteral(t.SQL()), pg.QuoteLiteral(name)))
	}
	if o.Deletes {
		add("the right to delete from "+t.String(), `For cleanup.mode delete. The right to update is what passing over locked rows takes (FOR UPDATE SKIP LOCKED); nothing is updated.
Each pass finds the old rows by an index that begins with the time. (A partitioned table takes the index without CONCURRENTLY, and each of its
partitions needs the grant: walpost check names those that lack it.)`,
			fmt.Sprintf("GRANT SELECT, DELETE, UPDATE (%[2]s) ON %[1]s TO %[3]s;\nCREATE INDEX CONCURRENTLY ON %[1]s (%[2]s);", t.SQL(), pg.QuoteIdent(o.Time()), role))
	}
}

// uncleaned is which of the tables lack what the one who removes old rows needs.
func (c *Config) uncleaned(ctx context.Context, sql *pgconn.PgConn) (tables []Table, err error) {
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
