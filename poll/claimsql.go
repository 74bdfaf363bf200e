package poll

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// planSettings make the server use the partial indexes, whatever its statistics say: the number of
// unfinished rows changes faster than they do. A nested loop over two lists of rows would be quadratic.
const planSettings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_nestloop = off; SET enable_mergejoin = off; SET jit = off"

// flushSettings make the server's WAL on disk have the rows that a look has claimed, also those that were
// committed without waiting for the disk.
const flushSettings = "SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') = 'off'"

// ready is the condition for a row that no worker has, and that waits for nothing.
func ready(alias string) string {
	return fmt.Sprintf("(%[1]s.claimed_until IS NULL OR %[1]s.claimed_until < now()) AND (%[1]s.next_attempt_at IS NULL OR %[1]s.next_attempt_at <= now())", alias)
}

// mine is the condition for a row that this session has claimed. It can be NULL.
func (s *claimer) mine(alias string) string {
	return fmt.Sprintf("(%[1]s.claimed_by = %[2]s AND %[1]s.claimed_until >= now())", alias, pg.QuoteLiteral(s.name))
}

// ours is the condition for a row that a session of this process has claimed.
func (s *claimer) ours(alias string) string {
	return fmt.Sprintf("starts_with(%s.claimed_by, %s)", alias, pg.QuoteLiteral(s.worker+"#"))
}

// keyColumn is the column of the key under an alias, "" for none.
func (r *rowReader) keyColumn(alias string) string {
	if r.key == "" {
		return ""
	}
	return strings.TrimSuffix(r.keyOf(alias), "::text")
}

// candidates is the query for rows that may be claimed, oldest first. It looks at the oldest unfinished
// row of each key only: withoutBlocked has the rest. The range (key, order) >= … begins with a row of t's
// key, because it contains t. Only the index by key and order gives it. With key = t.key, the server may
// take the index by order instead, and read the older rows of all other keys.
func (s *claimer) candidates() string {
	r := s.Session.rows
	where := "t.finished_at IS NULL AND " + ready("t")
	if r.key != "" {
		where += fmt.Sprintf(" AND (%s IS NULL OR (SELECT %s OR %s FROM %s WHERE (%[5]s, %[6]s) >= (%[1]s, '%[7]d'::bigint) AND o.finished_at IS NULL ORDER BY %[5]s, %[6]s LIMIT 1))",
			r.keyColumn("t"), ready("o"), s.mine("o"), r.as("o"), r.keyColumn("o"), r.orderOf("o"), int64(math.MinInt64))
		now := time.Now()
		maps.DeleteFunc(s.avoid, func(_ string, until time.Time) bool { return now.After(until) })
		if len(s.avoid) > 0 {
			var keys []string
			for key := range s.avoid {
				keys = append(keys, pg.QuoteLiteral(key))
			}
			where += fmt.Sprintf(" AND (%s IS NULL OR %s <> ALL (ARRAY[%s]::text[]))", r.key, r.key, strings.Join(keys, ", "))
		}
	}
	return fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %d FOR UPDATE OF t SKIP LOCKED", r.list(), r.from, where, r.order, claimRows)
}

// claim claims rows, and returns them in their order.
func (s *claimer) claim(ctx context.Context) ([]*claimed, error) {
	from := time.Now() // before BEGIN, because now() in SQL is the time of BEGIN
	if err := s.exec(ctx, "begin to claim", "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return nil, err
	}
	found, _, err := s.Session.rows.page(ctx, s.conn, s.candidates(), func(*row) bool { return true })
	if err != nil {
		return nil, s.denied(err)
	}
	rows := make([]*claimed, 0, len(found))
	for _, f := range found {
		if s.last++; s.last == 0 {
			s.last = 1
		}
		r := &claimed{row: f, number: s.last}
		if r.attempts, err = strconv.Atoi(string(f.more[0].Bytes)); err != nil {
			return nil, fmt.Errorf("claim rows: %w: attempts %q", pg.ErrAnswer, f.more[0].Bytes)
		}
		if len(f.more) > 1 && f.more[1].Bytes != nil {
			r.key, r.keyed = string(f.more[1].Bytes), true
		}
		rows = append(rows, r)
	}
	if rows, err = s.withoutBlocked(ctx, rows); err != nil {
		return nil, err
	}
	if len(rows) > 0 {
		sql := fmt.Sprintf("UPDATE %s SET claimed_by = %s, claimed_until = now() + interval '%d milliseconds' FROM %s WHERE %s AND t.finished_at IS NULL RETURNING d.number",
			s.Session.rows.from, pg.QuoteLiteral(s.name), s.Claims.set.Lease.Milliseconds(), places(rows), s.place(rows))
		got, err := s.change(ctx, "claim rows", sql)
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
	return rows, nil
}

// withoutBlocked leaves out the rows that an older row of their key blocks. The query has a newer
// snapshot than the locks, so a row that it does not see was finished, or never was. Order numbers may
// repeat, so it compares rows by order number and event id.
func (s *claimer) withoutBlocked(ctx context.Context, rows []*claimed) ([]*claimed, error) {
	keyed := slices.DeleteFunc(slices.Clone(rows), func(r *claimed) bool { return !r.keyed })
	if len(keyed) == 0 {
		return rows, nil
	}
	blocked, err := pg.Rows[struct {
		Key   string
		First int64
	}](ctx, s.conn, "look for older rows", s.blockers(keyed))
	if err != nil || len(blocked) == 0 {
		return rows, err
	}
	first := map[string]int64{}
	for _, b := range blocked {
		first[b.Key] = b.First
		s.avoid[b.Key] = time.Now().Add(avoidFor)
	}
	return slices.DeleteFunc(rows, func(r *claimed) bool {
		at, is := first[r.key]
		return r.keyed && is && r.order >= at
	}), nil
}

// blockers is the query for the oldest row that blocks each key of rows, which all have a key.
func (s *claimer) blockers(rows []*claimed) string {
	reader := s.Session.rows
	return fmt.Sprintf(`SELECT k.key::text AS key, b.first FROM
 (SELECT %[1]s AS key, max(%[2]s) AS last FROM %[3]s, %[4]s WHERE %[5]s AND t.finished_at IS NULL GROUP BY 1) k,
 LATERAL (SELECT %[6]s AS first FROM %[7]s WHERE (%[8]s, %[6]s) >= (k.key, '%[9]d'::bigint) AND (%[8]s, %[6]s) <= (k.key, k.last) AND o.finished_at IS NULL AND %[10]s IS NOT TRUE
  AND (%[6]s, coalesce(%[11]s, '')) NOT IN (SELECT at, id FROM %[4]s) ORDER BY %[8]s, %[6]s LIMIT 1) b`,
		reader.keyColumn("t"), reader.order, reader.from, places(rows), s.place(rows), reader.orderOf("o"), reader.as("o"), reader.keyColumn("o"), int64(math.MinInt64), s.mine("o"), reader.idOf("o"))
}

// places is a list of rows for a FROM clause, as d. place says which row of the table is meant.
func places(rows []*claimed) string {
	var b strings.Builder
	b.WriteString("(VALUES ")
	for i, r := range rows {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%d::bigint, %s::text, %d::bigint)", r.order, pg.QuoteLiteral(r.id), r.number)
	}
	b.WriteString(") d (at, id, number)")
	return b.String()
}

func (s *claimer) place(rows []*claimed) string {
	r := s.Session.rows
	return fmt.Sprintf("%[1]s = ANY (%[2]s) AND %[1]s = d.at AND coalesce(%[3]s, '') = d.id", r.order, orders(rows), r.id)
}

// orders is the list of the rows' numbers in the order column.
func orders(rows []*claimed) string {
	list := make([]string, len(rows))
	for i, r := range rows {
		list[i] = strconv.FormatInt(r.order, 10)
	}
	return "'{" + strings.Join(list, ",") + "}'::bigint[]"
}

// renew renews the leases of all rows. The first one of a session makes the claims the session's own.
func (s *claimer) renew(ctx context.Context) error {
	name := s.name
	if !s.adopted {
		s.count++
		name = fmt.Sprintf("%s#%d", s.worker, s.count)
	}
	rows := slices.SortedFunc(maps.Values(s.Claims.rows), func(a, b *claimed) int { return cmp.Compare(a.order, b.order) })
	from, kept := time.Now(), map[uint32]bool{}
	for part := range slices.Chunk(rows, flushRows) {
		got, err := s.change(ctx, "renew the leases", fmt.Sprintf("UPDATE %s SET claimed_by = %s, claimed_until = now() + interval '%d milliseconds' FROM %s WHERE %s AND t.finished_at IS NULL AND %s AND t.claimed_until >= now() RETURNING d.number",
			s.Session.rows.from, pg.QuoteLiteral(name), s.Claims.set.Lease.Milliseconds(), places(part), s.place(part), s.ours("t")))
		if err != nil {
			return err
		}
		maps.Copy(kept, got)
	}
	s.used = time.Now()
	s.until, s.name, s.adopted = from.Add(s.Claims.set.Lease), name, true
	return s.gone(slices.DeleteFunc(rows, func(r *claimed) bool { return kept[r.number] }))
}

// flush writes the outcomes. The server may have done so already, if the answer was lost: then nothing is
// claimed by this process, and nothing is written twice.
func (s *claimer) flush(ctx context.Context) error {
	for len(s.ended) > 0 {
		part := s.ended[:min(len(s.ended), flushRows)]
		if err := s.write(ctx, part); err != nil {
			return err
		}
		for _, r := range part {
			delete(s.Claims.rows, r.number)
		}
		s.ended = s.ended[len(part):]
		s.used = time.Now()
	}
	s.ended = nil
	return nil
}

func (s *claimer) write(ctx context.Context, rows []*claimed) error {
	deletes := s.Claims.set.Strategy == Delete
	var done []*claimed
	var b strings.Builder
	for _, r := range rows {
		if deletes && r.end == delivered {
			done = append(done, r)
			continue
		}
		pause := time.Duration(0)
		if r.end == refused {
			pause = s.pause(r.attempts)
		}
		why := "NULL"
		if r.why != "" {
			why = pg.QuoteLiteral(storable(r.why))
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%d::bigint, %s::text, %d::bigint, %t, %d, %s::text, %d)", r.order, pg.QuoteLiteral(r.id), r.number, r.end == delivered, r.attempts, why, pause.Milliseconds())
	}
	table := s.Session.rows.from
	unfinished := fmt.Sprintf("%s AND t.finished_at IS NULL AND %s", s.place(rows), s.ours("t"))
	written := map[uint32]bool{}
	if b.Len() > 0 {
		got, err := s.change(ctx, "write the outcomes", fmt.Sprintf(`UPDATE %s SET finished_at = CASE WHEN d.done THEN now() END, claimed_by = NULL, claimed_until = NULL, attempts = d.attempts,
 last_error = coalesce(d.why, t.last_error), next_attempt_at = CASE WHEN d.pause > 0 THEN now() + d.pause * interval '1 millisecond' END
 FROM (VALUES %s) d (at, id, number, done, attempts, why, pause) WHERE %s RETURNING d.number`, table, b.String(), unfinished))
		if err != nil {
			return err
		}
		maps.Copy(written, got)
	}
	if len(done) > 0 {
		got, err := s.change(ctx, "delete delivered rows", fmt.Sprintf("DELETE FROM %s USING %s WHERE %s RETURNING d.number", table, places(done), unfinished))
		if err != nil {
			return err
		}
		maps.Copy(written, got)
	}
	if len(written) == len(rows) {
		return nil
	}
	// Somebody may have finished or removed a row, or a former statement of which the answer was lost.
	left := slices.DeleteFunc(slices.Clone(rows), func(r *claimed) bool { return written[r.number] })
	still, err := s.change(ctx, "look for rows without an outcome", fmt.Sprintf("SELECT d.number FROM %s, %s WHERE %s", table, places(left), unfinished))
	if err == nil && len(still) > 0 {
		err = s.suppressed("finish", len(still))
	}
	return err
}

// change runs a statement, and returns the numbers of the rows that it has changed.
func (s *claimer) change(ctx context.Context, step, sql string) (map[uint32]bool, error) {
	results, err := s.conn.Exec(ctx, sql).ReadAll()
	if pg.SQLState(err) == stateNotSupported { // RETURNING on a table with a rule
		return nil, fault.Person(fmt.Errorf("%s: %w", step, err), suppressedHint)
	}
	if err != nil {
		return nil, s.denied(pg.Classify(fmt.Errorf("%s: %w", step, err)))
	}
	numbers := make(map[uint32]bool, len(results[0].Rows))
	for _, got := range results[0].Rows {
		number, err := strconv.ParseUint(string(got[0]), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %q", step, pg.ErrAnswer, got[0])
		}
		numbers[uint32(number)] = true
	}
	return numbers, nil
}

const (
	stateNotSupported = "0A000"
	suppressedHint    = "A row trigger (BEFORE UPDATE or BEFORE DELETE) or a rule of the table keeps walpost from writing the state of its rows. Change it so that it does not apply to the role of walpost. Make sure that no two rows have both the same order number and the same event id."
)

// suppressed is the error for rows that a statement had to change and did not change.
func (s *claimer) suppressed(what string, n int) error {
	return fault.Person(fmt.Errorf("%d rows of %s did not change when walpost wrote to %s them: a trigger or a rule may suppress the change", n, s.Claims.set.Table, what), suppressedHint)
}

// storable makes a text one that every text column takes.
func storable(why string) string {
	why = strings.ReplaceAll(strings.ToValidUTF8(why, "?"), "\x00", "?")
	for len(why) > errorBytes {
		_, size := utf8.DecodeLastRuneInString(why)
		why = why[:len(why)-size]
	}
	return why
}

// denied makes a missing right an error that is waited out: the relay had the right when it began, and
// nothing is lost until the right comes back.
func (s *claimer) denied(err error) error {
	if pg.SQLState(err) != pg.StateNoRight {
		return err
	}
	return fault.Retry(fmt.Errorf("role %s has lost a right on %s: %w", s.facts.Server.Role, s.Claims.set.Table, err))
}

// backlog counts the rows that are not finished.
func (s *claimer) backlog(ctx context.Context, _ cdc.Position) (*Backlog, error) {
	r := s.Session.rows
	rows := fmt.Sprintf("(SELECT %s AS id, t.claimed_until, t.next_attempt_at, t.attempts, t.last_error, %s AS place, (%s)::bigint AS at FROM %s WHERE t.finished_at IS NULL ORDER BY %[2]s LIMIT %[5]d) c",
		r.id, r.order, r.when, r.from, CountedRows+1)
	got, err := pg.Row[struct {
		Rows, Claimed, Waiting, Workers int
		Age                             *float64
	}](ctx, s.conn, "count the rows that are not delivered", fmt.Sprintf(`SELECT count(*) AS rows, count(*) FILTER (WHERE claimed_until >= now()) AS claimed, count(*) FILTER (WHERE next_attempt_at > now()) AS waiting,
 (SELECT count(DISTINCT pid) FROM pg_locks WHERE %s AND mode = 'ShareLock') AS workers,
 extract(epoch FROM clock_timestamp()) * 1000000 - (array_agg(at ORDER BY place))[1] AS age FROM %s`, lockIs(nameLock, digest(s.Claims.set.Name)), rows))
	if err != nil {
		return nil, err
	}
	b := &Backlog{Rows: min(got.Rows, CountedRows), More: got.Rows > CountedRows, Claims: &ClaimCounts{Claimed: got.Claimed, Waiting: got.Waiting, Workers: got.Workers}}
	if got.Age != nil {
		b.Oldest = time.Now().Add(-time.Duration(max(0, *got.Age)) * time.Microsecond)
	}
	b.Claims.Refused, err = pg.Rows[RefusedRow](ctx, s.conn, "read the rows that were refused",
		"SELECT id, attempts, coalesce(last_error, '') AS error, next_attempt_at AS next FROM "+rows+" WHERE attempts > 0 ORDER BY place LIMIT 10")
	return b, err
}
