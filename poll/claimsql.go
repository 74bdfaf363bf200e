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
	return s.exec(ctx, "set up the session", planSettings+"; "+flushSettings+"; SET "+tokenSetting+" = "+pg.QuoteLiteral(s.token))
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
		WAL   cdc.Position
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
func pooled(was, is int32) error {
	what := fmt.Sprintf("the connection changed from server process %d to %d", was, is)
	if was == is {
		what = fmt.Sprintf("another client uses server process %d between the transactions of walpost", is)
	}
	return fault.Config(fmt.Errorf("%s: the locks of the relay are lost", what),
		"Connect to Postgres directly, or to a pooler in session mode: polling holds locks of the session.")
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

// leftOut is the condition for the rows of t whose key no look leaves out.
func (s *claimer) leftOut() string {
	if len(s.avoid) == 0 {
		return "true"
	}
	keys := make([]string, 0, len(s.avoid))
	for key := range s.avoid {
		keys = append(keys, pg.QuoteLiteral(key))
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
		ready("o", takeOver), s.mine("o"), r.as("o"), r.keyColumn("o"), r.orderOf("o"), int64(math.MinInt64))
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
		now, were := time.Now(), len(s.avoid)
		maps.DeleteFunc(s.avoid, func(key string, a avoided) bool { return !blocked[key] && now.After(a.until) })
		s.start.again = len(s.avoid) < were
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
		if s.has(r) {
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
		sql := fmt.Sprintf("UPDATE %s SET %s FROM %s WHERE %s AND t.finished_at IS NULL RETURNING d.number",
			s.Session.rows.from, s.claiming(s.name), places(rows), s.place(rows))
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

// has reports whether the worker has a row already. If another session has locked the row, the lease can
// end on the server meanwhile.
func (s *claimer) has(r *claimed) bool {
	same := func(h *claimed) bool { return h.order == r.order && h.id == r.id }
	return slices.ContainsFunc(s.locked, same) || slices.ContainsFunc(s.held, same)
}

// claiming are the columns of a row that a name has claimed now.
func (s *claimer) claiming(name string) string {
	return fmt.Sprintf("claimed_by = %s, claimed_until = statement_timestamp() + interval '%d milliseconds'", pg.QuoteLiteral(name), s.Claims.set.Lease.Milliseconds())
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
	return fmt.Sprintf(`WITH c AS MATERIALIZED (SELECT %[1]s AS key, %[2]s AS at, d.number FROM %[3]s, %[4]s WHERE %[5]s AND t.finished_at IS NULL)
SELECT c.number FROM c JOIN (SELECT k.key, b.first FROM (SELECT key, max(at) AS last FROM c GROUP BY 1) k,
 LATERAL (SELECT %[6]s AS first FROM %[7]s WHERE (%[8]s, %[6]s) >= (k.key, '%[9]d'::bigint) AND (%[8]s, %[6]s) <= (k.key, k.last) AND o.finished_at IS NULL AND %[10]s IS NOT TRUE
  AND (%[6]s, coalesce(%[11]s, '')) NOT IN (SELECT at, id FROM %[4]s) ORDER BY %[8]s, %[6]s LIMIT 1) b) b ON b.key = c.key AND b.first <= c.at`,
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

// renew renews the leases of all rows. The first one of a session makes the claims the session's own.
func (s *claimer) renew(ctx context.Context) error {
	name := s.name
	if !s.adopted {
		s.count++
		name = fmt.Sprintf("%s#%d", s.worker, s.count)
	}
	rows := slices.SortedFunc(maps.Values(s.Claims.rows), func(a, b *claimed) int { return cmp.Compare(a.order, b.order) })
	from := time.Now()
	var locked, gone []*claimed
	for part := range slices.Chunk(rows, flushRows) {
		still := fmt.Sprintf("%s AND t.finished_at IS NULL AND %s", s.place(part), s.ours("t")) // also if the lease has ended and nobody has claimed the row
		got, err := s.change(ctx, "renew", places(part), still, fmt.Sprintf("UPDATE %s SET %s FROM free d WHERE %s", s.Session.rows.from, s.claiming(name), s.place(part)))
		if err != nil {
			return err
		}
		held, lost, err := s.left(ctx, part, got, still)
		if err != nil {
			return err
		}
		locked, gone = append(locked, held...), append(gone, lost...)
	}
	s.used = time.Now()
	for _, r := range locked {
		if r.until.IsZero() {
			r.until = s.until
		}
		if !r.given && r.end == unknown {
			s.drop(func(q *claimed) bool { return q == r })
			s.dropKey(r)
		}
	}
	for _, r := range s.locked {
		if !slices.Contains(locked, r) {
			r.until = time.Time{}
		}
	}
	s.locked = locked
	s.until, s.name, s.adopted = from.Add(s.Claims.set.Lease), name, true
	return s.gone(gone)
}

// flush writes the outcomes. The server may have done so already, if the answer was lost: then nothing is
// claimed by this process, and nothing is written twice.
func (s *claimer) flush(ctx context.Context) error {
	if !time.Now().Before(s.again) {
		s.ended, s.held = append(s.held, s.ended...), nil
	}
	for len(s.ended) > 0 {
		part := s.ended[:min(len(s.ended), flushRows)]
		locked, err := s.write(ctx, part)
		if err != nil {
			return err
		}
		for _, r := range part {
			delete(s.Claims.rows, r.number)
		}
		for _, r := range locked {
			s.Claims.rows[r.number] = r
		}
		if s.held = append(s.held, locked...); len(locked) > 0 {
			s.again = time.Now().Add(max(heldPause, time.Duration(len(s.held))*time.Millisecond))
		}
		s.ended = s.ended[len(part):]
		s.used = time.Now()
	}
	s.ended, s.soon = nil, time.Time{}
	if len(s.held) > 0 {
		s.soon = s.again
	}
	s.bind()
	return nil
}

// write writes the outcomes of rows, and returns those that other sessions have locked.
func (s *claimer) write(ctx context.Context, rows []*claimed) ([]*claimed, error) {
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
	place := s.place(rows)
	unfinished := fmt.Sprintf("%s AND t.finished_at IS NULL AND %s", place, s.ours("t"))
	written := map[uint32]bool{}
	if b.Len() > 0 {
		got, err := s.change(ctx, "finish", "(VALUES "+b.String()+") d (at, id, number, done, attempts, why, pause)", unfinished, fmt.Sprintf(`UPDATE %s SET finished_at = CASE WHEN d.done THEN now() END, claimed_by = NULL, claimed_until = NULL, attempts = d.attempts,
 last_error = coalesce(d.why, t.last_error), next_attempt_at = CASE WHEN d.pause > 0 THEN now() + d.pause * interval '1 millisecond' END FROM free d WHERE %s`, table, place))
		if err != nil {
			return nil, err
		}
		maps.Copy(written, got)
	}
	if len(done) > 0 {
		got, err := s.change(ctx, "delete", places(done), unfinished, fmt.Sprintf("DELETE FROM %s USING free d WHERE %s", table, place))
		if err != nil {
			return nil, err
		}
		maps.Copy(written, got)
	}
	locked, _, err := s.left(ctx, rows, written, unfinished)
	return locked, err
}

// left divides the rows that a statement has not changed: other sessions have locked some of them, and the
// others do not fulfil the condition any more. Somebody may have finished or removed a row, or a former
// statement of which the answer was lost.
func (s *claimer) left(ctx context.Context, rows []*claimed, changed map[uint32]bool, condition string) (locked, gone []*claimed, err error) {
	left := slices.DeleteFunc(slices.Clone(rows), func(r *claimed) bool { return changed[r.number] })
	if len(left) == 0 {
		return nil, nil, nil
	}
	still, err := s.run(ctx, "look for locked rows", fmt.Sprintf("SELECT d.number FROM %s, %s WHERE %s", s.Session.rows.from, places(left), condition))
	for _, r := range left {
		if still[r.number] {
			locked = append(locked, r)
		} else {
			gone = append(gone, r)
		}
	}
	return locked, gone, err
}

// change writes to the rows of a list, d, that fulfil a condition and that no other session has locked. It returns
// the numbers of these rows. statement changes the rows of free, which are those of the list.
func (s *claimer) change(ctx context.Context, what, list, condition, statement string) (map[uint32]bool, error) {
	free, err := s.run(ctx, what+" rows", fmt.Sprintf("WITH free AS MATERIALIZED (SELECT d.* FROM %s, %s WHERE %s FOR UPDATE OF t SKIP LOCKED), done AS (%s RETURNING d.number)\n"+
		"SELECT f.number, d.number FROM free f LEFT JOIN done d ON d.number = f.number", s.Session.rows.from, list, condition, statement))
	n := 0
	for _, changed := range free {
		if !changed {
			n++
		}
	}
	if err == nil && n > 0 { // these rows are locked by the statement, so they are still there
		err = s.suppressed(what, n)
	}
	return free, err
}

// run runs a statement that gives numbers of rows.
func (s *claimer) run(ctx context.Context, step, sql string) (map[uint32]bool, error) {
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
		numbers[uint32(number)] = len(got) < 2 || got[1] != nil
	}
	return numbers, nil
}

const (
	stateNotSupported = "0A000"
	suppressedHint    = "A row trigger (BEFORE UPDATE or BEFORE DELETE) or a rule of the table keeps walpost from writing the state of its rows. Change it so that it does not apply to the role of walpost. Make sure that no two rows have both the same order number and the same event id."
)

// suppressed is the error for rows that a statement had to change and did not change.
func (s *claimer) suppressed(what string, n int) error {
	return fault.Person(fmt.Errorf("%d rows of %s did not change when walpost tried to %s them: a trigger or a rule may suppress the change", n, s.Claims.set.Table, what), suppressedHint)
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
	return fault.Retry(fmt.Errorf("role %s has lost a privilege on %s: %w", s.facts.Server.Role, s.Claims.set.Table, err))
}

// backlog counts the rows that are not finished.
func (s *claimer) backlog(ctx context.Context, _ cdc.Position) (*Backlog, error) {
	r := s.Session.rows
	rows := fmt.Sprintf("(SELECT %s AS id, t.xmax AS locker, t.claimed_until, t.next_attempt_at, t.attempts, t.last_error, %s AS place, (%s)::bigint AS at FROM %s WHERE t.finished_at IS NULL ORDER BY %[2]s LIMIT %[5]d) c",
		r.id, r.order, r.Time, r.from, CountedRows+1)
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
	if err != nil {
		return b, err
	}
	locked, err := pg.Rows[struct{ ID, XID string }](ctx, s.conn, "read the rows that are locked", fmt.Sprintf(`SELECT coalesce(c.id, '') AS id, l.transactionid::text AS xid FROM %s JOIN pg_locks l ON l.transactionid = c.locker
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND coalesce(l.pid, 0) NOT IN (SELECT pid FROM pg_locks WHERE %s) ORDER BY place LIMIT 10`,
		rows, lockIs(nameLock, digest(s.Claims.set.Name))))
	for _, r := range locked {
		xid, _ := strconv.ParseUint(r.XID, 10, 32) //nolint:errcheck // the server wrote it
		by, err := s.blocker(ctx, cdc.Position(xid))
		if err != nil {
			return b, err
		}
		if by != nil {
			b.Claims.Locked = append(b.Claims.Locked, LockedRow{r.ID, by})
		}
	}
	return b, err
}
