package replication

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/pg"
)

// cleanedTable is what the one who removes old rows (package cleanup) needs of a table.
type cleanedTable struct {
	OID       pg.OID
	Column    string // the type of the time column, "" where there is none of that name
	Indexed   bool   // an index begins with it
	Range     bool   // partitioned by range of that column and of nothing else
	Default   string // its default partition
	Barred    []string
	Foreign   []string // partitions that belong to others
	Unplain   []string // partitions that are partitioned themselves, foreign or unlogged
	MayUse    bool     `json:"may_use"`    // its schema
	MayCreate bool     `json:"may_create"` // tables in its schema
	Schema    string
}

// cleanedTypes are the types that package cleanup takes for a time column.
var cleanedTypes = map[string]bool{"timestamp with time zone": true, "timestamp without time zone": true, "date": true}

// cleanedQuery asks the rights on each leaf by itself, because rows are deleted from the partitions, not through their parent.
func cleanedQuery(oids []string, column string) string {
	return `SELECT c.oid, format_type(a.atttypid, NULL) AS column, n.nspname AS schema, has_schema_privilege(n.oid, 'USAGE') AS may_use, has_schema_privilege(n.oid, 'CREATE') AS may_create,
 EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indkey[0] = a.attnum AND i.indpred IS NULL) AS indexed,
 EXISTS (SELECT FROM pg_partitioned_table p WHERE p.partrelid = c.oid AND p.partstrat = 'r' AND p.partnatts = 1 AND p.partattrs[0] = a.attnum) AS range,
 (SELECT d.oid::regclass::text FROM pg_partitioned_table p JOIN pg_class d ON d.oid = p.partdefid WHERE p.partrelid = c.oid) AS default,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_class l WHERE (l.oid = c.oid AND c.relkind = 'r'
   OR l.oid IN (SELECT t.relid FROM pg_partition_tree(c.oid) t WHERE t.isleaf)) AND l.relkind = 'r' AND l.relpersistence = 'p'
   AND NOT (has_schema_privilege(l.relnamespace, 'USAGE') AND has_table_privilege(l.oid, 'SELECT') AND has_table_privilege(l.oid, 'DELETE')
     AND has_any_column_privilege(l.oid, 'UPDATE'))) AS barred,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
   WHERE i.inhparent = c.oid AND NOT pg_has_role(l.relowner, 'USAGE')) AS foreign,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
   WHERE i.inhparent = c.oid AND NOT (l.relkind = 'r' AND l.relpersistence = 'p')) AS unplain
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = ` + pg.QuoteLiteral(column) + ` AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid IN (` + strings.Join(oids, ", ") + `)`
}

// cleans says whether old rows are to be removed.
func (o *Outbox) cleans() bool { return o.Deletes || o.Owns }

// examineCleanup reads what a cleanup needs, where there is to be one.
func (c *Config) examineCleanup(ctx context.Context, conn *pgconn.PgConn, f *pg.Facts, x *examined) error {
	oids := existing(f.Tables)
	if !c.Outbox.cleans() || len(oids) == 0 {
		return nil
	}
	var err error
	x.cleaned, err = pg.Rows[cleanedTable](ctx, conn, "read what the cleanup needs", cleanedQuery(oids, c.Outbox.timeColumn()))
	return err
}

// cleanup judges what the removal of old rows rests on. The stream does not; but who has asked for a cleanup and gets none has a
// table that grows.
func (j *judgement) cleanup(x *examined) {
	if !j.cfg.Outbox.cleans() {
		return
	}
	if j.f.Server.Recovery {
		j.add(Fail, "cleanup", "Point source.dsn at the primary, or leave cleanup.mode out.", "the server is a standby: nothing can be removed there")
		return
	}
	for i := range j.f.Tables {
		t := &j.f.Tables[i]
		for k := range x.cleaned {
			if c := &x.cleaned[k]; c.OID == t.OID && (t.Kind == "r" || t.Kind == "p") {
				from := len(j.found)
				j.cleanable(t, c)
				if len(j.found) == from {
					j.add(OK, "cleanup of "+t.Table.String(), "", "role %s may remove old rows of %s", j.f.Server.Role, t.Table)
				}
				if j.cfg.Outbox.Deletes && cleanedTypes[c.Column] && !c.Indexed {
					j.unindexed(t)
				}
			}
		}
	}
}

func (j *judgement) cleanable(t *pg.TableFacts, c *cleanedTable) {
	name, table, role := "cleanup of "+t.Table.String(), t.Table.SQL(), pg.QuoteIdent(j.f.Server.Role)
	outbox := &j.cfg.Outbox
	column := outbox.timeColumn()
	switch {
	case c.Column == "":
		j.add(Fail, name, fmt.Sprintf("Set source.time_column to the column that says when a row was written, or: ALTER TABLE %s ADD COLUMN %s timestamptz NOT NULL DEFAULT now();", table, pg.QuoteIdent(column)),
			"%s has no column %s (source.time_column)", t.Table, column)
		return
	case !cleanedTypes[c.Column]:
		j.add(Fail, name, "Set source.time_column to a timestamptz, timestamp or date.", "source.time_column: column %s of %s is a %s", column, t.Table, c.Column)
		return
	}
	if outbox.Owns {
		j.droppable(t, c)
		return
	}
	if len(c.Barred) > 0 {
		grants := make([]string, 0, 4)
		if !c.MayUse {
			grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", pg.QuoteIdent(c.Schema), role))
		}
		for _, leaf := range c.Barred[:min(3, len(c.Barred))] {
			grants = append(grants, fmt.Sprintf("GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %s;", pg.QuoteIdent(column), leaf, role))
		}
		fix := strings.Join(grants, " ")
		if t.Kind == "p" {
			fix += " (rows are deleted from the partitions: each of them needs it, also those to come)"
		}
		j.add(Fail, name, fix, "role %s may not delete from %s: old rows stay (passing over locked rows takes the right to update one column)", j.f.Server.Role, some(c.Barred))
	}
}

// unindexed warns of a table whose old rows are not found by an index.
func (j *judgement) unindexed(t *pg.TableFacts) {
	how, column := " CONCURRENTLY", j.cfg.Outbox.timeColumn()
	if t.Kind == "p" {
		how = "" // Postgres refuses it there
	}
	j.add(Warn, "index for the cleanup of "+t.Table.String(), fmt.Sprintf("CREATE INDEX%s ON %s (%s);", how, t.Table.SQL(), pg.QuoteIdent(column)),
		"no index of %s begins with %s: each pass of the cleanup reads the whole table", t.Table, column)
}

// droppable judges a table whose partitions are to be made and dropped, which only their owner may.
func (j *judgement) droppable(t *pg.TableFacts, c *cleanedTable) {
	name, role := "cleanup of "+t.Table.String(), pg.QuoteIdent(j.f.Server.Role)
	if !c.Range {
		j.add(Fail, name, "walpost setup --partitioned prints the SQL of such a table; or set cleanup.mode to delete.",
			"cleanup.mode drop_partitions needs a table that is PARTITION BY RANGE (%s), and %s is not", j.cfg.Outbox.timeColumn(), t.Table)
		return
	}
	if !t.Owned {
		j.add(Fail, name, fmt.Sprintf("ALTER TABLE %s OWNER TO %s;", t.Table.SQL(), role),
			"%s belongs to %s: role %s may neither make nor drop its partitions", t.Table, t.Owner, j.f.Server.Role)
	}
	if len(c.Foreign) > 0 {
		j.add(Fail, name, fmt.Sprintf("ALTER TABLE %s OWNER TO %s; (and so for each)", c.Foreign[0], role), "role %s may not drop %s, which belong to others", j.f.Server.Role, some(c.Foreign))
	}
	if !c.MayCreate {
		j.add(Fail, name, fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s;", pg.QuoteIdent(c.Schema), role),
			"role %s may not make tables in schema %s: there will be no partitions for the rows to come", j.f.Server.Role, c.Schema)
	}
	if c.Default != "" {
		j.add(Warn, name, fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s;", t.Table.SQL(), c.Default),
			"%s has the default partition %s: beside it no partition can be detached without a lock on the whole table", t.Table, c.Default)
	}
	if len(c.Unplain) > 0 {
		j.add(Warn, name, "Drop them by hand once their rows are delivered.", "%s are partitioned, foreign or unlogged: they are never dropped", some(c.Unplain))
	}
}

// some is a list that does not become longer than a line.
func some(names []string) string {
	if n := len(names); n > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), n-3)
	}
	return strings.Join(names, ", ")
}
