package pg

import (
	"context"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/pgname"
)

// A FoundTable is a table of the database.
type FoundTable struct {
	pgname.Table
	Fits        bool     // it has the columns that the router needs by default
	OrderColumn string   `json:"order_column"` // an identity or serial column, or ""
	TimeColumn  string   `json:"time_column"`  // a timestamptz with a default of now(), or ""
	Texts       []string // the columns of the types text and varchar
	Headers     bool     // it has a column headers of the type jsonb or json, whose values are objects
}

// FindTables returns the tables that look like an outbox, and those that are named.
func FindTables(ctx context.Context, db Database, named []pgname.Table) ([]FoundTable, error) {
	sql, err := db.ConnectSQL(ctx)
	if err != nil {
		return nil, err
	}
	defer Close(sql)
	names := []string{"(NULL, NULL)"}
	for _, t := range named {
		names = append(names, fmt.Sprintf("(%s, %s)", pgname.QuoteLiteral(t.Schema), pgname.QuoteLiteral(t.Name)))
	}
	found, err := Rows[FoundTable](ctx, sql, "look for the outbox", `SELECT * FROM (
 SELECT n.nspname AS schema, c.relname AS name, has.columns @> '{id, payload}' AND has.columns && '{aggregate_type, aggregatetype}'
   AND has.columns && '{aggregate_id, aggregateid}' AS fits, (n.nspname, c.relname) IN (`+strings.Join(names, ", ")+`) AS named,
  coalesce((SELECT a.attname FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
   WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.deptype IN ('a', 'i') ORDER BY a.attnum LIMIT 1), '') AS order_column,
  coalesce((SELECT a.attname FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = c.oid AND a.attname IN ('created_at', 'inserted_at') AND a.atttypid = 'timestamptz'::regtype
   AND pg_get_expr(d.adbin, d.adrelid) ~* '^(now|(clock|statement|transaction)_timestamp)\(\)$|^current_timestamp$' ORDER BY a.attname LIMIT 1), '') AS time_column,
  coalesce((SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid IN ('text'::regtype, 'varchar'::regtype)), '{}') AS texts,
  EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attname = 'headers' AND a.atttypid IN ('jsonb'::regtype, 'json'::regtype)
   AND has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT')) AS headers
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT array_agg(attname::text) AS columns FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) has
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema') t WHERE fits OR named ORDER BY schema, name`)
	for i := range found {
		f := &found[i]
		if !f.Headers || err != nil {
			continue
		}
		var only struct{ Objects bool }
		only, err = Row[struct{ Objects bool }](ctx, sql, "look at the headers in "+f.Table.String(),
			"SELECT coalesce(bool_and(json_typeof(headers::json) IN ('object', 'null')), true) AS objects FROM (SELECT headers FROM "+f.SQL()+" LIMIT 1000) h WHERE headers IS NOT NULL")
		f.Headers = only.Objects
	}
	return found, err
}

// FreeName returns a name for a slot and a publication that no relay of other tables has: name, or the first free name made of
// the database's name. A slot of another database, a physical slot, a slot without a publication of its name, and a publication
// with other tables make a name taken.
func FreeName(ctx context.Context, db Database, name string, tables []pgname.Table) (string, error) {
	sql, err := db.ConnectSQL(ctx)
	if err != nil {
		return "", err
	}
	defer Close(sql)
	own := make([]string, len(tables))
	for i, t := range tables {
		own[i] = fmt.Sprintf("(%s, %s)", pgname.QuoteLiteral(t.Schema), pgname.QuoteLiteral(t.Name))
	}
	const list = "(SELECT array_agg(format('%I.%I', schema, name) ORDER BY schema, name) FROM "
	free, err := Row[struct{ Name string }](ctx, sql, "look for a free name of a slot and a publication", `WITH own(schema, name) AS (VALUES `+strings.Join(own, ", ")+`),
 used AS (SELECT slot_name::text AS name, database IS DISTINCT FROM current_database() AS elsewhere FROM pg_replication_slots UNION ALL SELECT pubname, false FROM pg_publication),
 taken AS (SELECT u.name FROM used u WHERE u.elsewhere
  OR `+list+`(SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = u.name) t(schema, name)) IS DISTINCT FROM `+list+`own))
 SELECT name FROM (SELECT 0 AS n, `+pgname.QuoteLiteral(name)+` AS name
  UNION ALL SELECT n, left(regexp_replace(lower(current_database()), '[^a-z0-9_]', '_', 'g'), 45) || '_walpost' || CASE n WHEN 1 THEN '' ELSE '_' || n END
  FROM generate_series(1, (SELECT count(*) + 1 FROM used)) n) c
 WHERE NOT EXISTS (SELECT FROM taken t WHERE t.name = c.name) ORDER BY n LIMIT 1`)
	return free.Name, err
}
