package cleanup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// prepare sets up a new connection.
func (c *Cleaner) prepare(ctx context.Context) error {
	// Other users of the table have priority. A policy that hides rows must cause an error, because
	// a hidden row looks delivered.
	if err := c.exec(ctx, "cleanup", "SET lock_timeout = '1s'", "SET row_security = off"); err != nil {
		return err
	}
	user, err := pg.Row[struct{ Role string }](ctx, c.conn, "read the role", "SELECT current_user AS role")
	c.role = user.Role
	return err
}

// look reads the tables' definitions in each pass, so that a hint disappears after the index was created.
func (c *Cleaner) look(ctx context.Context) error {
	hints := slices.Clone(c.notes)
	c.filtered = false
	var f pg.Facts
	if err := (pg.Names{Publication: c.cfg.Publication, Tables: c.cfg.Tables}).DescribePublished(ctx, c.conn, &f); err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	c.tables = f.Tables
	for i := range c.tables {
		t := &c.tables[i]
		if !t.Exists() {
			return fmt.Errorf("cleanup: table %s does not exist", t)
		}
		var l condition.List
		filter := f.Publication.Filter(t.Table)
		c.filtered = c.filtered || filter != ""
		switch c.cfg.Conditions(&l, t, filter); {
		case !c.cfg.hasTime(t):
			return fmt.Errorf("cleanup: %s", text(&l.Found[0]))
		case !c.cfg.fitsRange(t): // the error of this table alone: see partitions
		default:
			for i := range l.Found {
				hints = append(hints, text(&l.Found[i]))
			}
		}
	}
	c.update(func(s *Status) {
		if strings.Join(s.Hints, "\n") != strings.Join(hints, "\n") {
			for _, h := range hints {
				c.cfg.Logger.Warn("cleanup: " + h)
			}
		}
		s.Hints = hints
	})
	return nil
}

// deleteOld deletes the old, delivered rows of t, or moves them to the archive, in batches.
//
// The rows of a partitioned table are in its partitions, and a ctid is unique only within a partition. The
// rows of foreign and unlogged partitions are not in the WAL, so their xmin does not tell whether they were
// delivered.
func (c *Cleaner) deleteOld(ctx context.Context, t *pg.TableFacts, below uint64) (failed error) {
	for _, leaf := range t.Stores() {
		if err := c.deleteFrom(ctx, t.Table, leaf, below); err != nil {
			failed = cmp.Or(failed, c.lacks(leaf, err))
			if !c.usable() {
				break
			}
		}
	}
	return failed
}

// A search is what earlier passes found in a table: no row before from can go, as long as the same
// transactions are known to be delivered and the same events are open. So a backlog isn't read in each
// pass while Kafka is down. A row that came after the mark has a transaction id that isn't below it,
// whatever its time is. A row that was locked is found with the next mark, because who locks a row has a
// transaction id.
type search struct {
	below uint64
	keep  string // Cleaner.keep
	from  string // a time, as the server prints it
}

// deleteFrom removes rows of leaf, which is t or a partition of t.
func (c *Cleaner) deleteFrom(ctx context.Context, t, leaf pgname.Table, below uint64) error {
	if c.resting(leaf) {
		return nil
	}
	column, session, at := pgname.QuoteIdent(c.cfg.TimeColumn), c.cfg.Progress().Session, c.searched[leaf]
	if at.below != below || at.keep != c.keep {
		at = search{below: below, keep: c.keep, from: "-infinity"}
	}
	// A batch begins at the time at which the last one ended, because the index still has the
	// deleted rows.
	old := `WITH old AS MATERIALIZED (
  SELECT t.ctid FROM ONLY ` + leaf.SQL() + ` t, ` + next + ` r
  WHERE t.` + column + ` < now() - $1::interval AND t.` + column + ` >= $2 AND ` + delivered("$3") + ` AND NOT ` + c.keep + `
  ORDER BY t.` + column + ` LIMIT $4 FOR UPDATE OF t SKIP LOCKED)`
	sql := old + `,
 gone AS (DELETE FROM ONLY ` + leaf.SQL() + ` t WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING t.` + column + ` AS at)
 SELECT count(*), max(at), now() - $1::interval FROM gone`
	for {
		if p := c.cfg.Progress(); p.Session == 0 || p.Session != session {
			return nil // the knowledge of another session does not count
		}
		began := time.Now()
		args := [][]byte{[]byte(interval(c.cfg.Keep)), []byte(at.from), strconv.AppendUint(nil, below, 10), strconv.AppendInt(nil, int64(c.cfg.Batch), 10)}
		var row [][]byte
		var err error
		if c.cfg.Mode == MoveToArchive {
			row, err = c.moveBatch(ctx, t, leaf, old, args)
		} else {
			row, err = c.one(ctx, "delete", sql, args)
		}
		if pg.SQLState(err) == pg.StateCancelled {
			delete(c.searched, leaf)
			c.tooLong(leaf, "a batch of %s takes longer than statement_timeout: no row is removed there, and walpost tries again after %s", leaf, tooLongRest)
			return nil
		}
		if givesWay(err) {
			c.cfg.Logger.Debug("the cleanup stops its pass, because the table is in use", "err", err, "table", leaf.String())
			c.waits(fmt.Sprintf("%s is locked: %s", leaf, err))
			return nil
		}
		n := 0
		if err == nil {
			n, err = strconv.Atoi(string(row[0]))
		}
		if err != nil {
			return err
		}
		c.update(func(s *Status) { s.Rows += uint64(n) })
		if n < c.cfg.Batch {
			at.from = string(row[2])
			c.searched[leaf] = at
			return nil
		}
		at.from = string(row[1])
		// Leave half of the time to others.
		if !wait.For(ctx, max(leastPause, time.Since(began))) {
			return ctx.Err()
		}
	}
}
