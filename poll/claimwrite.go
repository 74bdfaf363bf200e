package poll

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

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
		still := fmt.Sprintf("%s AND %s", s.matchesOpen(part), s.claimedByProcess("t")) // also if the lease has ended and nobody has claimed the row
		got, err := s.change(ctx, "renew", rowList(part), still, fmt.Sprintf("UPDATE %s SET %s FROM free d WHERE %s", s.Session.rows.from, s.claiming(name), s.matchesOpen(part)))
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
			pause = s.pause.Limit(r.attempts)
		}
		why := "NULL"
		if r.why != "" {
			why = pgname.QuoteLiteral(storable(r.why))
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "(%d::bigint, %s::text, %d::bigint, %t, %d, %s::text, %d)", r.order, pgname.QuoteLiteral(r.id), r.number, r.end == delivered, r.attempts, why, pause.Milliseconds())
	}
	table := s.Session.rows.from
	open := s.matchesOpen(rows)
	unfinished := fmt.Sprintf("%s AND %s", open, s.claimedByProcess("t"))
	written := map[uint32]bool{}
	if b.Len() > 0 {
		got, err := s.change(ctx, "finish", "(VALUES "+b.String()+") d (at, id, number, done, attempts, why, pause)", unfinished, fmt.Sprintf(`UPDATE %s SET finished_at = CASE WHEN d.done THEN now() END, claimed_by = NULL, claimed_until = NULL, attempts = d.attempts,
 last_error = coalesce(d.why, t.last_error), next_attempt_at = CASE WHEN d.pause > 0 THEN now() + d.pause * interval '1 millisecond' END FROM free d WHERE %s`, table, open))
		if err != nil {
			return nil, err
		}
		maps.Copy(written, got)
	}
	if len(done) > 0 {
		got, err := s.change(ctx, "delete", rowList(done), unfinished, fmt.Sprintf("DELETE FROM %s USING free d WHERE %s", table, open))
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
	still, err := s.run(ctx, "look for locked rows", fmt.Sprintf("SELECT d.number FROM %s, %s WHERE %s", s.Session.rows.from, rowList(left), condition))
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
