package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
)

// cleanedTable is what the one who removes old rows (package cleanup) needs of a table.
type cleanedTable struct {
	OID       uint32 `json:",string"`
	Barred    []string
	Foreign   []string // partitions that belong to others
	Unplain   []string // partitions that are partitioned themselves, foreign or unlogged
	MayUse    bool     `json:"may_use"`    // its schema
	MayCreate bool     `json:"may_create"` // tables in its schema
}

// cleanedQuery asks the rights on each leaf by itself, because rows are deleted from the partitions, not through their parent.
func cleanedQuery(oids []string) string {
	return `SELECT c.oid, has_schema_privilege(n.oid, 'USAGE') AS may_use, has_schema_privilege(n.oid, 'CREATE') AS may_create,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_class l WHERE (l.oid = c.oid AND c.relkind = 'r'
   OR l.oid IN (SELECT t.relid FROM pg_partition_tree(c.oid) t WHERE t.isleaf)) AND l.relkind = 'r' AND l.relpersistence = 'p'
   AND NOT (has_schema_privilege(l.relnamespace, 'USAGE') AND has_table_privilege(l.oid, 'SELECT') AND has_table_privilege(l.oid, 'DELETE')
     AND has_any_column_privilege(l.oid, 'UPDATE'))) AS barred,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
   WHERE i.inhparent = c.oid AND NOT pg_has_role(l.relowner, 'USAGE')) AS foreign,
 (SELECT json_agg(l.oid::regclass::text ORDER BY l.oid::regclass::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
   WHERE i.inhparent = c.oid AND NOT (l.relkind = 'r' AND l.relpersistence = 'p')) AS unplain
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN (` + strings.Join(oids, ", ") + `)`
}

// readCleanup reads what a cleanup needs, if there is to be one.
func (x *examination) readCleanup(ctx context.Context, conn *pgconn.PgConn) (err error) {
	if oids := existing(x.f.Tables); x.cfg.Outbox.Cleans() && len(oids) > 0 {
		x.cleaned, err = pg.Rows[cleanedTable](ctx, conn, "read what the cleanup needs", cleanedQuery(oids))
	}
	for i := range x.f.Tables {
		if t := x.f.Tables[i].Table; err == nil && x.cfg.Outbox.Archives {
			a, failed := cleanup.LookAtArchive(ctx, conn, t, t.Archive(x.cfg.Outbox.ArchiveTable), x.cfg.Publication)
			if err = failed; err == nil {
				x.archives = append(x.archives, a)
			}
		}
	}
	return err
}

// cleanup judges what the removal of old rows rests on. The stream does not; but who has asked for a cleanup and gets none has a
// table that grows.
func (x *examination) cleanup() {
	if !x.cfg.Outbox.Cleans() {
		return
	}
	if x.f.Server.Recovery {
		x.Fail("cleanup", fix.ByWords("Point source.dsn at the primary, or remove cleanup.mode."), "the server is a standby: nothing can be removed there")
		return
	}
	for i := range x.f.Tables {
		t := &x.f.Tables[i]
		for k := range x.cleaned {
			if c := &x.cleaned[k]; c.OID == t.OID && (t.Kind == "r" || t.Kind == "p") {
				from := len(x.Found)
				x.cleanable(t, c)
				if len(x.Found) == from {
					x.OK("cleanup of "+t.Table.String(), "role %s may remove old rows of %s", x.f.Server.Role, t.Table)
				}
				if i := t.Relation.Index(x.cfg.Outbox.Time()); x.cfg.Outbox.Deletes && i >= 0 && cleanup.IsTime(&t.Relation.Columns[i]) && !t.IndexedBy(x.cfg.Outbox.Time()) {
					x.unindexed(t)
				}
			}
		}
	}
}

func (x *examination) cleanable(t *pg.TableFacts, c *cleanedTable) {
	name, table, role := "cleanup of "+t.Table.String(), t.Table.SQL(), pg.QuoteIdent(x.f.Server.Role)
	outbox := &x.cfg.Outbox
	column := outbox.Time()
	at := t.Relation.Index(column)
	switch filter := x.f.Publication.Filter(t.Table); {
	case filter != "":
		x.Fail(name, fix.ByWords("Set cleanup.mode to none, and remove old rows with a job of your own."),
			"publication %s has a row filter for %s (%s): walpost cannot tell which rows were delivered, and removes none", x.cfg.Publication, t.Table, filter)
		return
	case at < 0:
		x.Fail(name, fix.Fix{
			fix.Words("Set source.time_column to the column that says when a row was written, or:"),
			fix.SQL(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s timestamptz NOT NULL DEFAULT now();", table, pg.QuoteIdent(column))),
		},
			"%s has no column %s (source.time_column)", t.Table, column)
		return
	case !cleanup.IsTime(&t.Relation.Columns[at]):
		x.Fail(name, fix.ByWords("Set source.time_column to a timestamptz, timestamp or date."), "source.time_column: column %s of %s is a %s", column, t.Table, t.Relation.Columns[at].TypeName)
		return
	}
	for _, a := range x.archives {
		if a.Of == t.Table {
			x.archive(a)
		}
	}
	if outbox.Owns {
		x.droppable(t, c)
		return
	}
	if len(c.Barred) > 0 {
		grants := make([]string, 0, 4)
		if !c.MayUse {
			grants = append(grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", pg.QuoteIdent(t.Schema), role))
		}
		for _, leaf := range c.Barred[:min(3, len(c.Barred))] {
			grants = append(grants, fmt.Sprintf("GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %s;", pg.QuoteIdent(column), leaf, role))
		}
		by := fix.BySQL(strings.Join(grants, " "))
		if t.Kind == "p" {
			by = append(by, fix.Words("(grant this on every partition, including future ones)"))
		}
		x.Fail(name, by, "role %s may not delete from %s: old rows are not removed (to skip locked rows, walpost also needs UPDATE on one column)", x.f.Server.Role, condition.Some(c.Barred))
	}
}

// archive judges the table to which old rows move.
func (x *examination) archive(a *cleanup.Archive) {
	table, role := a.Table.SQL(), pg.QuoteIdent(x.f.Server.Role)
	for _, m := range a.Misfits() {
		var by fix.Fix
		switch m.Kind {
		case cleanup.NoArchive:
			by = fix.Fix{fix.Words("walpost setup prints the SQL:"), fix.SQL(fmt.Sprintf("CREATE TABLE %s (LIKE %s); GRANT INSERT ON %s TO %s;", table, a.Of.SQL(), table, role))}
		case cleanup.ArchiveUnfit:
			by = fix.ByWords("Name an ordinary logged table in cleanup.archive_table.")
		case cleanup.ArchivePublished:
			by = fix.ByWords("Publish the outbox with a separate publication FOR TABLE, or move the archive to a schema that is not published.")
		case cleanup.ArchiveMissing:
			by = fix.BySQL(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s;", table, strings.Join(m.Names, ", ADD COLUMN ")))
		case cleanup.ArchiveRequired:
			drops := make([]string, len(m.Names))
			for i, name := range m.Names {
				drops[i] = "ALTER COLUMN " + pg.QuoteIdent(name) + " DROP NOT NULL"
			}
			by = fix.BySQL(fmt.Sprintf("ALTER TABLE %s %s;", table, strings.Join(drops, ", ")))
		case cleanup.ArchiveBarred:
			by = fix.BySQL(fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT INSERT ON %s TO %[2]s;", pg.QuoteIdent(a.Table.Schema), role, table))
		}
		x.Fail("archive of "+a.Of.String(), by, "%s: old rows are not removed", m)
	}
}

// unindexed warns of a table whose old rows are not found by an index.
func (x *examination) unindexed(t *pg.TableFacts) {
	how, column := " CONCURRENTLY", x.cfg.Outbox.Time()
	if t.Kind == "p" {
		how = "" // Postgres refuses it there
	}
	x.Warn("index for the cleanup of "+t.Table.String(), fix.BySQL(fmt.Sprintf("CREATE INDEX%s ON %s (%s);", how, t.Table.SQL(), pg.QuoteIdent(column))),
		"no index of %s begins with %s: each pass of the cleanup reads the whole table", t.Table, column)
}

// droppable judges a table whose partitions are to be made and dropped, which only their owner may.
func (x *examination) droppable(t *pg.TableFacts, c *cleanedTable) {
	name, role := "cleanup of "+t.Table.String(), pg.QuoteIdent(x.f.Server.Role)
	if t.RangeColumn != x.cfg.Outbox.Time() {
		x.Fail(name, fix.ByWords("walpost setup --partitioned prints the SQL for a table of this kind. Or set cleanup.mode to delete."),
			"cleanup.mode drop_partitions needs a table with PARTITION BY RANGE (%s), and %s is not partitioned in this way", x.cfg.Outbox.Time(), t.Table)
		return
	}
	if !t.Owned {
		x.Fail(name, fix.BySQL(fmt.Sprintf("ALTER TABLE %s OWNER TO %s;", t.Table.SQL(), role)),
			"%s belongs to %s: role %s may neither create nor drop its partitions", t.Table, t.Owner, x.f.Server.Role)
	}
	if len(c.Foreign) > 0 {
		x.Fail(name, fix.Fix{fix.SQL(fmt.Sprintf("ALTER TABLE %s OWNER TO %s;", c.Foreign[0], role)), fix.Words("(repeat for each one)")}, "role %s may not drop %s, which belong to others", x.f.Server.Role, condition.Some(c.Foreign))
	}
	if !c.MayCreate {
		x.Fail(name, fix.BySQL(fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s;", pg.QuoteIdent(t.Schema), role)),
			"role %s may not create tables in schema %s: walpost cannot create partitions for future rows", x.f.Server.Role, t.Schema)
	}
	if len(c.Unplain) > 0 {
		x.Warn(name, fix.ByWords("Drop them by hand once their rows are delivered."), "%s are partitioned, foreign or unlogged: walpost never drops them", condition.Some(c.Unplain))
	}
}
