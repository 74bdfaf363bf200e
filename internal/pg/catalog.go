package pg

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// FillCatalog fills the catalog fields of rel's columns: types by their OID, the rest by the column's name in the table as it
// is now. A column or a table that is gone meanwhile has only its type; a type that is gone has nothing. Names of types
// outside pg_catalog come with their schema.
func FillCatalog(ctx context.Context, conn *pgconn.PgConn, rel *cdc.Relation) error {
	if len(rel.Columns) == 0 {
		return nil
	}
	values := make([]string, len(rel.Columns))
	for i := range rel.Columns {
		c := &rel.Columns[i]
		values[i] = fmt.Sprintf("(%d, %s::name, %d::oid, %d)", i, pgname.QuoteLiteral(c.Name), c.TypeOID, c.TypeMod)
	}
	// The walk down a chain of domains ends at the type that is none; on the way down the first typmod counts (only the domain
	// at the bottom can have one).
	query := `WITH RECURSIVE v(ord, col, typ, typmod) AS (VALUES ` + strings.Join(values, ", ") + `),
 below(ord, typ, typmod, depth) AS (
  SELECT v.ord, v.typ, v.typmod, 0 FROM v
  UNION ALL SELECT b.ord, t.typbasetype, CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END, b.depth + 1
   FROM below b JOIN pg_type t ON t.oid = b.typ WHERE t.typtype = 'd'),
 base AS (SELECT b.ord, b.typmod, b.depth, t.oid, t.typname,
  CASE WHEN t.typelem <> 0 AND t.typlen = -1 AND t.typcategory = 'A' THEN t.typelem END AS element
  FROM below b JOIN pg_type t ON t.oid = b.typ WHERE t.typtype <> 'd')
 SELECT v.ord, a.attnotnull OR (t.typtype = 'd' AND t.typnotnull) AS notnull,
 coalesce((SELECT array_position(i.indkey::int2[], a.attnum) + 1 FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary), 0) AS keyposition,
 a.attgenerated <> '' AS generated, a.attidentity AS identity, d.oid IS NOT NULL AS hasdefault, pg_get_expr(d.adbin, d.adrelid) AS "default",
 CASE WHEN t.oid IS NOT NULL THEN format_type(v.typ, v.typmod) END AS typename,
 CASE WHEN b.depth > 0 THEN b.oid::bigint END AS basetype, coalesce(b.typmod, v.typmod) AS basetypemod, b.typname AS basename,
 b.element::bigint AS elementtype, e.typname AS elementname,
 (SELECT json_agg(l.enumlabel ORDER BY l.enumsortorder) FROM pg_enum l WHERE l.enumtypid = b.oid) AS enumlabels,
 (SELECT json_agg(l.enumlabel ORDER BY l.enumsortorder) FROM pg_enum l WHERE l.enumtypid = e.oid) AS elementlabels
 FROM v LEFT JOIN pg_type t ON t.oid = v.typ LEFT JOIN base b ON b.ord = v.ord LEFT JOIN pg_type e ON e.oid = b.element
 LEFT JOIN pg_attribute a ON a.attrelid = ` + fmt.Sprintf("%d", rel.ID) + `::oid AND a.attname = v.col AND a.attnum > 0 AND NOT a.attisdropped
 LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''`
	type column struct {
		Ord int
		cdc.Column
	}
	columns, err := Rows[column](ctx, conn, "read the catalog for "+rel.String(), query)
	if err != nil {
		return err
	}
	for _, c := range columns {
		if c.Ord < 0 || c.Ord >= len(rel.Columns) {
			return fmt.Errorf("read the catalog for %s: %w: column %d", rel, ErrAnswer, c.Ord)
		}
		col := &rel.Columns[c.Ord]
		c.Name, c.TypeOID, c.TypeMod, c.Key = col.Name, col.TypeOID, col.TypeMod, col.Key
		c.TypeName = cmp.Or(col.TypeName, c.TypeName) // a Type message of the stream is as of the row
		*col = c.Column
	}
	return nil
}
