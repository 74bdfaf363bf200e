package poll

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// The rules of the strategy cursor
//
// A position is a transaction id of 64 bits. All rows of transactions below it are delivered.
//
// A look at the table takes a snapshot. Below its xmin, X, every transaction has ended, and no other
// id says that: a transaction whose row is visible may have a lower id than one that still runs. So
// only rows below X are delivered. They are delivered together, as one range, which is one
// transaction for the relay.
//
// The end of a range is one above the largest id of its rows, and not X. The server gives out an id
// again if it crashes before anything with that id is in its WAL on disk. So a position must never be
// above the largest id that is known to be there. For the same reason a range is given only when the
// WAL is flushed up to where it was written when the snapshot was taken: the server shows rows of a
// transaction with synchronous_commit = off earlier.
//
// Ids are not the order of commits. If two writers take turns at a key, the second one may have the
// lower id, because it began first and then waited. But its row has the larger number in the order
// column, because it inserts after it has waited. So the rows of a range are ordered by the order
// column. Ranges must not divide two such rows wrongly: a range ends before each row that would
// overtake a committed row of its key in a later range (cut).
//
// All that is read of one range need not be read in one snapshot: nobody inserts a row below X any
// more.

// rangeRows is about how many rows a range has. A crash repeats a range at most.
const rangeRows = 10_000

// delayedGap is the longest time between two looks while rows wait for a transaction.
const delayedGap = 200 * time.Millisecond

// begin begins a transaction that reads. A table that grows has old statistics, and the server could
// choose a nested loop over thousands of rows. The lock is taken before the snapshot: to a snapshot
// that is older than an ALTER TABLE that rewrites the table, the table is empty.
func (s *cursor) begin(ctx context.Context) error {
	return s.exec(ctx, "begin to read", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_nestloop = off; LOCK TABLE "+
		s.rows.as("")+"IN ACCESS SHARE MODE")
}

// inOrder has the index give the rows of one transaction in their order, whatever the server's statistics
// say. To sort the rest of a large transaction for each page would cost the square of its rows.
const inOrder = "SET LOCAL enable_sort = off"

// A progress is how far the sessions of a Source have read and given.
type progress struct {
	pos uint64 // everything below is given

	// The open range is [pos, end), 0 for none.
	end   uint64
	only  uint64  // the one transaction of the range; 0 if it may have several
	wal   cdc.LSN // the range is in the server's WAL before it
	begun bool    // its Begin is given
	// last is the order of the newest row that was given of the range, and given are the ids of the
	// rows with that order.
	last  int64
	given map[string]bool
}

// A cursor is the strategy of one session.
type cursor struct {
	*Session
	page []row // of the open range, not given yet
	all  bool  // page has the last rows of the range

	horizon *horizon // nil while there are few undelivered rows
}

// seek begins at a position. A range that a checkpoint describes has the same end again, and it is
// given also if it has no row any more.
func (s *cursor) seek(at, open uint64) {
	s.src.cursor = progress{pos: at}
	if open != 0 {
		s.src.cursor.end = open + 1
	}
}

// proceed has nothing to do, because the Source has the place.
func (s *cursor) proceed() {}

// confirm has nothing to do, because nothing is written to the server.
func (s *cursor) confirm(context.Context) error { return nil }

// leave has nothing to give back.
func (s *cursor) leave(context.Context) error { return nil }

// condition is the SQL condition for the rows of [from, below) under the alias.
func (s *cursor) condition(alias string, from, below uint64) string {
	return s.atLeast(alias, from) + " AND " + s.compare(alias, "<", below)
}

// xid is the column of the row's transaction id.
func (s *cursor) xid(alias string) string {
	return alias + "." + pgname.QuoteIdent(s.src.set.XIDColumn)
}

func (s *cursor) atLeast(alias string, from uint64) string {
	return s.compare(alias, ">=", from) + s.beyond(alias, from)
}

func (s *cursor) compare(alias, operator string, with uint64) string {
	return fmt.Sprintf("%s %s '%d'::xid8", s.xid(alias), operator, with)
}

// A look is what one snapshot says: all transactions below xmin have ended, no id from xmax on is given
// out, and newest is the largest id of a row at or behind the position, 0 for none.
type look struct {
	xmin, xmax, newest uint64
	insert, flush      cdc.LSN // of the WAL, after the snapshot was taken
}

// look looks for rows at or behind pos.
func (s *cursor) look(ctx context.Context, pos uint64) (l look, err error) {
	got, err := pg.Row[struct {
		XMin, XMax, Newest uint64 `json:",string"`
		Insert, Flush      cdc.LSN
		PID                int32
	}](ctx, s.conn, "look at the table", fmt.Sprintf(`SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin, pg_snapshot_xmax(pg_current_snapshot())::text AS xmax,
 pg_current_wal_insert_lsn() AS insert, pg_current_wal_flush_lsn() AS flush, pg_backend_pid() AS pid,
 (SELECT %[1]s::text FROM %[2]s WHERE %[3]s ORDER BY %[1]s DESC LIMIT 1) AS newest`, s.xid("t"), s.rows.from, s.atLeast("t", pos)))
	l = look{xmin: got.XMin, xmax: got.XMax, newest: got.Newest, insert: got.Insert, flush: got.Flush}
	switch {
	case err != nil:
	case got.PID != s.pid:
		err = pooled(s.pid, got.PID)
	case max(pos, l.newest+1) > l.xmax:
		err = fault.Person(fmt.Errorf("column %s of table %s has, or had, transaction ids that this server has not assigned yet (newest: %d, delivered up to: %d, next: %d): the rows were probably restored or copied from another server",
			s.src.set.XIDColumn, s.src.set.Table, l.newest, pos, l.xmax),
			"Stop walpost, and find out which rows are not in Kafka (walpost verify lists them as missing or not_confirmed). Set the column to pg_current_xact_id() in these rows, and to '0' in all others.")
	}
	return l, err
}

// poll looks at the table once, and opens a range if one can be delivered.
func (s *cursor) poll(ctx context.Context) error {
	s.due = time.Now().Add(s.src.set.Interval)
	p := &s.src.cursor
	l, err := s.look(ctx, p.pos)
	if err != nil {
		return err
	}
	s.used = time.Now()
	if l.newest == 0 {
		s.src.countLook()
		return nil
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	if l, err = s.look(ctx, p.pos); err != nil {
		return err
	}
	end, err := s.cut(ctx, &l)
	if err != nil {
		return err
	}
	if end == p.pos {
		if err := s.exec(ctx, "end to read", "COMMIT"); err != nil {
			return err
		}
		if l.newest != 0 { // nothing notifies of the end of the transaction that the rows wait for
			s.due = time.Now().Add(min(s.src.set.Interval, delayedGap))
		}
		s.src.countLook()
		return nil
	}
	if err := s.read(ctx, end); err != nil {
		return err
	}
	if err := s.flushed(ctx, l.insert, l.flush); err != nil {
		s.page = nil
		return err
	}
	s.src.countLook()
	p.end, p.wal, s.due = end, l.insert, time.Now() // there may be more
	return nil
}

// one reads one id by a query, 0 for none.
func (s *cursor) one(ctx context.Context, query string) (uint64, error) {
	got, err := pg.Row[struct {
		ID uint64 `json:",string"`
	}](ctx, s.conn, "cut the range", "SELECT ("+query+") AS id")
	return got.ID, err
}

// cut returns the end of the next range, which is the position if no row can be delivered yet. It works
// in the snapshot of ids.
func (s *cursor) cut(ctx context.Context, l *look) (end uint64, err error) {
	pos := s.src.cursor.pos
	s.src.cursor.only = 0 // of an earlier attempt, that ended with an error
	for rows := rangeRows; ; rows *= 8 {
		// The range ends before the row's transaction, because a large transaction is best read by itself. If
		// that is not possible, it ends with this transaction.
		query := fmt.Sprintf("SELECT %[1]s::text FROM %[2]s WHERE %[3]s ORDER BY %[1]s", s.xid("t"), s.rows.from, s.condition("t", pos, l.xmin))
		last, err := s.one(ctx, fmt.Sprintf("%s OFFSET %d LIMIT 1", query, rows-1))
		whole := err == nil && last == 0
		if whole {
			last, err = s.one(ctx, s.newest(pos, l.xmin))
		}
		if err != nil || last == 0 {
			return pos, err
		}
		alone := false
		if !whole {
			if err := s.lookAhead(ctx, last+1, l); err != nil {
				return pos, err
			}
			before, err := s.one(ctx, s.newest(pos, last))
			if err != nil {
				return pos, err
			}
			if alone = before == 0; !alone {
				if end, err := s.withoutOvertaking(ctx, before+1, l); err != nil || end > pos {
					return end, err
				}
			}
		}
		end, err := s.withoutOvertaking(ctx, last+1, l)
		if err != nil || end > pos || whole {
			if alone {
				s.src.cursor.only = last
			}
			return end, err
		}
	}
}

// withoutOvertaking returns the largest end up to which no row of the range overtakes a row of its key
// behind the range. It is the position if that leaves no row.
func (s *cursor) withoutOvertaking(ctx context.Context, end uint64, l *look) (uint64, error) {
	pos := s.src.cursor.pos
	for s.rows.key != "" && end > pos && l.newest >= end {
		behind, err := s.behind(ctx, end)
		if err != nil {
			return pos, err
		}
		// Of the rows behind the range, the one with the least order decides for its key.
		first, err := s.one(ctx, fmt.Sprintf(`SELECT %s::text FROM %s
 JOIN (SELECT %s AS key, min(%s) AS least FROM %s WHERE %s GROUP BY 1) a ON a.key = %s AND a.least <= %s
 WHERE %s ORDER BY %[1]s LIMIT 1`,
			s.xid("t"), s.rows.from, s.rows.keyOf("a"), s.rows.orderOf("a"), s.rows.as("a"), behind,
			s.rows.key, s.rows.order, s.condition("t", pos, end)))
		if err != nil || first == 0 {
			return end, err
		}
		last, err := s.one(ctx, s.newest(pos, first))
		if err != nil || last == 0 {
			return pos, err
		}
		end = last + 1
	}
	return end, nil
}

// newest is the query for the largest id of the rows of [from, below).
func (s *cursor) newest(from, below uint64) string {
	return fmt.Sprintf("SELECT %[1]s::text FROM %[2]s WHERE %[3]s ORDER BY %[1]s DESC LIMIT 1", s.xid("t"), s.rows.from, s.condition("t", from, below))
}

// read reads a page of the range that ends at end, behind what was given of it. The caller has begun a
// transaction, and read ends it.
func (s *cursor) read(ctx context.Context, end uint64) (err error) {
	p := &s.src.cursor
	if p.only != 0 {
		if err := s.exec(ctx, "read by the index", inOrder); err != nil {
			return err
		}
	}
	s.page, s.all, err = s.rows.page(ctx, s.conn, s.rest(end), func(r *row) bool { return p.given == nil || r.order > p.last || !p.given[r.id] })
	if err != nil {
		return err
	}
	return s.exec(ctx, "end to read", "COMMIT")
}

// rest is the query for the rows of the range that ends at end, behind what was given of it.
func (s *cursor) rest(end uint64) string {
	p := &s.src.cursor
	where := s.condition("t", p.pos, end)
	if p.only != 0 {
		where = s.compare("t", "=", p.only) + s.beyond("t", p.only)
	}
	if p.given != nil {
		where += fmt.Sprintf(" AND %s >= %d", s.rows.order, p.last)
	}
	return fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY %s, %s", s.rows.List(), s.rows.from, where, s.rows.order, s.rows.id)
}

// next returns the next event of the open range, nil if none is open.
func (s *cursor) next(ctx context.Context) (*cdc.Event, error) {
	p := &s.src.cursor
	if p.end == 0 {
		return nil, nil //nolint:nilnil // no event is none
	}
	if len(s.page) == 0 && !s.all {
		if err := s.begin(ctx); err != nil {
			return nil, err
		}
		if p.wal == 0 { // the range is one of a checkpoint
			l, err := s.look(ctx, p.pos)
			if err != nil {
				return nil, err
			}
			newest, err := s.one(ctx, s.newest(p.pos, p.end))
			if err != nil {
				return nil, err
			}
			before, err := s.one(ctx, s.newest(p.pos, newest))
			if err != nil {
				return nil, err
			}
			if p.wal = l.flush; before == 0 {
				p.only = newest
			}
		}
		if err := s.read(ctx, p.end); err != nil {
			return nil, err
		}
		s.used = time.Now()
	}
	switch {
	case !p.begun:
		p.begun = true
		s.event = cdc.Event{Kind: cdc.Begin, Pos: cdc.Numbered(p.end - 1), WAL: p.wal, Time: time.Now().UTC()}
		if len(s.page) > 0 {
			s.event.Time = s.page[0].event.Time
		}
		return &s.event, nil
	case len(s.page) > 0:
		r := &s.page[0]
		s.page = s.page[1:]
		if p.given == nil || r.order != p.last {
			p.last, p.given = r.order, map[string]bool{}
		}
		p.given[r.id] = true
		return r.event, nil
	}
	s.event = cdc.Event{Kind: cdc.Commit, Pos: cdc.Numbered(p.end), Time: time.Now().UTC()}
	*p, s.page, s.all = progress{pos: p.end}, nil, false
	return &s.event, nil
}

// How long flushed looks before it makes the server flush, and how long it waits in all.
const (
	flushLook  = time.Millisecond
	flushForce = 20 * time.Millisecond
	flushLimit = 30 * time.Second
)

// flushed waits until the server's WAL is on its disk up to at. The server flushes for each commit that
// waits for it, and otherwise within seconds. So flushed makes it flush, by a message in the WAL that
// nobody reads.
func (s *cursor) flushed(ctx context.Context, at, flush cdc.LSN) error {
	for from, forced := time.Now(), false; flush < at; {
		if !wait.For(ctx, flushLook) {
			return fault.Retry(ctx.Err())
		}
		if !forced && time.Since(from) > flushForce {
			forced = true
			if err := s.exec(ctx, "make the server flush its WAL", "BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_logical_emit_message(true, 'walpost.flush', ''); COMMIT"); err != nil {
				return err
			}
		}
		now, err := pg.Row[struct{ Flush cdc.LSN }](ctx, s.conn, "read how far the WAL is flushed", "SELECT pg_current_wal_flush_lsn() AS flush")
		if err != nil {
			return err
		}
		if flush = now.Flush; flush < at && time.Since(from) > flushLimit {
			return fault.Retry(fmt.Errorf("the server has flushed its WAL only up to %s, and rows up to %s are visible", flush, at))
		}
	}
	return nil
}

// beginning is where a source begins that has no checkpoint. anyway says that a person has decided what
// becomes of the rows that are there.
func (s *cursor) beginning(ctx context.Context, anyway bool) (uint64, error) {
	const oldest = 1
	set := &s.src.set
	if set.Snapshot == "initial" && !anyway {
		return oldest, nil
	}
	has, err := pg.Row[struct{ Rows bool }](ctx, s.conn, "look for rows", "SELECT EXISTS (SELECT FROM "+s.rows.from+") AS rows")
	switch {
	case err != nil:
		return 0, err
	case !has.Rows:
		return oldest, nil
	case !anyway:
		return s.boundary(ctx)
	}
	// The id is in the WAL once that is flushed, so the server gives out no id up to it again.
	xid, err := s.one(ctx, "SELECT pg_current_xact_id()::text")
	if err != nil {
		return 0, err
	}
	l, err := s.look(ctx, oldest)
	if err != nil {
		return 0, err
	}
	s.identity.Server = max(s.identity.Server, l.insert) // a server without that WAL gives out the ids again
	return min(l.xmin, xid+1), s.flushed(ctx, l.insert, l.flush)
}

// boundary is the beginning where source.snapshot has a bound. Otherwise a person has to say what becomes of
// the rows that are there.
func (s *cursor) boundary(ctx context.Context) (uint64, error) {
	set, server := &s.src.set, &s.facts.Server
	if bound, err := pg.ParseBound(set.Snapshot); err == nil {
		holds, err := bound.Holds(ctx, s.conn, server)
		if err != nil || holds {
			return bound.XID, err
		}
	}
	has, err := pg.CountRows(ctx, s.conn, &s.facts.Table, "")
	if err != nil {
		return 0, err
	}
	bound, err := pg.TakeBound(ctx, s.conn, server)
	if err != nil {
		return 0, err
	}
	return 0, bound.Refuse(fmt.Sprintf("table %s has %s", set.Table, has), set.Snapshot)
}
