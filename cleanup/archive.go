package cleanup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// An Archive is what the catalog says of an archive table and of the table whose old rows it takes.
type Archive struct {
	Table, Of pgname.Table `json:"-"`
	Exists    bool
	// Unfit are the relations that are not ordinary logged tables, among the archive and its
	// partitions. A foreign table commits for itself, and a crash empties an unlogged one.
	Unfit []string
	// Published says which relations are in the publication: the archive, a partition or a parent. Then
	// Postgres sends each row once more. The relay publishes it again if the archive is part of an outbox table.
	Published []string
	// Missing are columns of the outbox for which the archive has no column of the same name and type.
	Missing []string
	// Required are columns of the archive that are NOT NULL, and that an outbox row may leave empty.
	Required []string
	// Columns are the columns to copy. A column that both tables generate is not copied.
	Columns []string
	// MayUse and MayInsert are the rights of the role on the schema and on the table.
	MayUse    bool `json:"may_use"`
	MayInsert bool `json:"may_insert"`
}

// LookAtArchive reads what the catalog says of the archive of t.
func LookAtArchive(ctx context.Context, conn *pgconn.PgConn, t, archive pgname.Table, publication string) (*Archive, error) {
	a, err := pg.Row[Archive](ctx, conn, "look at archive table "+archive.String(), fmt.Sprintf(`WITH a AS (SELECT * FROM pg_class WHERE oid = %[1]s),
 tree AS (SELECT oid, true AS below FROM a UNION SELECT p.relid, true FROM a, pg_partition_tree(a.oid) p UNION SELECT p.relid, false FROM a, pg_partition_ancestors(a.oid) p),
 col AS (SELECT s.attname AS source, d.attname AS target, format('%%s %%s', quote_ident(s.attname), format_type(s.atttypid, s.atttypmod)) AS definition, s.attnum,
   d.attname IS NOT NULL AND d.atttypid = s.atttypid AND d.atttypmod IN (s.atttypmod, -1) AND (d.attgenerated = '' OR s.attgenerated <> '') AS fits,
   d.attgenerated AS generated, d.attnotnull AND (s.attname IS NULL AND NOT d.atthasdef AND d.attidentity = '' OR NOT s.attnotnull) AS required
  FROM (SELECT * FROM pg_attribute WHERE attrelid = to_regclass(%[2]s) AND attnum > 0 AND NOT attisdropped) s
  FULL JOIN (SELECT pg_attribute.* FROM pg_attribute JOIN a ON attrelid = a.oid WHERE attnum > 0 AND NOT attisdropped) d ON d.attname = s.attname)
SELECT EXISTS (SELECT FROM a) AS exists,
 (SELECT json_agg(DISTINCT c.oid::regclass::text) FROM tree t JOIN pg_class c USING (oid) WHERE t.below AND NOT (c.relkind IN ('r', 'p') AND c.relpersistence = 'p')) AS unfit,
 (SELECT json_agg(DISTINCT c.oid::regclass::text) FROM tree t JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_publication_tables p ON p.schemaname = n.nspname AND p.tablename = c.relname WHERE p.pubname = %[3]s) AS published,
 (SELECT json_agg(definition ORDER BY attnum) FROM col WHERE source IS NOT NULL AND fits IS NOT TRUE) AS missing,
 (SELECT json_agg(target ORDER BY target) FROM col WHERE required) AS required,
 (SELECT json_agg(source ORDER BY attnum) FROM col WHERE fits AND generated = '') AS columns,
 EXISTS (SELECT FROM a WHERE has_schema_privilege(relnamespace, 'USAGE')) AS may_use,
 EXISTS (SELECT FROM a WHERE has_table_privilege(oid, 'INSERT')) AS may_insert`,
		archive.OID(), pgname.QuoteLiteral(t.SQL()), pgname.QuoteLiteral(publication)))
	a.Table, a.Of = archive, t
	return &a, err
}

// archive reads the archive of t. The error says why it cannot take rows.
func (c *Cleaner) archive(ctx context.Context, t pgname.Table) (*Archive, error) {
	a, err := LookAtArchive(ctx, c.conn, t, t.Archive(c.cfg.ArchiveTable), c.cfg.Publication)
	if err != nil {
		return nil, err
	}
	var l condition.List
	if a.Conditions(&l, c.role); len(l.Found) > 0 {
		return nil, errors.New(text(&l.Found[0]))
	}
	return a, nil
}

// moveBatch moves the rows that old selects from leaf, which is t or a partition of t, to the archive.
// It is one transaction, which holds off changes of both tables. So each column that a row has is
// copied, and each row is in exactly one of the two tables whenever the process or the server ends. The
// result is the number of rows and the time of the last one.
func (c *Cleaner) moveBatch(ctx context.Context, t, leaf pgname.Table, old string, args [][]byte) (row [][]byte, err error) {
	err = c.exec(ctx, "begin", "BEGIN", fmt.Sprintf("LOCK TABLE ONLY %s, ONLY %s IN ROW EXCLUSIVE MODE", leaf.SQL(), t.Archive(c.cfg.ArchiveTable).SQL()))
	var a *Archive
	if err == nil {
		a, err = c.archive(ctx, t)
	}
	if err == nil {
		columns := make([]string, len(a.Columns))
		for i, name := range a.Columns {
			columns[i] = pgname.QuoteIdent(name)
		}
		list, column := strings.Join(columns, ", "), pgname.QuoteIdent(c.cfg.TimeColumn)
		row, err = c.one(ctx, "move to "+a.Table.String(), old+`,
 gone AS (DELETE FROM ONLY `+leaf.SQL()+` t WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING t.*),
 moved AS (INSERT INTO `+a.Table.SQL()+` (`+list+`) OVERRIDING SYSTEM VALUE SELECT `+list+` FROM gone RETURNING 1)
 SELECT count(*), max(`+column+`), now() - $1::interval, (SELECT count(*) FROM moved) FROM gone`, args)
	}
	if err == nil && string(row[0]) != string(row[3]) {
		err = fmt.Errorf("archive table %s took %s of %s rows: a trigger of the archive leaves rows out", a.Table, row[3], row[0])
	}
	if err == nil {
		err = c.exec(ctx, "commit", "COMMIT")
	}
	if err != nil {
		_ = c.exec(ctx, "roll back", "ROLLBACK") // if this fails too, the connection is closed
		return nil, err
	}
	return row, nil
}
