package poll

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// Why no record of a worker arrives after another worker has taken over its key
//
// A worker that does not renew its leases must have stopped sending when another worker claims its rows.
// Nobody tells it so. Three rules, each with its own clock, make it true:
//
//  1. The worker measures a lease by its own monotonic clock, from before it asked the server. So it is
//     never later than the server. A quarter of the lease before the end (margin), the sink cuts its
//     connections to the brokers, and throws away what is in the buffers of the machine (Settings.Bound).
//     That needs no goroutine that may hang. Then the run ends (Overdue).
//  2. Only the server's clock says whether a lease has ended. A clock that jumps forward would end leases
//     early. So a worker takes over a lease only if it has seen, for a whole lease by its own clock, that
//     the server's clock goes as its own. In that time each worker that lives renews its leases, and each
//     other one has sent its last byte. Both clocks may differ by an eighth of the lease meanwhile, and
//     the margin is larger.
//  3. What is left of the margin, an eighth of the lease, is the time that a record may be on its way in
//     the network, and in the broker.

// A lease is what a worker knows of the leases of its rows.
type lease struct {
	until time.Time // of all rows but those of locked
	// locked are the rows whose lease could not be renewed, because another session has locked them.
	locked []*claimed
	bound  time.Time // what Settings.Bound was told
	clock  steady    // of the server

	flying int       // rows in flight
	moved  time.Time // when a row was last given to a relay without any, or ended
	gaveUp bool      // to deliver, because another worker can
	logged time.Time // when the worker last looked for ended leases that it does not take over
}

// margin is how long before the end of a lease nothing is sent any more.
func (k *Claims) margin() time.Duration { return k.set.Lease / 4 }

// safe reports whether rows may be given.
func (k *Claims) safe() bool { return !k.gaveUp && time.Now().Before(k.until.Add(-k.margin())) }

// bind tells the sink until when it may send.
func (k *Claims) bind() {
	var until time.Time
	switch {
	case len(k.rows) == 0:
	case k.gaveUp || len(k.lost) > 0:
		until = time.Now()
	default:
		until = k.until
		for _, r := range k.locked {
			if r.given && r.end == unknown && r.until.Before(until) {
				until = r.until
			}
		}
		until = until.Add(-k.margin())
	}
	if k.set.Bound != nil && !until.Equal(k.bound) {
		k.bound = until
		k.set.Bound(until)
	}
}

// Overdue returns an error if the leases of rows that are in flight are about to end. Then the caller
// sends nothing any more.
func (k *Claims) Overdue() error {
	k.lost = slices.DeleteFunc(k.lost, func(r *claimed) bool { return r.end != unknown })
	if n := len(k.lost); n > 0 {
		return fault.WithHint(fmt.Errorf("%d %w: their lease ended, or somebody changed or removed them", n, errGone),
			"Start walpost again. Nothing is lost, but events may be delivered twice.")
	}
	locked := slices.ContainsFunc(k.locked, func(r *claimed) bool {
		return r.given && r.end == unknown && !time.Now().Before(r.until.Add(-k.margin()))
	})
	switch {
	case !locked && (k.safe() || len(k.rows) == 0):
		return nil
	case k.gaveUp:
		return fault.WithHint(fmt.Errorf("this process has not reached the brokers for %s, and another worker of %s has: the relay gives up its rows", stallLeases*k.set.Lease, k.set.Table),
			"Find out why this machine does not reach the brokers, and start walpost again. Nothing is lost, but events may be delivered twice.")
	}
	why, what := "walpost could not renew it", "Find out why walpost did not reach the database for so long, or why it was suspended, and start walpost again."
	if k.safe() {
		why, what = "another session has locked the rows, so walpost cannot renew it", "walpost status names that session. Start walpost again."
	}
	return fault.WithHint(fmt.Errorf("the lease of rows of %s ends, and %s: the relay stops before another worker sends them", k.set.Table, why),
		what+" Nothing is lost, but events may be delivered twice.")
}

// A steady compares the server's clock with this process's monotonic clock.
type steady struct {
	begun  time.Time     // of the process: local times count from it
	offset time.Duration // of the server's clock
	since  time.Time     // the offset has been the same since then; zero for never
	slow   time.Duration // that the newest answer took, if it took too long
}

// observe notes that the server's clock said server at some time between before and after. It reports
// whether the clock has gone as the own clock for a lease.
func (c *steady) observe(server, before, after time.Time, lease time.Duration) bool {
	limit := lease / 32
	if c.slow = after.Sub(before); c.slow > limit {
		return false // it says too little, and the next one may say more
	}
	c.slow = 0
	if c.begun.IsZero() {
		c.begun = before
	}
	offset := time.Duration(server.UnixMicro())*time.Microsecond - before.Sub(c.begun)
	if moved := (offset - c.offset).Abs(); c.since.IsZero() || moved > limit {
		c.offset, c.since = offset, after
	}
	return before.Sub(c.since) >= lease
}

// tell logs, once in a lease, why leases of other workers have ended and this worker does not take over their rows.
func (s *claimer) tell(ctx context.Context) error {
	now, set := time.Now(), s.Claims.set
	if now.Sub(s.logged) < set.Lease {
		return nil
	}
	s.logged = now
	r := s.Session.rows
	found, err := pg.Row[struct{ Ended bool }](ctx, s.conn, "look for ended leases", fmt.Sprintf("SELECT EXISTS (SELECT FROM (SELECT t.claimed_by, t.claimed_until FROM %s WHERE t.finished_at IS NULL ORDER BY %s LIMIT %d) t WHERE t.claimed_until < now() AND NOT %s) AS ended",
		r.from, r.order, countedRows, s.claimedByProcess("t")))
	if err != nil || !found.Ended {
		return err
	}
	log, level, why := set.Logger, slog.LevelInfo, "walpost takes over their rows when the server's clock and this machine's clock have run at the same speed for as long as source.poll.lease"
	if s.clock.slow > 0 {
		log, level, why = log.With("took", s.clock.slow), slog.LevelWarn, "walpost does not take over their rows while the server's answers take longer than a 32nd of source.poll.lease"
	}
	log.Log(ctx, level, "leases of other workers have ended: "+why, "table", set.Table.String())
	return nil
}

// A worker that does not reach the brokers keeps its keys from others as long as it renews its leases. It
// gives them up if another worker of the relay delivers: then it has no acknowledgement for stallLeases
// times the lease, and its newest connection to a broker failed. It says by a lock that it is no such
// worker, so that workers do not pass rows around while nobody reaches the brokers.
const stallLeases = 2

// stalled reports whether the brokers cannot be reached.
func (k *Claims) stalled() bool {
	return k.flying > 0 && k.set.Unreachable != nil && time.Since(k.moved) >= stallLeases*k.set.Lease && k.set.Unreachable()
}

// giveUp gives up the leases if this worker cannot deliver, and another one can.
func (s *claimer) giveUp(ctx context.Context) error {
	stalled := s.stalled()
	if stalled == s.able {
		call := "pg_advisory_lock_shared"
		if stalled {
			call = "pg_advisory_unlock_shared"
		}
		if err := s.exec(ctx, "say whether the worker delivers", fmt.Sprintf("SELECT %s(%d, %d)", call, ableLock, digest(s.Claims.set.Name))); err != nil {
			return err
		}
		s.able = !stalled
	}
	if !stalled {
		return nil
	}
	pid, err := process(ctx, s.conn, holderQuery(ableLock, digest(s.Claims.set.Name)))
	if err == nil && pid != 0 {
		s.gaveUp = true
		s.bind()
	}
	return err
}
