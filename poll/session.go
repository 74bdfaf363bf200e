package poll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// statusEvery is the longest time between two Confirms.
const statusEvery = 10 * time.Second

// A strategy is how a session gives rows. It belongs to one session. What must outlive a session, it
// keeps in the Source.
type strategy interface {
	// beginning is the position where a relay begins that has no checkpoint. anyway says that a person
	// has decided what becomes of the rows that are there.
	beginning(ctx context.Context, anyway bool) (uint64, error)
	// seek and proceed are Session.Seek and Session.Continue.
	seek(at, open uint64)
	proceed()
	// poll looks at the table once, so that next has something to give. It sets Session.due.
	poll(ctx context.Context) error
	// next returns the next event that can be given without a look for new rows, nil if there is none.
	// The event is valid until the next call.
	next(ctx context.Context) (*cdc.Event, error)
	// confirm is Session.Confirm.
	confirm(ctx context.Context) error
	// leave gives back what the session holds, before it closes in an orderly way.
	leave(ctx context.Context) error
	// backlog looks at what is not delivered, if everything below at is delivered. The session may have no
	// lock. The caller sets At, Position and Notify.
	backlog(ctx context.Context, at uint64) (*Backlog, error)
}

// A Session is one connection that polls. It is a relay.Session and a relay.Seeker.
type Session struct {
	strategy
	src      *Source
	conn     *pgconn.PgConn
	pid      int32 // of the server process
	facts    *Facts
	rows     *rowReader
	identity cdc.Identity

	due    time.Time // of the next look at the table
	soon   time.Time // when next has something to do before that; zero for never
	woken  bool      // a notification came
	broken bool      // a call failed
	looked time.Time // when the newest look began
	used   time.Time // when the server last answered

	event cdc.Event
}

// Identity is what Open found, and after Start what was found while this session has the lock.
func (s *Session) Identity() cdc.Identity { return s.identity }

// Start takes the locks. It waits until ctx ends for a lock that another process has.
func (s *Session) Start(ctx context.Context, _ cdc.Position) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	if err := s.claimTable(ctx); err != nil {
		return err
	}
	if err := s.recheck(ctx); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, "LISTEN "+pgname.QuoteIdent(channel(s.src.set.Table))).ReadAll(); err != nil {
		return pg.Classify(fmt.Errorf("listen for new rows: %w", err))
	}
	if c, ok := s.strategy.(*claimer); ok {
		if err := c.setUp(ctx); err != nil {
			return err
		}
	}
	s.src.mu.Lock()
	s.src.pid = s.pid
	s.src.mu.Unlock()
	s.used = time.Now()
	return nil
}

// Seek has the session begin at the position at. If open is not 0, the first transaction begins there.
func (s *Session) Seek(at, open cdc.Position, border string) {
	s.src.setBorder(border)
	s.seek(at.Number(), open.Number())
}

// Continue has the session go on behind the newest event that a session of the Source gave.
func (s *Session) Continue() { s.proceed() }

// Next returns the next event, or an Idle if nothing came for wait. The event is valid until the next
// call.
func (s *Session) Next(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	ev, err := s.await(ctx, wait)
	s.broken = s.broken || err != nil
	return ev, s.reopens(err)
}

func (s *Session) await(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	until := time.Now().Add(wait)
	for polled := false; ; {
		ev, err := s.next(ctx)
		if ev != nil || err != nil {
			return ev, err
		}
		now := time.Now()
		due := s.due
		if s.woken {
			due = s.looked.Add(lookGap)
		}
		switch {
		case !now.Before(due) && (!polled || now.Before(until)):
			polled, s.woken, s.looked = true, false, now
			err = s.poll(ctx)
		case !now.Before(until):
			s.event = cdc.Event{Kind: cdc.Idle}
			return &s.event, nil
		case s.woken:
			time.Sleep(min(due.Sub(now), until.Sub(now)))
		default:
			limit := min(due.Sub(now), until.Sub(now))
			if !s.soon.IsZero() {
				limit = min(limit, max(s.soon.Sub(now), lookGap))
			}
			err = s.listen(ctx, limit)
		}
		if err != nil {
			return nil, err
		}
	}
}

// lookGap is the least time between two looks that find nothing to deliver, however many notifications
// come.
const lookGap = 5 * time.Millisecond

// listen waits for a notification, for no longer than limit.
func (s *Session) listen(ctx context.Context, limit time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.conn.WaitForNotification(waiting)
	if err != nil && (waiting.Err() == nil || ctx.Err() != nil || s.conn.IsClosed()) {
		return pg.Classify(fmt.Errorf("wait for new rows: %w", err))
	}
	return nil
}

// Confirm looks whether the session still lives.
func (s *Session) Confirm(ctx context.Context, _ cdc.Position) error {
	if s.conn.IsClosed() {
		return fault.Retry(errors.New("the connection is closed"))
	}
	if err := s.confirm(ctx); err != nil {
		s.broken = true
		return s.reopens(err)
	}
	if time.Since(s.used) < statusEvery/2 {
		return nil
	}
	if _, err := s.conn.Exec(ctx, "SELECT 1").ReadAll(); err != nil {
		return pg.Classify(fmt.Errorf("ask for a sign of life: %w", err))
	}
	s.used = time.Now()
	return nil
}

// StatusEvery is the longest time between two Confirms.
func (s *Session) StatusEvery() time.Duration {
	if s.src.set.Claims() {
		return min(statusEvery, s.src.set.Lease/6)
	}
	return statusEvery
}

// Close frees the locks, and what the session holds if no call has failed.
func (s *Session) Close(ctx context.Context) (err error) {
	if !s.broken && !s.conn.IsClosed() {
		err = s.leave(ctx)
	}
	return errors.Join(err, s.conn.Close(ctx))
}

func (s *Session) exec(ctx context.Context, step, sql string) error {
	if _, err := s.conn.Exec(ctx, sql).ReadAll(); err != nil {
		return pg.Classify(fmt.Errorf("%s: %w", step, err))
	}
	return nil
}

// reopens makes the error of a missing table or column one that can be retried. The next Open examines the table, and its error says
// what is missing and what repairs it.
func (s *Session) reopens(err error) error {
	if state := pg.SQLState(err); state != stateNoTable && state != stateNoColumn {
		return err
	}
	return fault.Retry(fault.WithHint(err, "If the outbox table has every column that walpost needs, look for a trigger, rule, policy or function of the table that names a table or column that does not exist, and correct it. Nothing is lost."))
}

const (
	stateNoTable  = "42P01"
	stateNoColumn = "42703"
)
