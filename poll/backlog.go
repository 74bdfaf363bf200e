package poll

import (
	"context"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// countedRows bounds Backlog.Rows, because counting costs the server time.
const countedRows = 10_000

// A Backlog is what one look found that is written and not delivered.
type Backlog struct {
	At       time.Time    // of the look
	Position cdc.Position // everything below it is delivered
	Rows     int          // that are not delivered, countedRows at the most
	More     bool         // there are more
	Oldest   time.Time    // when the oldest of them was written; zero for none, or if nothing tells it
	Blocker  *Blocker     // the transaction that delays them; nil for none
	Notify   bool         // the table has the trigger that notifies walpost
	Claims   *ClaimCounts // nil for the strategy cursor
}

// ClaimCounts are what workers claim, of the oldest countedRows rows that are not finished. They, and the types below, are also a part of
// /api/status.
type ClaimCounts struct {
	Claimed int          `json:"claimed_rows"` // whose lease has not ended
	Waiting int          `json:"waiting_rows"` // for their next attempt
	Workers int          `json:"workers"`
	Refused []RefusedRow `json:"refused"` // the oldest 10, never nil
	Locked  []LockedRow  `json:"locked"`  // the oldest 10, never nil
}

// A LockedRow is a row that a session has locked which is no worker. A worker can neither claim it nor write
// that it is delivered.
type LockedRow struct {
	ID  string `json:"id"`
	By  string `json:"by"`  // the transaction
	End string `json:"end"` // the SQL that ends it
}

// A RefusedRow is a row that was refused at least once, and is not finished.
type RefusedRow struct {
	ID       string   `json:"id"`
	Attempts int      `json:"attempts"`
	Error    string   `json:"error"`                // the newest
	Next     *float64 `json:"next_attempt_seconds"` // from the look to the next attempt; nil if the row does not wait
}

// Backlog looks at what is not delivered, on a connection of its own. Everything below the position at is
// delivered.
func (s *Source) Backlog(ctx context.Context, at cdc.Position) (*Backlog, error) {
	conn, err := s.set.DB.ConnectSQL(ctx)
	if err != nil {
		return nil, err
	}
	defer pg.Close(conn)
	f, err := s.set.Describe(ctx, conn)
	if err != nil {
		return nil, err
	}
	if unmet := condition.Unmet(s.set.Conditions(f)); len(unmet) > 0 {
		return nil, unmet[0].Fault(false)
	}
	b, err := s.session(conn, f).backlog(ctx, at.Number())
	if err != nil {
		return nil, err
	}
	b.At, b.Position, b.Notify = time.Now(), at, f.Notify
	return b, nil
}

// Watch keeps Status.Backlog new, until ctx ends. delivered is the position below which everything is
// delivered, 0 if this process does not know it.
func (s *Source) Watch(ctx context.Context, every time.Duration, delivered func() cdc.Position) {
	for failures := 0; ; {
		var b *Backlog
		var err error
		if at := delivered(); at != 0 {
			bounded, cancel := context.WithTimeout(ctx, max(3*every, 10*time.Second))
			b, err = s.Backlog(bounded, at)
			cancel()
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if failures++; failures == 1 {
				s.set.Logger.Warn("undelivered rows cannot be counted", "err", err)
			}
		case failures > 0:
			s.set.Logger.Info("undelivered rows can be counted again", "times", failures)
			failures = 0
		}
		s.mu.Lock()
		s.status.Backlog, s.status.BacklogErr = b, ""
		switch {
		case err != nil:
			s.status.BacklogErr = err.Error()
		case b != nil:
			s.status.BacklogAt = b.At
		}
		s.mu.Unlock()
		if !wait.For(ctx, every) {
			return
		}
	}
}

// delayAfter is the age from which a transaction counts as one that delays delivery. Every writer delays
// delivery for the moment that its transaction takes.
const delayAfter = time.Second

// newBacklog is a Backlog of so many rows, the oldest of which has an age in microseconds.
func newBacklog(rows int, age *float64) *Backlog {
	b := &Backlog{Rows: min(rows, countedRows), More: rows > countedRows}
	if age != nil {
		b.Oldest = time.Now().Add(-time.Duration(max(0, *age)) * time.Microsecond)
	}
	return b
}

// backlog counts the rows at and behind the position.
func (s *cursor) backlog(ctx context.Context, at uint64) (*Backlog, error) {
	got, err := pg.Row[struct {
		XMin, Newest uint64 `json:",string"` // 0 for no row
		Rows         int
		Age          *float64 // of the oldest row, in microseconds
	}](ctx, s.conn, "count the rows that are not delivered", fmt.Sprintf(`SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin,
 (SELECT count(*) FROM (SELECT FROM %[2]s WHERE %[3]s LIMIT %[5]d) c) AS rows,
 (SELECT %[1]s::text FROM %[2]s WHERE %[3]s ORDER BY %[1]s DESC LIMIT 1) AS newest,
 extract(epoch FROM clock_timestamp()) * 1000000 - o.at AS age
 FROM (SELECT 1) one LEFT JOIN (SELECT (%[4]s)::bigint AS at FROM %[2]s WHERE %[3]s ORDER BY %[1]s LIMIT 1) o ON true`,
		s.xid("t"), s.rows.from, s.atLeast("t", at), s.rows.Time, countedRows+1))
	if err != nil {
		return nil, err
	}
	b := newBacklog(got.Rows, got.Age)
	if got.Newest < got.XMin {
		return b, nil
	}
	blocker, err := s.blocker(ctx, got.XMin)
	if blocker != nil && (blocker.Since.IsZero() || time.Since(blocker.Since.Time) >= delayAfter) {
		b.Blocker = blocker
	}
	return b, err
}

// backlog counts the rows that are not finished.
func (s *claimer) backlog(ctx context.Context, _ uint64) (*Backlog, error) {
	r := s.Session.rows
	rows := fmt.Sprintf("(SELECT %s AS id, t.xmax AS locker, t.claimed_until, t.next_attempt_at, t.attempts, t.last_error, %s AS place, (%s)::bigint AS at FROM %s WHERE t.finished_at IS NULL ORDER BY %[2]s LIMIT %[5]d) c",
		r.id, r.order, r.Time, r.from, countedRows+1)
	got, err := pg.Row[struct {
		Rows, Claimed, Waiting, Workers int
		Age                             *float64
	}](ctx, s.conn, "count the rows that are not delivered", fmt.Sprintf(`SELECT count(*) AS rows, count(*) FILTER (WHERE claimed_until >= now()) AS claimed, count(*) FILTER (WHERE next_attempt_at > now()) AS waiting,
 (SELECT count(DISTINCT pid) FROM pg_locks WHERE %s AND mode = 'ShareLock') AS workers,
 extract(epoch FROM clock_timestamp()) * 1000000 - (array_agg(at ORDER BY place))[1] AS age FROM %s`, lockIs(nameLock, digest(s.Claims.set.Name)), rows))
	if err != nil {
		return nil, err
	}
	b := newBacklog(got.Rows, got.Age)
	b.Claims = &ClaimCounts{Claimed: got.Claimed, Waiting: got.Waiting, Workers: got.Workers, Refused: []RefusedRow{}, Locked: []LockedRow{}}
	refused, err := pg.Rows[RefusedRow](ctx, s.conn, "read the rows that were refused", `SELECT id, attempts, coalesce(last_error, '') AS error,
 CASE WHEN next_attempt_at IS NOT NULL THEN greatest(0, extract(epoch FROM next_attempt_at - now())) END AS next_attempt_seconds FROM `+rows+" WHERE attempts > 0 ORDER BY place LIMIT 10")
	if err != nil {
		return b, err
	}
	b.Claims.Refused = append(b.Claims.Refused, refused...)
	locked, err := pg.Rows[struct {
		ID  string
		XID uint64 `json:",string"`
	}](ctx, s.conn, "read the rows that are locked", fmt.Sprintf(`SELECT coalesce(c.id, '') AS id, l.transactionid::text AS xid FROM %s JOIN pg_locks l ON l.transactionid = c.locker
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND coalesce(l.pid, 0) NOT IN (SELECT pid FROM pg_locks WHERE %s) ORDER BY place LIMIT 10`,
		rows, lockIs(nameLock, digest(s.Claims.set.Name))))
	for _, r := range locked {
		by, err := s.blocker(ctx, r.XID)
		if err != nil {
			return b, err
		}
		if by != nil {
			b.Claims.Locked = append(b.Claims.Locked, LockedRow{r.ID, by.String(), by.End()})
		}
	}
	return b, err
}
