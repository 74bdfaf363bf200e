package replication

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
)

type catalogColumn struct {
	Ord        int
	NotNull    bool `json:"not_null"`
	HasDefault bool `json:"has_default"`
	Default    string
	TypeName   string `json:"type_name"`
	BaseType   oid    `json:"base_type"`
	Element    oid
	Labels     []string
}

// fillCatalog fills the catalog fields of rel's columns: types by their OID, the rest by the column's name in the table as it
// is now. A column or a table that is gone meanwhile has only its type; a type that is gone has nothing. Names of types
// outside pg_catalog come with their schema.
func fillCatalog(ctx context.Context, conn *pgconn.PgConn, rel *cdc.Relation) error {
	if len(rel.Columns) == 0 {
		return nil
	}
	values := make([]string, len(rel.Columns))
	for i := range rel.Columns {
		c := &rel.Columns[i]
		values[i] = fmt.Sprintf("(%d, %s::name, %d::oid, %d)", i, quoteLiteral(c.Name), c.TypeOID, c.TypeMod)
	}
	// The walk down a chain of domains ends at the type that is none.
	query := `WITH RECURSIVE v(ord, col, typ, typmod) AS (VALUES ` + strings.Join(values, ", ") + `),
 below(ord, typ, base) AS (
  SELECT v.ord, v.typ, t.typbasetype FROM v JOIN pg_type t ON t.oid = v.typ WHERE t.typtype = 'd'
  UNION ALL SELECT b.ord, b.base, t.typbasetype FROM below b JOIN pg_type t ON t.oid = b.base WHERE t.typtype = 'd')
 SELECT v.ord, a.attnotnull AS not_null, d.oid IS NOT NULL AS has_default, pg_get_expr(d.adbin, d.adrelid) AS "default",
 CASE WHEN t.oid IS NOT NULL THEN format_type(v.typ, v.typmod) END AS type_name,
 (SELECT b.base FROM below b JOIN pg_type bt ON bt.oid = b.base WHERE b.ord = v.ord AND bt.typtype <> 'd') AS base_type,
 CASE WHEN t.typelem <> 0 AND t.typlen = -1 AND t.typcategory = 'A' THEN t.typelem END AS element,
 (SELECT json_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = v.typ) AS labels
 FROM v LEFT JOIN pg_type t ON t.oid = v.typ
 LEFT JOIN pg_attribute a ON a.attrelid = ` + fmt.Sprintf("%d", rel.ID) + `::oid AND a.attname = v.col AND a.attnum > 0 AND NOT a.attisdropped
 LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''`
	columns, err := rows[catalogColumn](ctx, conn, "read the catalog for "+rel.String(), query)
	if err != nil {
		return err
	}
	for _, c := range columns {
		if c.Ord < 0 || c.Ord >= len(rel.Columns) {
			return fmt.Errorf("read the catalog for %s: %w: column %d", rel, errAnswer, c.Ord)
		}
		col := &rel.Columns[c.Ord]
		col.NotNull, col.HasDefault, col.Default = c.NotNull, c.HasDefault, c.Default
		if col.TypeName == "" { // a Type message of the stream is as of the row
			col.TypeName = c.TypeName
		}
		col.BaseType, col.ElementType, col.EnumLabels = uint32(c.BaseType), uint32(c.Element), c.Labels
	}
	return nil
}
