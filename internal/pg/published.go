package pg

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// Publishing is what identifies the publication and its entries for the tables, as one statement sees them.
type Publishing struct {
	cdc.Published
	// Settled says that the publication is older than everything that the slot still gives.
	Settled bool
}

// ReadPublishing reads which rows of the catalog publish the tables. It must come after the server's position was read: a
// publication that is as it was is then known to have been so up to that position.
func (n Names) ReadPublishing(ctx context.Context, conn *pgconn.PgConn, version int) (Publishing, error) {
	p := Publishing{Published: cdc.Published{Publication: n.Publication}}
	type entry struct {
		By       string
		OID      uint32 `json:",string"`
		XMin     uint32 `json:",string"`
		Filtered bool
	}
	type table struct {
		Ord     int
		OID     uint32 `json:",string"`
		Entries []entry
	}
	found, err := Rows[struct {
		OID     uint32 `json:",string"`
		XMin    uint32 `json:",string"`
		Settled bool
		Tables  []table
	}](ctx, conn, "read what publication "+n.Publication+" publishes", n.publishingQuery(version))
	if err != nil || len(found) == 0 {
		return p, err
	}
	tables := n.Tables
	p.OID, p.XMin, p.Settled = found[0].OID, found[0].XMin, found[0].Settled
	for _, t := range found[0].Tables {
		if t.Ord < 0 || t.Ord >= len(tables) {
			return p, fmt.Errorf("read what publication %s publishes: %w: table %d", n.Publication, ErrAnswer, t.Ord)
		}
		published := cdc.PublishedTable{Name: tables[t.Ord].String(), OID: t.OID}
		for _, e := range t.Entries {
			published.Entries = append(published.Entries, cdc.PublishedEntry{By: e.By, OID: e.OID, XMin: e.XMin, Filtered: e.Filtered})
		}
		p.Tables = append(p.Tables, published)
	}
	slices.SortFunc(p.Tables, func(a, b cdc.PublishedTable) int { return strings.Compare(a.Name, b.Name) })
	return p, nil
}

// Steady is an error where the publication was found to be in order, and a table has no entry in it: another session is
// changing it.
func (p *Publishing) Steady() error {
	for i := range p.Tables {
		if t := &p.Tables[i]; len(t.Entries) == 0 {
			return fault.Retry(fmt.Errorf("publication %s is being changed at this moment: table %s has no entry in it", p.Publication, t.Name))
		}
	}
	return nil
}

// publishingQuery gives no row where there is no publication. A table is also in a publication by the tables that it is a
// partition of, and by their schemas (15 and newer).
//
// The slot's catalog_xmin is the oldest transaction that may have been open at a position which the slot has confirmed. What
// an older transaction wrote was therefore there before everything that the slot still gives.
func (n Names) publishingQuery(version int) string {
	values := []string{"(-1, NULL::text, NULL::text)"} // there may be no tables
	for i, t := range n.Tables {
		values = append(values, fmt.Sprintf("(%d, %s::text, %s::text)", i, pgname.QuoteLiteral(t.Schema), pgname.QuoteLiteral(t.Name)))
	}
	filtered, schemas := "false", ""
	if version >= 150000 {
		filtered = "pr.prqual IS NOT NULL"
		schemas = ` UNION ALL SELECT t.ord, '` + cdc.PublishedBySchema + `', pn.oid, pn.xmin, false FROM t JOIN pg_class a ON a.oid = ANY (t.above)
  JOIN pg_publication_namespace pn ON pn.pnnspid = a.relnamespace JOIN p ON p.oid = pn.pnpubid`
	}
	return `WITH p AS (SELECT oid, xmin, puballtables FROM pg_publication WHERE pubname = ` + pgname.QuoteLiteral(n.Publication) + `),
 t AS (SELECT v.ord, c.oid, array_append(ARRAY(SELECT relid::oid FROM pg_partition_ancestors(c.oid)), c.oid) AS above
  FROM (VALUES ` + strings.Join(values, ", ") + `) v(ord, nsp, rel) JOIN pg_namespace n ON n.nspname = v.nsp
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = v.rel AND c.relkind IN ('r', 'p')),
 e(ord, by, oid, xmin, filtered) AS (SELECT DISTINCT * FROM (
  SELECT t.ord, '` + cdc.PublishedByTable + `' AS by, pr.oid, pr.xmin, ` + filtered + ` FROM t JOIN pg_publication_rel pr ON pr.prrelid = ANY (t.above) JOIN p ON p.oid = pr.prpubid
  UNION ALL SELECT t.ord, '` + cdc.PublishedByAll + `', NULL, NULL, false FROM t JOIN p ON p.puballtables` + schemas + `) all_of_them)
 SELECT p.oid, p.xmin, (SELECT json_agg(json_build_object('ord', t.ord, 'oid', t.oid, 'entries',
   (SELECT json_agg(json_build_object('by', e.by, 'oid', e.oid, 'xmin', e.xmin, 'filtered', e.filtered) ORDER BY e.by, e.oid) FROM e WHERE e.ord = t.ord))) FROM t) AS tables,
  coalesce((SELECT bool_and(age(x.xmin) > age(s.catalog_xmin)) FROM pg_replication_slots s, (SELECT p.xmin UNION ALL SELECT e.xmin FROM e WHERE e.xmin IS NOT NULL) x
   WHERE s.slot_name = ` + pgname.QuoteLiteral(n.Slot) + `), false) AS settled
 FROM p`
}
