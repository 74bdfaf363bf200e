package poll

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// A Former is where a relay stands that has used another strategy.
type Former struct {
	Strategy string
	// For the strategy cursor: all rows below At are delivered, and those that the snapshot Border sees. Of
	// the transaction that begins at Open, 0 for none, the rows up to the one with the event id Last are.
	At, Open cdc.Position
	Last     string
	Border   string
	// Agree is called before anything changes, with what is true of the server while no relay runs. Its error ends the change.
	Agree func(found cdc.Identity) error
}

// Change makes the table fit the strategy of the Source, while no relay reads the table. It returns what a
// checkpoint begins with, and how many rows it has marked as delivered. It can be repeated.
func (s *Source) Change(ctx context.Context, former Former) (at cdc.Position, found cdc.Identity, marked int64, err error) {
	session, err := s.Open(ctx, false, false)
	if err != nil {
		return 0, found, 0, err
	}
	defer pg.Close(session.conn)
	if err := session.exec(ctx, "set up the session", "SET statement_timeout = 0"); err != nil {
		return 0, found, 0, err
	}
	got, err := pg.Row[struct {
		Got    bool
		Holder int32
	}](ctx, session.conn, "take the lock of the relay", fmt.Sprintf("SELECT pg_try_advisory_lock(%d, %d) AS got, %s AS holder", nameLock, digest(s.set.Name), holderQuery(nameLock, digest(s.set.Name))))
	if err != nil {
		return 0, found, 0, err
	}
	if !got.Got {
		return 0, found, 0, fault.Config(fmt.Errorf("the relay runs with its former configuration (server process %d)", got.Holder), "Stop every walpost run of this relay first.")
	}
	if err := session.claimTable(ctx); err != nil {
		return 0, found, 0, err
	}
	if err := session.recheck(ctx); err != nil {
		return 0, found, 0, err
	}
	if err := former.Agree(session.identity); err != nil {
		return 0, found, 0, err
	}
	c := &cursor{Session: session}
	from := uint64(1) // if workers claim rows, the table says what is to be done
	switch claims := former.Strategy != Cursor; {
	case s.set.Claims() && !claims:
		marked, err = c.markDelivered(ctx, &former)
	case !s.set.Claims() && claims:
		from, err = c.unfinished(ctx)
	}
	return cdc.Numbered(from), session.identity, marked, err
}

// markRows is how many rows one transaction marks.
const markRows = 10_000

// markDelivered finishes the rows that the strategy cursor has delivered, in the order of the index on transaction and
// order, and in many transactions: one would keep its row locks, and what it wrote from VACUUM, for as long
// as a large table takes. If it is interrupted, the next call goes on.
func (s *cursor) markDelivered(ctx context.Context, former *Former) (marked int64, err error) {
	if err := s.exec(ctx, "set up the session", "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; SET enable_mergejoin = off"); err != nil {
		return 0, err
	}
	done, end, err := s.done(ctx, former)
	if err != nil {
		return 0, err
	}
	const step = "mark delivered rows"
	after := "'0'::xid8, " + strconv.FormatInt(math.MinInt64, 10)
	for {
		results, err := s.conn.Exec(ctx, fmt.Sprintf(`WITH d AS MATERIALIZED (SELECT t.tableoid AS part, t.ctid AS place, %[1]s AS xid, %[2]s AS at FROM %[3]s
 WHERE t.finished_at IS NULL AND %[4]s AND %[5]s AND (%[1]s, %[2]s) >= (%[6]s) ORDER BY %[1]s, %[2]s LIMIT %[7]d FOR UPDATE OF t),
 done AS (UPDATE %[3]s SET finished_at = now() FROM d WHERE t.tableoid = d.part AND t.ctid = d.place RETURNING d.xid, d.at)
SELECT (SELECT count(*) FROM d), count(*), (array_agg(format('%%L::xid8, %%L::bigint', xid, at) ORDER BY xid DESC, at DESC))[1] FROM done`,
			s.xid("t"), s.rows.order, s.rows.from, done, s.compare("t", "<", end), after, markRows)).ReadAll()
		if err != nil {
			return marked, pg.Classify(fmt.Errorf("%s: %w", step, err))
		}
		got := results[0].Rows[0]
		found, err := strconv.ParseInt(string(got[0]), 10, 64)
		rows, err2 := strconv.ParseInt(string(got[1]), 10, 64)
		switch {
		case err != nil || err2 != nil:
			return marked, fmt.Errorf("%s: %w: %q", step, pg.ErrAnswer, got)
		case found == 0:
			return marked, nil
		case rows < found: // these rows are locked, so they are still there
			return marked, fault.Person(fmt.Errorf("%s: %d rows of %s did not change: a trigger or a rule may suppress the change", step, found-rows, s.src.set.Table), suppressedHint)
		}
		marked, after = marked+rows, string(got[2])
	}
}

// done is the condition for the rows that the strategy cursor has delivered. All of them are of transactions
// below end.
func (s *cursor) done(ctx context.Context, former *Former) (where string, end uint64, err error) {
	s.src.setBorder(former.Border)
	at, below := former.At.Number(), former.Open.Number()+1
	where, end = "NOT ("+s.atLeast("t", at)+")", at
	if border := s.src.border; border != nil {
		end = max(end, border.XMax)
	}
	if former.Open == 0 || former.Last == "" {
		return where, end, nil
	}
	open := s.condition("t", at, below)
	last, err := pg.Row[struct{ At *int64 }](ctx, s.conn, "find the last delivered row", fmt.Sprintf("SELECT max(%s) AS at FROM %s WHERE %s = %s AND %s", s.rows.order, s.rows.from, s.rows.id, pgname.QuoteLiteral(former.Last), open))
	if err == nil && last.At != nil {
		where, end = fmt.Sprintf("(%s OR %s AND %s <= %d)", where, open, s.rows.order, *last.At), max(end, below)
	}
	return where, end, err
}

// unfinished is the position below which no row is unfinished.
func (s *cursor) unfinished(ctx context.Context) (uint64, error) {
	if i := s.facts.Table.Relation.Index("finished_at"); i < 0 {
		return 0, errors.New("the table has no column finished_at, which says what is delivered")
	}
	at, err := s.beginning(ctx, true)
	if err != nil {
		return 0, err
	}
	least, err := s.one(ctx, fmt.Sprintf("SELECT %[1]s::text FROM %[2]s WHERE t.finished_at IS NULL ORDER BY %[1]s LIMIT 1", s.xid("t"), s.rows.from))
	if err == nil && least != 0 {
		at = min(at, least)
	}
	return at, err
}
