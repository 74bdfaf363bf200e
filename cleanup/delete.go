package cleanup

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/pg"
)

// timeTypes are the types that the time column may have.
var timeTypes = map[string]bool{"timestamp with time zone": true, "timestamp without time zone": true, "date": true}

// prepare is once for each connection.
func (c *Cleaner) prepare(ctx context.Context) error {
	// Whoever uses the table goes first.
	// And a policy that hides rows from us must be an error: what is hidden looks delivered.
	return c.exec(ctx, "cleanup", "SET lock_timeout = '1s'", "SET row_security = off")
}

// look is at the tables' definitions, once for each pass: an index that was made in the meantime is not asked for any more.
func (c *Cleaner) look(ctx context.Context) error {
	var hints []string
	for _, t := range c.cfg.Tables {
		found, err := c.rows(ctx, "look at the table", `SELECT format_type(a.atttypid, NULL),
 EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisvalid AND i.indkey[0] = a.attnum AND i.indpred IS NULL),
 CASE c.relkind WHEN 'p' THEN '' ELSE ' CONCURRENTLY' END
 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND a.attnum > 0 AND NOT a.attisdropped`, t.Schema, t.Name, c.cfg.TimeColumn)
		if err != nil {
			return fmt.Errorf("cleanup of %s: %w", t, err)
		}
		if len(found) == 0 {
			return fmt.Errorf("cleanup of %s: there is no column %q (source.time_column)", t, c.cfg.TimeColumn)
		}
		if typ := *found[0][0]; !timeTypes[typ] {
			return fmt.Errorf("cleanup of %s: source.time_column must be a timestamptz, timestamp or date (column %s is a %s)", t, c.cfg.TimeColumn, typ)
		}
		if *found[0][1] != "t" && c.cfg.Mode == Delete {
			hints = append(hints, fmt.Sprintf("every pass reads the whole table; run: CREATE INDEX%s ON %s (%s);", *found[0][2], t.SQL(), pg.QuoteIdent(c.cfg.TimeColumn)))
		}
	}
	c.update(func(s *Status) {
		if strings.Join(s.Hints, "\n") != strings.Join(hints, "\n") {
			for _, h := range hints {
				c.cfg.Logger.Warn().Msg("cleanup: " + h)
			}
		}
		s.Hints = hints
	})
	return nil
}

// deleteOld deletes what was delivered and is old, batch after batch, until there is no more.
func (c *Cleaner) deleteOld(ctx context.Context, t pg.Table, below uint64) error {
	// The parent's rows are in its partitions, and a ctid names a row only within one of them. The rows of foreign and of unlogged
	// ones are not in the WAL: their xmin says nothing of delivery.
	leaves, err := c.rows(ctx, "find its partitions", `SELECT n.nspname, c.relname FROM pg_partition_tree(to_regclass($1)) p
 JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.isleaf AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY 1, 2`, t.SQL())
	if err != nil {
		return err
	}
	if len(leaves) == 0 {
		leaves = [][]*string{{&t.Schema, &t.Name}}
	}
	for _, l := range leaves {
		leaf := pg.Table{Schema: *l[0], Name: *l[1]}
		if err := c.deleteFrom(ctx, leaf, below); err != nil {
			return c.lacks(leaf, err)
		}
	}
	return nil
}

func (c *Cleaner) deleteFrom(ctx context.Context, t pg.Table, below uint64) error {
	column, session := pg.QuoteIdent(c.cfg.TimeColumn), c.cfg.Progress().Session
	// A pass goes through the rows by time and begins where the last batch ended, because the index still has what was deleted.
	sql := `WITH old AS MATERIALIZED (
  SELECT t.ctid FROM ONLY ` + t.SQL() + ` t, ` + next + ` r
  WHERE t.` + column + ` < now() - $1::interval AND t.` + column + ` >= $2 AND ` + delivered("$3") + `
  ORDER BY t.` + column + ` LIMIT $4 FOR UPDATE OF t SKIP LOCKED),
 gone AS (DELETE FROM ONLY ` + t.SQL() + ` t WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING t.` + column + ` AS at)
 SELECT count(*)::text, max(at)::text FROM gone`
	for from := "-infinity"; ; {
		if p := c.cfg.Progress(); p.Session == 0 || p.Session != session {
			return nil // what was known holds no more
		}
		began := time.Now()
		res, err := c.rows(ctx, "delete", sql, interval(c.cfg.Keep), from, strconv.FormatUint(below, 10), strconv.Itoa(c.cfg.Batch))
		if givesWay(err) {
			c.cfg.Logger.Debug().Err(err).Str("table", t.String()).Msg("cleanup gives way")
			c.waits(fmt.Sprintf("%s: others use it, or a batch takes too long: %s", t, err))
			return nil
		}
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(text(res))
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		c.update(func(s *Status) { s.Rows += uint64(n) })
		if n < c.cfg.Batch {
			return nil
		}
		from = *res[0][1]
		// Half of the time is others'.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(leastPause, time.Since(began))):
		}
	}
}
