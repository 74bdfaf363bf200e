package poll

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// planSettings make the server use the partial indexes, whatever its statistics say: the number of
// unfinished rows changes faster than they do. A nested loop over two lists of rows would be quadratic.
const planSettings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_nestloop = off; SET enable_mergejoin = off; SET jit = off"

// flushSettings make the server's WAL on disk have the rows that a look has claimed, also those that were
// committed without waiting for the disk.
const flushSettings = "SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') = 'off'"

// ready is the condition for a row that no worker has, and that waits for nothing. The lease of another
// worker counts as ended only if takeOver says that the server's clock can be trusted.
func ready(alias string, takeOver bool) string {
	free := alias + ".claimed_until IS NULL"
	if takeOver {
		free = fmt.Sprintf("(%[1]s.claimed_until IS NULL OR %[1]s.claimed_until < now())", alias)
	}
	return fmt.Sprintf("%[2]s AND (%[1]s.next_attempt_at IS NULL OR %[1]s.next_attempt_at <= now())", alias, free)
}

// setUp makes the settings of a session. One of them is a token. A pooler that gives the server process to
// another client between two transactions cannot keep both the process and the token.
func (s *claimer) setUp(ctx context.Context) error {
	s.token = rand.Text()
	return s.exec(ctx, "set up the session", planSettings+"; "+flushSettings+"; SET "+tokenSetting+" = "+pgname.QuoteLiteral(s.token))
}

const tokenSetting = "walpost.session"

// begin begins the transaction of a look. It reports whether the ends of other workers' leases can be
// trusted.
func (s *claimer) begin(ctx context.Context) (takeOver bool, err error) {
	if err := s.exec(ctx, "begin to claim", "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return false, err
	}
	before := time.Now()
	found, err := pg.Row[struct {
		Clock time.Time
		WAL   cdc.LSN
		PID   int32
		Token *string
	}](ctx, s.conn, "read the server's clock", "SELECT clock_timestamp() AS clock, pg_current_wal_flush_lsn() AS wal, pg_backend_pid() AS pid, current_setting('"+tokenSetting+"', true) AS token")
	if err != nil {
		return false, err
	}
	if found.PID != s.pid || found.Token == nil || *found.Token != s.token {
		return false, pooled(s.pid, found.PID)
	}
	s.wal = found.WAL
	return s.clock.observe(found.Clock, before, time.Now(), s.Claims.set.Lease), nil
}

// pooled is the error for a session whose server process another client uses, too.
func pooled(before, now int32) error {
	what := fmt.Sprintf("the connection changed from server process %d to %d", before, now)
	if before == now {
		what = fmt.Sprintf("another client uses server process %d between the transactions of walpost", now)
	}
	return fault.Config(fmt.Errorf("%s: the locks of the relay are lost", what),
		"Connect to Postgres directly, or to a pooler in session mode: polling holds locks of the session.")
}

// claimedBySession is the condition for a row that this session has claimed. It can be NULL.
func (s *claimer) claimedBySession(alias string) string {
	return fmt.Sprintf("(%[1]s.claimed_by = %[2]s AND %[1]s.claimed_until >= now())", alias, pgname.QuoteLiteral(s.name))
}

// claimedByProcess is the condition for a row that a session of this process has claimed.
func (s *claimer) claimedByProcess(alias string) string {
	return fmt.Sprintf("starts_with(%s.claimed_by, %s)", alias, pgname.QuoteLiteral(s.worker+"#"))
}

// leftOut is the condition for the rows of t whose key no look leaves out.
func (s *claimer) leftOut() string {
	if len(s.avoid) == 0 {
		return "true"
	}
	keys := make([]string, 0, len(s.avoid))
	for key := range s.avoid {
		keys = append(keys, pgname.QuoteLiteral(key))
	}
	r := s.Session.rows
	return fmt.Sprintf("(%s IS NULL OR %[1]s <> ALL (ARRAY[%s]::text[]))", r.key, strings.Join(keys, ", "))
}

// candidates is the query for rows that may be claimed, oldest first. at are the orders of those that survey
// has found.
func (s *claimer) candidates(takeOver bool, at []int64) string {
	r := s.Session.rows
	return fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE t.finished_at IS NULL AND %[3]s = ANY (%[4]s) AND %[5]s AND %[6]s ORDER BY %[3]s LIMIT %[7]d FOR UPDATE OF t SKIP LOCKED",
		r.List(), r.from, r.order, orders(at), ready("t", takeOver), s.leftOut(), claimRows)
}

// open is the query for the keys and orders of the oldest rows from an order on that are ready and whose key is
// not left out.
func (s *claimer) open(takeOver bool, from int64) string {
	r := s.Session.rows
	return fmt.Sprintf("SELECT %[1]s AS key, %[2]s AS at FROM %[3]s WHERE t.finished_at IS NULL AND %[2]s >= '%[4]d'::bigint AND %[5]s AND %[6]s ORDER BY %[2]s LIMIT %[7]d",
		cmp.Or(r.keyColumn("t"), "NULL::text"), r.order, r.from, from, ready("t", takeOver), s.leftOut(), claimRows)
}

// survey is the query for the rows of open, and for the keys whose oldest row cannot be claimed, of those rows
// and of those that are left out. It looks once at each key, however many rows the key has. The range (key,
// order) >= … begins with a row of k's key, because the table has one. Only the index by key and order gives
// it. With key = k.key, the server may take the index by order instead, and read the older rows of all other
// keys.
func (s *claimer) survey(takeOver bool, from int64) string {
	r := s.Session.rows
	if r.key == "" {
		return "SELECT at, NULL AS blocked FROM (" + s.open(takeOver, from) + ") w"
	}
	known := make([]int64, 0, len(s.avoid))
	for _, a := range s.avoid {
		known = append(known, a.order)
	}
	return fmt.Sprintf(`WITH w AS MATERIALIZED (%[1]s), known AS MATERIALIZED (SELECT %[2]s AS key, %[3]s AS at FROM %[4]s WHERE t.finished_at IS NULL AND %[3]s = ANY (%[5]s)),
 k AS MATERIALIZED (SELECT key, min(at) AS at FROM (SELECT * FROM known UNION ALL SELECT * FROM w) u WHERE key IS NOT NULL GROUP BY key, key::text)
SELECT at, NULL AS blocked FROM w
UNION ALL SELECT k.at, k.key::text FROM k,
 LATERAL (SELECT %[6]s OR %[7]s IS TRUE AS free FROM %[8]s WHERE (%[9]s, %[10]s) >= (k.key, '%[11]d'::bigint) AND o.finished_at IS NULL ORDER BY %[9]s, %[10]s LIMIT 1) o
 WHERE NOT o.free`,
		s.open(takeOver, from), r.keyColumn("t"), r.order, r.from, orders(known),
		ready("o", takeOver), s.claimedBySession("o"), r.as("o"), r.keyColumn("o"), r.orderOf("o"), int64(math.MinInt64))
}

// look finds the oldest rows that may be claimed, and which keys are blocked, so that no row of those is locked
// for nothing. more says that the next look may find other rows.
func (s *claimer) look(ctx context.Context, takeOver bool) (at []int64, more bool, err error) {
	begun, from := time.Now(), s.start.from
	whole := len(s.avoid) == 0 || s.start.again || begun.Sub(s.start.moved) >= wholeEvery
	if whole {
		from = math.MinInt64
	}
	for range lookPasses {
		found, err := pg.Rows[struct {
			At      int64
			Blocked *string
		}](ctx, s.conn, "look for rows", s.survey(takeOver, from))
		if err != nil {
			return nil, false, s.denied(err)
		}
		at, more = nil, false
		blocked := map[string]bool{}
		for _, f := range found {
			if f.Blocked == nil {
				at = append(at, f.At)
				continue
			}
			blocked[*f.Blocked] = true
			if _, known := s.avoid[*f.Blocked]; !known {
				s.avoid[*f.Blocked], more = avoided{order: f.At}, true
			}
		}
		if more {
			continue
		}
		now, before := time.Now(), len(s.avoid)
		maps.DeleteFunc(s.avoid, func(key string, a avoided) bool { return !blocked[key] && now.After(a.until) })
		s.start.again = len(s.avoid) < before
		if whole && begun.Sub(s.start.moved) >= wholeEvery {
			err = s.moveStart(ctx, at, begun)
		}
		return at, s.start.again, err
	}
	return nil, true, nil
}

// moveStart notes what a whole look has found. If it has found nothing to claim, that is true of all rows that
// are there.
func (s *claimer) moveStart(ctx context.Context, at []int64, begun time.Time) error {
	first := s.start.next
	if len(at) > 0 {
		first = at[0]
	} else {
		r := s.Session.rows
		newest, err := pg.Row[struct{ At *int64 }](ctx, s.conn, "look for rows", fmt.Sprintf("SELECT max(%s) AS at FROM %s WHERE t.finished_at IS NULL", r.order, r.from))
		if err != nil {
			return s.denied(err)
		}
		if newest.At != nil {
			first = *newest.At
		}
	}
	s.start.from, s.start.next, s.start.moved = s.start.next, first, begun
	return nil
}

// claim claims rows, and returns them in their order.
func (s *claimer) claim(ctx context.Context) ([]*claimed, error) {
	takeOver, err := s.begin(ctx)
	if err == nil && !takeOver {
		err = s.tell(ctx)
	}
	if err != nil {
		return nil, err
	}
	at, more, err := s.look(ctx, takeOver)
	if err != nil {
		return nil, err
	}
	found, _, err := s.Session.rows.page(ctx, s.conn, s.candidates(takeOver, at), func(*row) bool { return true })
	if err != nil {
		return nil, s.denied(err)
	}
	rows := make([]*claimed, 0, len(found))
	for _, f := range found {
		if s.last++; s.last == 0 {
			s.last = 1
		}
		r := &claimed{row: f, number: s.last}
		if r.attempts, err = strconv.Atoi(string(f.more[0])); err != nil {
			return nil, fmt.Errorf("claim rows: %w: attempts %q", pg.ErrAnswer, f.more[0])
		}
		if len(f.more) > 1 && f.more[1] != nil {
			r.key, r.keyed = string(f.more[1]), true
		}
		if s.alreadyClaimed(r) {
			continue
		}
		rows = append(rows, r)
	}
	if rows, err = s.withoutBlocked(ctx, rows); err != nil {
		return nil, err
	}
	if more || len(rows) == 0 && len(found) == claimRows { // the next look leaves the keys of these rows out
		s.due = time.Now()
	}
	from := time.Now()
	if len(rows) > 0 {
		sql := fmt.Sprintf("UPDATE %s SET %s FROM %s WHERE %s RETURNING d.number",
			s.Session.rows.from, s.claiming(s.name), rowList(rows), s.matchesOpen(rows))
		got, err := s.run(ctx, "claim rows", sql)
		if err != nil {
			return nil, err
		}
		if n := len(rows) - len(got); n > 0 { // these rows are locked, so they are still there
			return nil, s.suppressed("claim", n)
		}
	}
	if err := s.exec(ctx, "end to claim", "COMMIT"); err != nil {
		return nil, err
	}
	if len(s.Claims.rows) == 0 && len(rows) > 0 {
		s.until = from.Add(s.Claims.set.Lease)
	}
	for _, r := range rows {
		s.Claims.rows[r.number] = r
	}
	s.bind()
	return rows, nil
}

// alreadyClaimed reports whether the worker has a row already. If another session has locked the row, the lease can
// end on the server meanwhile.
func (s *claimer) alreadyClaimed(r *claimed) bool {
	same := func(h *claimed) bool { return h.order == r.order && h.id == r.id }
	return slices.ContainsFunc(s.locked, same) || slices.ContainsFunc(s.held, same)
}

// claiming are the columns of a row that a name has claimed now.
func (s *claimer) claiming(name string) string {
	return fmt.Sprintf("claimed_by = %s, claimed_until = statement_timestamp() + interval '%d milliseconds'", pgname.QuoteLiteral(name), s.Claims.set.Lease.Milliseconds())
}

// withoutBlocked leaves out the rows that an older row of their key blocks. The query has a newer
// snapshot than the locks, so a row that it does not see was finished, or never was. Order numbers may
// repeat, so it compares rows by order number and event id.
func (s *claimer) withoutBlocked(ctx context.Context, rows []*claimed) ([]*claimed, error) {
	keyed := slices.DeleteFunc(slices.Clone(rows), func(r *claimed) bool { return !r.keyed })
	if len(keyed) == 0 {
		return rows, nil
	}
	blocked, err := s.run(ctx, "look for older rows", s.blocked(keyed))
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(avoidFor)
	return slices.DeleteFunc(rows, func(r *claimed) bool {
		if blocked[r.number] {
			s.avoid[r.key] = avoided{r.order, until}
		}
		return blocked[r.number]
	}), nil
}

// blocked is the query for the numbers of the rows that an older row of their key blocks. All rows have a key. The database compares the
// keys: it may take two texts for one key.
func (s *claimer) blocked(rows []*claimed) string {
	reader := s.Session.rows
	return fmt.Sprintf(`WITH c AS MATERIALIZED (SELECT %[1]s AS key, %[2]s AS at, d.number FROM %[3]s, %[4]s WHERE %[5]s)
SELECT c.number FROM c JOIN (SELECT k.key, b.first FROM (SELECT key, max(at) AS last FROM c GROUP BY 1) k,
 LATERAL (SELECT %[6]s AS first FROM %[7]s WHERE (%[8]s, %[6]s) >= (k.key, '%[9]d'::bigint) AND (%[8]s, %[6]s) <= (k.key, k.last) AND o.finished_at IS NULL AND %[10]s IS NOT TRUE
  AND (%[6]s, coalesce(%[11]s, '')) NOT IN (SELECT at, id FROM %[4]s) ORDER BY %[8]s, %[6]s LIMIT 1) b) b ON b.key = c.key AND b.first <= c.at`,
		reader.keyColumn("t"), reader.order, reader.from, rowList(rows), s.matchesOpen(rows), reader.orderOf("o"), reader.as("o"), reader.keyColumn("o"), int64(math.MinInt64), s.claimedBySession("o"), reader.idOf("o"))
}

// rowList is a list of rows for a FROM clause, as d. matches says which row of the table is meant.
func rowList(rows []*claimed) string {
	var b strings.Builder
	b.WriteString("(VALUES ")
	for i, r := range rows {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%d::bigint, %s::text, %d::bigint)", r.order, pgname.QuoteLiteral(r.id), r.number)
	}
	b.WriteString(") d (at, id, number)")
	return b.String()
}

// matchesOpen is matches for rows that aren't finished. This condition lets a statement use the index of the open rows; without it, the server
// would read the whole table.
func (s *claimer) matchesOpen(rows []*claimed) string {
	return s.matches(rows) + " AND t.finished_at IS NULL"
}

func (s *claimer) matches(rows []*claimed) string {
	r := s.Session.rows
	at := make([]int64, len(rows))
	for i, row := range rows {
		at[i] = row.order
	}
	return fmt.Sprintf("%[1]s = ANY (%[2]s) AND %[1]s = d.at AND coalesce(%[3]s, '') = d.id", r.order, orders(at), r.id)
}

// orders is a list of numbers in the order column.
func orders(of []int64) string {
	list := make([]string, len(of))
	for i, order := range of {
		list[i] = strconv.FormatInt(order, 10)
	}
	return "'{" + strings.Join(list, ",") + "}'::bigint[]"
}
