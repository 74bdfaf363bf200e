package convert

import (
	"fmt"
	"slices"
	"strings"
)

// A CatalogTable is a table of the database. The root of a partition is the partitioned table, and
// the root of another table is the table itself.
type CatalogTable struct {
	Schema, Name, RootSchema, RootName string
	Columns                            []string
	Publications                       []string // publish the root or one of its partitions
}

// CatalogQuery asks the server for its CatalogTables. It reads the publications once, not for each
// table: Debezium's default is a publication for all tables, and there can be thousands.
const CatalogQuery = `WITH published AS MATERIALIZED (SELECT coalesce(pg_partition_root(pc.oid), pc.oid) AS root, json_agg(DISTINCT p.pubname) AS names
  FROM pg_publication_tables p JOIN pg_namespace pn ON pn.nspname = p.schemaname
  JOIN pg_class pc ON pc.relnamespace = pn.oid AND pc.relname = p.tablename GROUP BY 1)
 SELECT n.nspname AS schema, c.relname AS name, rn.nspname AS rootschema, r.relname AS rootname,
 (SELECT json_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
 p.names AS publications
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid) JOIN pg_namespace rn ON rn.oid = r.relnamespace
 LEFT JOIN published p ON p.root = r.oid
 WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%' ORDER BY 1, 2`

// outboxColumns are the columns without which the EventRouter stops at an insert.
func outboxColumns(r *report) (columns []string) {
	router := ""
	for _, e := range r.in.List {
		if strings.HasPrefix(e.Name, "transforms.") && strings.TrimSpace(e.Value) == eventRouter {
			router = strings.TrimSuffix(e.Name, "type")
		}
	}
	for _, o := range [][2]string{{"route.by.field", "aggregatetype"}, {"table.field.event.payload", "payload"}, {"table.field.event.key", "aggregateid"}, {"table.field.event.id", "id"}} {
		columns = append(columns, r.or(router+o[0], o[1]))
	}
	return columns
}

// ask finds the outboxes among the tables that the connector captures. It leaves out a table that
// lacks a column of an outbox, because the connector stops at the first insert into such a table.
func (c *captured) ask(catalog []CatalogTable) {
	captures := c.captures()
	publication := c.or("publication.name", "dbz_publication")
	published := func(t CatalogTable) bool { return slices.Contains(t.Publications, publication) }
	exists := slices.ContainsFunc(catalog, published)
	needed := outboxColumns(c.report)
	var without []string
	for _, t := range catalog {
		root := table{t.RootSchema, t.RootName}
		lacks := slices.IndexFunc(needed, func(column string) bool { return !slices.Contains(t.Columns, column) })
		switch {
		case !captures(t.Schema, t.Name), exists && !published(t), slices.Contains(c.tables, root):
		case lacks >= 0:
			without = append(without, fmt.Sprintf("%s has no column %s", table{t.Schema, t.Name}.sql(), needed[lacks]))
		default:
			c.tables = append(c.tables, root)
		}
	}
	re := patterns(c.report, include)
	for i, one := range expressions(c.or(include, "")) {
		if len(re) > i && !slices.ContainsFunc(catalog, func(t CatalogTable) bool { return matchAny(re[i:i+1], t.Schema+"."+t.Name) }) {
			without = append(without, "no table is "+one+", and Debezium ignores it, too")
		}
	}
	c.note = " (by --dsn" + strings.Join(append([]string{""}, without...), "; ") + ")"
	if len(c.tables) == 0 && !c.done[include] {
		c.bad(include, "the connector captures no outbox table: an outbox table has the columns %s%s", strings.Join(needed, ", "), c.note)
	}
}
