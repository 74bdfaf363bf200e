package cleanup

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

const (
	// ahead is the number of widths of a partition for which future partitions must exist.
	ahead = 3
	// firstWidth is the width of the first partitions of a table.
	firstWidth = 24 * time.Hour
	// remark is the comment of a partition that the cleanup has detached, followed by the name of
	// its table. The cleanup finds the partition by this comment after a crash.
	remark = "walpost: detached, is dropped once everything in it is confirmed; was part of "
	// closed is the name of the constraint that keeps new rows out of a partition: see shut.
	closed = "walpost_closed"
)

// partition is one partition with bounds, as seconds since 1970. MINVALUE and MAXVALUE are infinite.
type partition struct {
	pgname.Table
	from, to float64
	pending  bool // a concurrent detach has begun and not finished
	plain    bool // an ordinary table whose rows are in the WAL; others are never dropped
	closed   bool // the cleanup has added the constraint closed
}

// endless reports whether p has no lower or no upper bound. Such a partition is never dropped.
func (p partition) endless() bool { return math.IsInf(p.to-p.from, 1) }

// partitions returns the partitions of t that have bounds, in their order, and the default partition,
// or nil. It returns an error if t is not partitioned by range of the time column.
func (c *Cleaner) partitions(ctx context.Context, t *pg.TableFacts) (parts []partition, rest *pgname.Table, err error) {
	if !c.cfg.fitsRange(t) {
		return nil, nil, fmt.Errorf("cleanup.mode drop_partitions needs a table with PARTITION BY RANGE (%s); see walpost setup --partitioned", c.cfg.TimeColumn)
	}
	// Postgres prints a bound in the type of the column. All three types can be read as a
	// timestamptz in UTC.
	type child struct {
		Schema, Name                    string
		Pending, Rest, Ordinary, Closed bool
		Begins, Ends                    *string // as text, because JSON has no infinity
	}
	found, err := pg.Rows[child](ctx, c.conn, "look at its partitions", `WITH p AS (
 SELECT n.nspname AS schema, c.relname AS name, i.inhdetachpending AS pending, pg_get_expr(c.relpartbound, c.oid) AS bound,
 c.relkind = 'r' AND c.relpersistence = 'p' AS ordinary, EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = '`+closed+`') AS closed
 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.inhparent = `+strconv.FormatUint(uint64(t.OID), 10)+`)
 SELECT schema, name, pending, ordinary, closed, bound = 'DEFAULT' AS rest,
 CASE WHEN bound LIKE '%FROM (MINVALUE)%' THEN '-Inf' ELSE extract(epoch FROM (regexp_match(bound, 'FROM \(''([^'']+)''\)'))[1]::timestamptz)::text END AS begins,
 CASE WHEN bound LIKE '%TO (MAXVALUE)%' THEN 'Inf' ELSE extract(epoch FROM (regexp_match(bound, 'TO \(''([^'']+)''\)'))[1]::timestamptz)::text END AS ends FROM p ORDER BY 8, 7`)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range found {
		if r.Rest {
			rest = &pgname.Table{Schema: r.Schema, Name: r.Name}
		}
		if r.Begins == nil || r.Ends == nil {
			continue
		}
		p := partition{Table: pgname.Table{Schema: r.Schema, Name: r.Name}, pending: r.Pending, plain: r.Ordinary, closed: r.Closed}
		if p.from, err = strconv.ParseFloat(*r.Begins, 64); err == nil {
			p.to, err = strconv.ParseFloat(*r.Ends, 64)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("look at its partitions: %w", err)
		}
		parts = append(parts, p)
	}
	return parts, rest, nil
}

// plan returns the partitions that must be created for future rows, as bounds in seconds since
// 1970. They have the width of the newest partition. It is pure.
func plan(parts []partition, now float64) (made [][2]float64) {
	width, end, newest := firstWidth.Seconds(), 0.0, 0.0
	for _, p := range parts {
		end = max(end, p.to)
		if p.to > newest && !p.endless() {
			newest, width = p.to, p.to-p.from
		}
	}
	if len(parts) == 0 {
		end = float64(int64(now/width)) * width
	}
	// If the newest partition is old, continue at the present time and leave the gap without
	// partitions.
	if gap := now - end; gap > width {
		end += float64(int64(gap/width)) * width
	}
	for end < now+ahead*width {
		made = append(made, [2]float64{end, end + width})
		end += width
	}
	return made
}

// attachLimit is how long an attempt to attach a partition may take beside a default partition. Postgres looks for rows of the new
// partition in the whole default partition, and nobody can write to it meanwhile.
const attachLimit = 5 * time.Second

// makeAhead creates partitions for future rows. It creates a table and attaches it, which does not
// block writers if there is no default partition.
func (c *Cleaner) makeAhead(ctx context.Context, t *pg.TableFacts) error {
	parts, rest, err := c.partitions(ctx, t)
	if err != nil {
		return err
	}
	clock, err := pg.Row[struct{ Now float64 }](ctx, c.conn, "read the clock", "SELECT extract(epoch FROM now())::float8 AS now")
	if err != nil {
		return err
	}
	var limit []string
	if rest != nil {
		limit = []string{fmt.Sprintf("SET LOCAL statement_timeout = %d", c.limit.Milliseconds())}
		if c.resting(t.Table) {
			return nil
		}
	}
	for _, p := range plan(parts, clock.Now) {
		from, to := stamp(p[0]), stamp(p[1])
		part := pgname.Table{Schema: t.Schema, Name: partName(t.Name, p[0], p[1]-p[0])}
		// Use one transaction, because a table that is not attached would block the next attempt.
		err := c.change(ctx, "create partition "+part.String(), append(slices.Clip(limit),
			fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING ALL EXCLUDING IDENTITY)", part.SQL(), t.SQL()),
			fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)", t.SQL(), part.SQL(), pgname.QuoteLiteral(from), pgname.QuoteLiteral(to)))...)
		switch {
		case pg.SQLState(err) == pg.StateCheck && rest != nil:
			c.note("partition %s is not created, because the default partition %s has rows from %s to %s", part, rest, from, to)
			continue
		case rest != nil && pg.SQLState(err) == pg.StateCancelled: // INSERTs go to the default partition, so none fails
			c.tooLong(t.Table, "partition %s is not created, because Postgres needs more than %s to look for its rows in the default partition %s", part, c.limit, rest)
			return nil
		case givesWay(err) && p[0] > clock.Now+p[1]-p[0]:
			return nil // the next pass tries again
		case err != nil:
			return err
		}
		c.update(func(s *Status) { s.Made++ })
		c.cfg.Logger.Info("partition created", "partition", part.String(), "from", from, "to", to)
	}
	return nil
}

func stamp(seconds float64) string {
	return time.UnixMicro(int64(seconds * 1e6)).UTC().Format("2006-01-02 15:04:05.999999Z07:00")
}

// partName is the table's name, shortened if needed, and the start of the partition.
func partName(table string, from, width float64) string {
	layout := "20060102"
	if width < firstWidth.Seconds() {
		layout = "20060102_150405"
	}
	suffix := "_p" + time.Unix(int64(from), 0).UTC().Format(layout)
	return pgname.CutName(table, len(suffix)) + suffix
}

// dropOld detaches partitions whose rows are all old and delivered, and drops detached partitions.
// Rows can be written to an old partition until it is shut. Therefore it is checked three times:
// before it is shut, after it is shut, and before it is dropped.
func (c *Cleaner) dropOld(ctx context.Context, t *pg.TableFacts, below uint64) error {
	parts, rest, err := c.partitions(ctx, t)
	if err != nil {
		return err
	}
	if rest != nil {
		has, err := pg.Row[struct{ Rows bool }](ctx, c.conn, "look into "+rest.String(), "SELECT EXISTS (SELECT FROM ONLY "+rest.SQL()+") AS rows")
		if err != nil && pg.SQLState(err) != pg.StateNoRight { // the owner of t may drop partitions without reading this one
			return err
		}
		if has.Rows {
			c.note("the default partition %s has rows, which the cleanup never removes (docs/cleanup.md says how to give the partition bounds)", rest)
		}
	}
	var failed error
	for _, p := range parts {
		if p.endless() {
			c.note("partition %s has no lower or no upper bound, so the cleanup never drops it (docs/cleanup.md says how to give it bounds)", p)
			continue
		}
		if !p.pending && !p.plain {
			c.note("partition %s is never dropped, because it is partitioned itself, foreign or unlogged", p)
			continue
		}
		// A partition that cannot be detached, for example because of a foreign key, keeps no other one.
		if err := c.lacks(p.Table, c.detachOld(ctx, t.Table, p, below, rest != nil)); err != nil {
			failed = cmp.Or(failed, err)
			if !c.usable() {
				return failed
			}
		}
	}
	return cmp.Or(failed, c.dropDetached(ctx, t.Table, below))
}

// detachOld detaches p if it is old and has no row that must stay.
func (c *Cleaner) detachOld(ctx context.Context, t pgname.Table, p partition, below uint64, hasDefault bool) error {
	if p.pending {
		err := c.exec(ctx, "finish detaching "+p.String(), fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s FINALIZE", t.SQL(), p.SQL()))
		if givesWay(err) {
			return nil
		}
		delete(c.rests, p.Table)
		return err // it already has its remark
	}
	old, err := c.old(ctx, p)
	switch {
	case err != nil:
		return err
	case !old && p.closed: // the time to keep has become longer
		return c.change(ctx, "open "+p.String(), "ALTER TABLE "+p.SQL()+" DROP CONSTRAINT "+closed, "COMMENT ON TABLE "+p.SQL()+" IS NULL")
	case !old:
		return nil
	}
	return c.attempt(ctx, p.Table, below, func() (look, error) { return c.detach(ctx, t, p, below, hasDefault) })
}

// old reports whether the end of p is older than the time to keep.
func (c *Cleaner) old(ctx context.Context, p partition) (bool, error) {
	is, err := pg.Row[struct{ Old bool }](ctx, c.conn, "compare with the clock", fmt.Sprintf("SELECT to_timestamp('%s'::float8) <= now() - interval '%s' AS old",
		strconv.FormatFloat(p.to, 'f', -1, 64), interval(c.cfg.Keep)))
	return is.Old, err
}

// pieceBlocks is how many blocks of a partition one statement reads: 64 MiB, as blocks are
// everywhere.
const pieceBlocks = 8192

// A look is what the cleanup found in a partition.
type look struct {
	done  bool   // no row has to stay; of an attempt: the partition is detached or dropped
	place string // the ctid of a row that has to stay; "" if something else keeps the partition for now
}

// attempt has work remove a partition, unless the row is still there that kept it the last time, or the
// last attempt has taken so long that the next one has to wait. So a partition of many GB is not read
// again in each pass because of one row at its end.
func (c *Cleaner) attempt(ctx context.Context, t pgname.Table, below uint64, work func() (look, error)) error {
	if place := c.rests[t].place; place != "" {
		found, err := c.staying(ctx, t, below, "t.ctid = "+pgname.QuoteLiteral(place)+"::tid")
		if found.place != "" || err != nil {
			return err
		}
	}
	if c.resting(t) {
		return nil
	}
	began := time.Now()
	found, err := work()
	delete(c.rests, t)
	if !found.done {
		c.rest(t, time.Since(began), found.place)
	}
	return err
}

// allDelivered looks for a row of the table that has to stay: its transaction is not below the
// transaction id, or its event is dead or parked. It reads one piece per transaction, so that a large
// table neither holds back VACUUM nor exceeds the timeout of a statement. It misses rows that are
// written to a piece after the piece was read. Therefore the answer is reliable only for a table that
// takes no more rows.
func (c *Cleaner) allDelivered(ctx context.Context, t pgname.Table, below uint64) (look, error) {
	session, file := c.cfg.Progress().Session, int64(-1)
	for from := int64(0); ; from += c.piece {
		if p := c.cfg.Progress(); p.Session == 0 || p.Session != session {
			return look{}, nil // the knowledge of another session does not count
		}
		piece, err := pg.Row[struct {
			File, Blocks int64
			Place        string
			Kept         bool
		}](ctx, c.conn, "look into "+t.String(), c.lookInto(t, below, from, min(from+c.piece, math.MaxUint32)))
		if err != nil {
			return look{}, err
		}
		switch {
		case piece.Place != "":
			c.noteKept(t, piece.Kept)
			return look{place: piece.Place}, nil
		case file >= 0 && file != piece.File: // VACUUM FULL has moved rows, perhaps into pieces that were already read
			return look{}, nil
		case from+c.piece >= piece.Blocks:
			return look{done: true}, nil
		}
		file = piece.File
	}
}

// lookInto returns the table's file, its size in blocks, and a row of the blocks in [from, to) that has
// to stay. The statement locks the table, so the file does not change while it reads.
func (c *Cleaner) lookInto(t pgname.Table, below uint64, from, to int64) string {
	return fmt.Sprintf(`SELECT pg_relation_filenode(%[1]s::regclass)::int8 AS file, pg_relation_size(%[1]s::regclass) / current_setting('block_size')::int8 AS blocks,
 place, kept FROM (SELECT) one LEFT JOIN LATERAL (%[2]s) found ON true`,
		pgname.QuoteLiteral(t.SQL()), c.stays(t, below, fmt.Sprintf("t.ctid >= '(%d,0)'::tid AND t.ctid < '(%d,0)'::tid", from, to)))
}

// stays selects a row of t that has to stay, among those that where selects.
func (c *Cleaner) stays(t pgname.Table, below uint64, where string) string {
	return fmt.Sprintf("SELECT t.ctid::text AS place, %[1]s AS kept FROM ONLY %[2]s t, %[3]s r WHERE %[4]s AND (NOT %[5]s OR %[1]s) LIMIT 1",
		c.keep, t.SQL(), next, where, delivered(strconv.FormatUint(below, 10)))
}

// staying reads a row of t that has to stay, among those that where selects.
func (c *Cleaner) staying(ctx context.Context, t pgname.Table, below uint64, where string) (look, error) {
	found, err := pg.Rows[struct {
		Place string
		Kept  bool
	}](ctx, c.conn, "look into "+t.String(), c.stays(t, below, where))
	if err != nil || len(found) == 0 {
		return look{}, err
	}
	c.noteKept(t, found[0].Kept)
	return look{place: found[0].Place}, nil
}

func (c *Cleaner) noteKept(t pgname.Table, kept bool) {
	if kept {
		c.note("partition %s stays: it has rows of dead or parked events (walpost dead list)", t)
	}
}

func (c *Cleaner) detach(ctx context.Context, t pgname.Table, p partition, below uint64, hasDefault bool) (look, error) {
	if found, err := c.allDelivered(ctx, p.Table, below); err != nil || !found.done {
		return found, err
	}
	if !p.closed {
		if done, err := c.shut(ctx, t, p); err != nil || !done {
			return look{}, err
		}
		if found, err := c.allDelivered(ctx, p.Table, below); err != nil || !found.done {
			return found, err // the new row is published as usual, because the partition is still attached
		}
	}
	how := " CONCURRENTLY"
	if hasDefault {
		how = "" // CONCURRENTLY is not allowed with a default partition; lock_timeout bounds the wait
	}
	err := c.exec(ctx, "detach "+p.String(),
		fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s%s", t.SQL(), p.SQL(), how))
	if givesWay(err) {
		return look{}, nil // another pass finishes it
	}
	if err != nil {
		return look{}, err
	}
	c.cfg.Logger.Info("partition detached", "partition", p.String())
	return look{done: true}, nil
}

// shut keeps new rows out of p. done is false if the partition is in use.
//
// During a concurrent detach, a transaction with an older view (repeatable read, or a long
// statement) can still write to the partition. Postgres does not publish that row, because logical
// decoding sees a partition that is detached
// (TestARowCannotBeWrittenToAPartitionThatIsBeingDetached). Therefore the partition is shut while
// it is attached. All its writers have ended then, and a later writer gets an error instead of
// losing an event.
func (c *Cleaner) shut(ctx context.Context, t pgname.Table, p partition) (done bool, err error) {
	err = c.change(ctx, "close "+p.String(),
		"ALTER TABLE "+p.SQL()+" ADD CONSTRAINT "+closed+" CHECK (false) NOT VALID",
		fmt.Sprintf("COMMENT ON TABLE %s IS %s", p.SQL(), pgname.QuoteLiteral(remark+t.Schema+"."+t.Name)))
	if givesWay(err) {
		return false, nil
	}
	return err == nil, err
}

// change runs statements in one transaction.
func (c *Cleaner) change(ctx context.Context, step string, sql ...string) error {
	err := c.exec(ctx, step, append(append([]string{"BEGIN"}, sql...), "COMMIT")...)
	if err != nil {
		_ = c.exec(ctx, "roll back", "ROLLBACK") // if this fails too, the connection is closed
	}
	return err
}

// dropDetached drops the partitions that this or an earlier process has detached, when all their rows
// are delivered.
func (c *Cleaner) dropDetached(ctx context.Context, t pgname.Table, below uint64) error {
	found, err := pg.Rows[pgname.Table](ctx, c.conn, "find detached partitions", `SELECT n.nspname AS schema, c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND NOT c.relispartition AND obj_description(c.oid, 'pg_class') = `+pgname.QuoteLiteral(remark+t.Schema+"."+t.Name)+`
 AND EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = '`+closed+`')`)
	if err != nil {
		return err
	}
	var failed error
	for _, part := range found {
		err := c.attempt(ctx, part, below, func() (look, error) {
			found, err := c.allDelivered(ctx, part, below)
			if err != nil || !found.done {
				return found, err
			}
			if err = c.exec(ctx, "drop "+part.String(), "DROP TABLE "+part.SQL()); err != nil {
				return look{}, err
			}
			c.update(func(s *Status) { s.Partitions++ })
			c.cfg.Logger.Info("partition dropped", "partition", part.String())
			return found, nil
		})
		if err != nil && !givesWay(err) {
			failed = cmp.Or(failed, c.lacks(part, err))
			if !c.usable() {
				break
			}
		}
	}
	return failed
}
