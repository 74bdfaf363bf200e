package cleanup

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/walpost/walpost/internal/pg"
)

const (
	// ahead is for how many widths of a partition there must be room for rows to come.
	ahead = 3
	// firstWidth is the width of partitions of a table that has none yet.
	firstWidth = 24 * time.Hour
	// remark is the comment of a partition that was detached by us, before the name of the table that it was part of. It is how it is
	// found again after a crash.
	remark = "walpost: detached, is dropped once everything in it is confirmed; was part of "
	// closed is the name of the constraint that lets no row into a partition any more: see shut.
	closed = "walpost_closed"
)

func remarkOn(t pg.Table) string { return remark + t.Schema + "." + t.Name }

// partition is one partition with bounds, as seconds since 1970.
type partition struct {
	pg.Table
	from, to float64
	pending  bool // a detach was begun
	plain    bool // an ordinary table whose rows are in the WAL; others are not looked into
	closed   bool // takes no rows any more, because of us
}

// partitions returns the partitions of t with both bounds, in their order. The error says why t is not partitioned in the way
// that is wanted here.
func (c *Cleaner) partitions(ctx context.Context, t pg.Table) (parts []partition, hasDefault bool, err error) {
	oid := "to_regclass(" + pg.QuoteLiteral(t.SQL()) + ")"
	ranged, err := pg.Rows[struct{}](ctx, c.conn, "look at its partitions", `SELECT 1
 FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
 WHERE p.partrelid = `+oid+` AND p.partstrat = 'r' AND p.partnatts = 1 AND a.attname = `+pg.QuoteLiteral(c.cfg.TimeColumn))
	if err != nil {
		return nil, false, err
	}
	if len(ranged) == 0 {
		return nil, false, fmt.Errorf("cleanup.mode drop_partitions needs a table that is PARTITION BY RANGE (%s); see walpost setup --partitioned", c.cfg.TimeColumn)
	}
	// A bound is printed in the type of the column; read as a timestamptz in UTC it says the same for all three types.
	type child struct {
		Schema, Name                    string
		Pending, Rest, Ordinary, Closed bool
		Begins, Ends                    *string // as text, because JSON has no infinity
	}
	found, err := pg.Rows[child](ctx, c.conn, "look at its partitions", `WITH p AS (
 SELECT n.nspname AS schema, c.relname AS name, i.inhdetachpending AS pending, pg_get_expr(c.relpartbound, c.oid) AS bound,
 c.relkind = 'r' AND c.relpersistence = 'p' AS ordinary, EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = '`+closed+`') AS closed
 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.inhparent = `+oid+`)
 SELECT schema, name, pending, ordinary, closed, bound = 'DEFAULT' AS rest,
 extract(epoch FROM (regexp_match(bound, 'FROM \(''([^'']+)''\)'))[1]::timestamptz)::text AS begins,
 extract(epoch FROM (regexp_match(bound, 'TO \(''([^'']+)''\)'))[1]::timestamptz)::text AS ends FROM p ORDER BY 8, 7`)
	if err != nil {
		return nil, false, err
	}
	for _, r := range found {
		hasDefault = hasDefault || r.Rest
		if r.Begins == nil || r.Ends == nil {
			continue // MINVALUE, MAXVALUE, DEFAULT: not of ours
		}
		p := partition{Table: pg.Table{Schema: r.Schema, Name: r.Name}, pending: r.Pending, plain: r.Ordinary, closed: r.Closed}
		if p.from, err = strconv.ParseFloat(*r.Begins, 64); err == nil {
			p.to, err = strconv.ParseFloat(*r.Ends, 64)
		}
		if err != nil {
			return nil, false, fmt.Errorf("look at its partitions: %w", err)
		}
		parts = append(parts, p)
	}
	return parts, hasDefault, nil
}

// plan says which partitions must be made so that there is room for rows to come: from and to in seconds since 1970, as many widths
// of the newest partition as are needed. It is pure.
func plan(parts []partition, now float64) (made [][2]float64) {
	width, end := firstWidth.Seconds(), 0.0
	if len(parts) > 0 {
		for _, p := range parts {
			if p.to > end {
				end, width = p.to, p.to-p.from
			}
		}
	} else {
		end = float64(int64(now/width)) * width
	}
	// A table that was left alone for a long time begins again at the present one; what is in between stays without partitions.
	if gap := now - end; gap > width {
		end += float64(int64(gap/width)) * width
	}
	for end < now+ahead*width {
		made = append(made, [2]float64{end, end + width})
		end += width
	}
	return made
}

// makeAhead makes partitions for the rows to come. A table is made beside and then attached, which locks out nobody who writes.
func (c *Cleaner) makeAhead(ctx context.Context, t pg.Table) error {
	parts, _, err := c.partitions(ctx, t)
	if err != nil {
		return err
	}
	clock, err := pg.Row[struct{ Now float64 }](ctx, c.conn, "read the clock", "SELECT extract(epoch FROM now())::float8 AS now")
	if err != nil {
		return err
	}
	for _, p := range plan(parts, clock.Now) {
		from, to := stamp(p[0]), stamp(p[1])
		part := pg.Table{Schema: t.Schema, Name: partName(t.Name, p[0], p[1]-p[0])}
		// One transaction: a table that was made and not attached would be in the way of the next attempt.
		err := c.change(ctx, "make partition "+part.String(),
			fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING ALL EXCLUDING IDENTITY)", part.SQL(), t.SQL()),
			fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)", t.SQL(), part.SQL(), pg.QuoteLiteral(from), pg.QuoteLiteral(to)))
		if givesWay(err) {
			return nil // there is time
		}
		if err != nil {
			return err
		}
		c.update(func(s *Status) { s.Made++ })
		c.cfg.Logger.Info().Str("partition", part.String()).Str("from", from).Str("to", to).Msg("partition made")
	}
	return nil
}

func stamp(seconds float64) string {
	return time.UnixMicro(int64(seconds * 1e6)).UTC().Format("2006-01-02 15:04:05.999999Z07:00")
}

// partName is the table's name, shortened where it must be, and when the partition begins.
func partName(table string, from, width float64) string {
	layout := "20060102"
	if width < firstWidth.Seconds() {
		layout = "20060102_150405"
	}
	suffix := "_p" + time.Unix(int64(from), 0).UTC().Format(layout)
	if most := 63 - len(suffix); len(table) > most {
		table = table[:most]
	}
	return table + suffix
}

// dropOld detaches partitions in which everything is old and delivered, and drops those that were detached. A row may be written to
// an old partition until it is shut, so it is looked into three times: before, so that none is shut too early, when it is shut, and before
// it is dropped.
func (c *Cleaner) dropOld(ctx context.Context, t pg.Table, below uint64) error {
	parts, hasDefault, err := c.partitions(ctx, t)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.pending {
			err := c.exec(ctx, "finish detaching "+p.String(), fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s FINALIZE", t.SQL(), p.SQL()))
			if err != nil && !givesWay(err) {
				return err
			}
			continue // its remark was written before
		}
		if !p.plain {
			c.hint("partition " + p.String() + " is not an ordinary logged table (partitioned itself, foreign or unlogged): it is never dropped")
			continue
		}
		if err := c.detach(ctx, t, p, below, hasDefault); err != nil {
			return err
		}
	}
	return c.dropDetached(ctx, t, below)
}

// old says whether the newest row that p may have is older than wanted.
func (c *Cleaner) old(ctx context.Context, p partition) (bool, error) {
	is, err := pg.Row[struct{ Old bool }](ctx, c.conn, "compare with the clock", fmt.Sprintf("SELECT to_timestamp('%s'::float8) <= now() - interval '%s' AS old",
		strconv.FormatFloat(p.to, 'f', -1, 64), interval(c.cfg.Keep)))
	return is.Old, err
}

// pieceBlocks is how many blocks of a partition one statement reads: 64 MiB, as blocks are everywhere.
const pieceBlocks = 8192

// allDelivered says whether every row of the table is below the transaction id. It reads piece after piece, each in a transaction of its
// own, so that a large table neither holds back VACUUM nor takes longer than a statement may. What is written meanwhile into a piece
// that was read is not seen: only what is said of a table that takes no rows any more can be relied on.
func (c *Cleaner) allDelivered(ctx context.Context, t pg.Table, below uint64) (bool, error) {
	session, file := c.cfg.Progress().Session, int64(-1)
	for from := int64(0); ; from += c.piece {
		if p := c.cfg.Progress(); p.Session == 0 || p.Session != session {
			return false, nil // what was known holds no more
		}
		piece, err := pg.Row[struct {
			File, Blocks int64
			Delivered    bool
		}](ctx, c.conn, "look into "+t.String(), lookInto(t, below, from, min(from+c.piece, math.MaxUint32)))
		if err != nil {
			return false, err
		}
		switch {
		case !piece.Delivered:
			return false, nil
		case file >= 0 && file != piece.File: // VACUUM FULL has moved the rows: those of the pieces to come may be in the pieces that were read
			return false, nil
		case from+c.piece >= piece.Blocks:
			return true, nil
		}
		file = piece.File
	}
}

// lookInto gives the table's file, its size in blocks, and whether all rows of the blocks in [from, to) are below the transaction
// id. A statement holds a lock on its table, so file and size are those that it reads.
func lookInto(t pg.Table, below uint64, from, to int64) string {
	return fmt.Sprintf(`SELECT pg_relation_filenode(%[1]s::regclass)::int8 AS file, pg_relation_size(%[1]s::regclass) / current_setting('block_size')::int8 AS blocks,
 NOT EXISTS (SELECT FROM ONLY %[2]s t, %[3]s r WHERE t.ctid >= '(%[4]d,0)'::tid AND t.ctid < '(%[5]d,0)'::tid AND NOT %[6]s) AS delivered`,
		pg.QuoteLiteral(t.SQL()), t.SQL(), next, from, to, delivered(strconv.FormatUint(below, 10)))
}

func (c *Cleaner) detach(ctx context.Context, t pg.Table, p partition, below uint64, hasDefault bool) error {
	old, err := c.old(ctx, p)
	if err != nil {
		return err
	}
	if !old {
		if p.closed { // rows are to be kept for longer than before
			return c.change(ctx, "open "+p.String(), "ALTER TABLE "+p.SQL()+" DROP CONSTRAINT "+closed, "COMMENT ON TABLE "+p.SQL()+" IS NULL")
		}
		return nil
	}
	if all, err := c.allDelivered(ctx, p.Table, below); err != nil || !all {
		return err
	}
	if !p.closed {
		if done, err := c.shut(ctx, t, p); err != nil || !done {
			return err
		}
		if all, err := c.allDelivered(ctx, p.Table, below); err != nil || !all {
			return err // the row that came meanwhile is published as ever: the partition is still there
		}
	}
	how := " CONCURRENTLY"
	if hasDefault {
		how = "" // Postgres cannot do it concurrently beside a default partition; lock_timeout bounds the wait
	}
	err = c.exec(ctx, "detach "+p.String(),
		fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s%s", t.SQL(), p.SQL(), how))
	if givesWay(err) {
		return nil // begun, it is finished in another pass
	}
	if err == nil {
		c.cfg.Logger.Info().Str("partition", p.String()).Msg("partition detached")
	}
	return err
}

// shut lets no row into p any more. false: others use it.
//
// While a partition is being detached concurrently, a transaction that sees it as it was (repeatable read, or a long statement) can still
// write to it, and Postgres does not publish that row: to logical decoding the partition is no part of the table any more
// (TestARowCannotBeWrittenToAPartitionThatIsBeingDetached). So the partition is shut first, while it is still a part: whoever
// has written to it has ended then, and whoever comes later gets an error instead of losing an event.
func (c *Cleaner) shut(ctx context.Context, t pg.Table, p partition) (done bool, err error) {
	err = c.change(ctx, "close "+p.String(),
		"ALTER TABLE "+p.SQL()+" ADD CONSTRAINT "+closed+" CHECK (false) NOT VALID",
		fmt.Sprintf("COMMENT ON TABLE %s IS %s", p.SQL(), pg.QuoteLiteral(remarkOn(t))))
	if givesWay(err) {
		return false, nil
	}
	return err == nil, err
}

// change runs statements in one transaction.
func (c *Cleaner) change(ctx context.Context, step string, sql ...string) error {
	err := c.exec(ctx, step, append(append([]string{"BEGIN"}, sql...), "COMMIT")...)
	if err != nil {
		_ = c.exec(ctx, "roll back", "ROLLBACK") // the connection is dropped when that fails, too
	}
	return err
}

// dropDetached drops what we have detached, in this life or in an earlier one, once all of it is delivered.
func (c *Cleaner) dropDetached(ctx context.Context, t pg.Table, below uint64) error {
	found, err := pg.Rows[pg.Table](ctx, c.conn, "find detached partitions", `SELECT n.nspname AS schema, c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND NOT c.relispartition AND obj_description(c.oid, 'pg_class') = `+pg.QuoteLiteral(remarkOn(t))+`
 AND EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = '`+closed+`')`)
	if err != nil {
		return err
	}
	for _, part := range found {
		all, err := c.allDelivered(ctx, part, below)
		if err != nil {
			return err
		}
		if !all {
			continue
		}
		err = c.exec(ctx, "drop "+part.String(), "DROP TABLE "+part.SQL())
		if givesWay(err) {
			continue
		}
		if err != nil {
			return err
		}
		c.update(func(s *Status) { s.Partitions++ })
		c.cfg.Logger.Info().Str("partition", part.String()).Msg("partition dropped")
	}
	return nil
}
