package poll

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// The rules of the strategies claim and delete
//
// The table says what is to be done. A row without finished_at is not delivered. A worker claims rows:
// it writes its name and the end of its lease into them. It finishes a row, or deletes it, only after the
// brokers have acknowledged the record.
//
// A key is one queue. A worker claims a row only if each older row of the key that is not finished is
// claimed by the same worker, or is claimed together with the row. So two workers never have rows of
// one key, and the sink keeps the order within one worker. A row that is locked or claimed elsewhere, or
// that waits for its next attempt, holds back all younger rows of its key, and no other row.
//
// lease.go says why no record of a worker arrives after another worker has taken over its key.
//
// claimed_by names the worker and its session. If the answer to a claim is lost with the connection,
// nobody knows that the rows are claimed. The next session has another name, so it does not take these
// rows for its own, and waits for the end of their lease.

const (
	claimRows  = 1000 // claimed by one look
	flushRows  = 1000 // outcomes that are written at once
	flushAfter = 20 * time.Millisecond
	avoidFor   = time.Second           // no look at a key whose oldest row another session has locked
	lookPasses = 8                     // of one look, to find out which keys are blocked
	wholeEvery = time.Second           // between two whole looks while keys are left out
	errorBytes = 1000                  // of last_error
	heldPause  = 50 * time.Millisecond // between two tries to write to rows that other sessions have locked; longer for many
	leaveLimit = time.Second           // for such a row, when the worker stops
)

// retryPause is the time before the next attempt at a row, by how often it was refused. Refused rows have nothing to
// spread, so the pause is the Limit.
var retryPause = backoff.Backoff{Min: time.Second, Max: 5 * time.Minute}

// An ending is what becomes of a claimed row.
type ending uint8

const (
	unknown   ending = iota // waits to be given, or is in flight
	delivered               // acknowledged
	refused                 // tried again later
	returned                // not sent: any worker may claim it at once
)

// A claimed is a row that this process has claimed, and whose outcome is not in the table yet.
type claimed struct {
	row
	number    uint32
	key       string
	keyed     bool
	attempts  int    // that were refused, by any worker
	why       string // of a refusal by this process
	given     bool   // to the relay
	exhausted bool   // no further attempt: the policy decides
	end       ending
	until     time.Time // of the lease, if another session has kept the worker from renewing it
}

// A start is where looks begin. While keys are left out, very many of their rows may be older than the first one
// that can be claimed. So only one look in a while begins at the oldest row (whole). The others begin where the
// whole look before the newest one found nothing older to claim. A row that appears before that place had an
// order number for that long before it could be claimed, and waits for the next whole look.
type start struct {
	from, next int64
	moved      time.Time // when from was set
	again      bool      // the next look is whole
}

// An avoided key is one whose oldest row cannot be claimed: another worker has it, or it waits for its next
// attempt. Each look examines the key by a row of it.
type avoided struct {
	order int64     // of that row
	until time.Time // the key is left out in any case, because nothing but a claim tells that its oldest row is locked
}

// Claims are the rows that one process has claimed. They outlive a session. All methods belong to the
// goroutine that uses the session.
type Claims struct {
	set    *Settings
	worker string // of this process
	count  int    // of the sessions that claimed
	name   string // claimed_by of the newest session
	lease
	lost []*claimed // were in flight when they were not claimed any more

	rows  map[uint32]*claimed // all
	last  uint32              // number
	queue []*claimed          // not given, in order
	ended []*claimed          // whose outcome is to be written
	since time.Time           // of the oldest outcome
	held  []*claimed          // have ended, but other sessions have locked them
	again time.Time           // when held is tried again
	avoid map[string]avoided  // the keys that looks leave out
	start start

	pos         uint64          // end of the newest transaction
	inTx, begun bool            // a transaction is open, and its Begin is given
	pause       backoff.Backoff // retryPause, or less in a test
}

func newClaims(set *Settings) *Claims {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Claims{
		set: set, worker: fmt.Sprintf("%s:%d:%08x", host, os.Getpid(), uint32(digest(fmt.Sprint(time.Now().UnixNano(), os.Getpid())))),
		rows: map[uint32]*claimed{}, avoid: map[string]avoided{}, start: start{from: math.MinInt64, next: math.MinInt64}, pause: retryPause,
	}
}

// Delivered notes that the brokers have acknowledged the record of a row, or that the row gives none.
func (k *Claims) Delivered(number uint32) { k.finish(k.rows[number], delivered) }

// Returned notes that the record of a row was not sent, because an older record of its key was refused.
func (k *Claims) Returned(number uint32) {
	if r := k.rows[number]; r != nil {
		k.finish(r, returned)
		k.dropKey(r)
	}
}

// Refused notes that this row alone cannot be delivered, and why. It reports whether the row is tried
// again later: then no younger row of the key is given before. Otherwise the caller decides.
func (k *Claims) Refused(number uint32, why string) (again bool) {
	r := k.rows[number]
	if r == nil || r.end != unknown {
		return false
	}
	r.attempts++
	r.why = why
	if k.set.Attempts > 0 && r.attempts >= k.set.Attempts {
		r.exhausted = true
		return false
	}
	k.finish(r, refused)
	k.dropKey(r)
	k.set.Logger.Warn("a row was refused and is tried again; younger rows of its key wait for it",
		"table", k.set.Table.String(), "id", r.id, "attempts", r.attempts, "again_in", k.pause.Limit(r.attempts), "err", why)
	return true
}

func (k *Claims) finish(r *claimed, how ending) {
	if r == nil || r.end != unknown {
		return
	}
	now := time.Now()
	if len(k.ended) == 0 {
		k.since = now
	}
	if r.given {
		k.flying--
		k.moved = now
	}
	r.end = how
	k.ended = append(k.ended, r)
}

// dropKey returns the rows of r's key that are not given.
func (k *Claims) dropKey(r *claimed) {
	if r.keyed {
		k.drop(func(q *claimed) bool { return q.keyed && q.key == r.key })
	}
}

func (k *Claims) drop(which func(*claimed) bool) {
	kept := k.queue[:0]
	for _, q := range k.queue {
		if which(q) {
			k.finish(q, returned)
		} else {
			kept = append(kept, q)
		}
	}
	k.queue = kept
}

func all(*claimed) bool { return true }

// A claimer is the strategy of one session.
type claimer struct {
	*Session
	*Claims
	begins  bool    // the relay uses this session
	adopted bool    // the claims are this session's
	able    bool    // the session has the lock of a worker that can deliver
	token   string  // of the session, in its settings on the server
	wal     cdc.LSN // that is on the server's disk, at the newest look
}

// beginning has nothing to find out, because each row says whether it is delivered. A worker that comes to others goes on with what they
// left, even if it finds no record, as with a checkpoint file of its own.
func (s *claimer) beginning(ctx context.Context, _ bool) (uint64, error) {
	set := s.Claims.set
	if set.Snapshot == "initial" {
		return 1, nil
	}
	has, err := pg.Row[struct{ Rows, Claimed bool }](ctx, s.conn, "look for rows", fmt.Sprintf(`SELECT EXISTS (SELECT FROM %[1]s WHERE t.finished_at IS NULL) AS rows,
 EXISTS (SELECT FROM %[1]s WHERE t.claimed_by IS NOT NULL OR t.finished_at IS NOT NULL) OR EXISTS (SELECT FROM pg_locks WHERE %[2]s AND pid <> pg_backend_pid()) AS claimed`,
		s.Session.rows.from, lockIs(nameLock, digest(set.Name))))
	if err == nil && has.Rows && !has.Claimed {
		err = fault.Config(fmt.Errorf("table %s has rows that are not finished, and neither a row nor a checkpoint says that a relay has claimed any of them", set.Table),
			"Set source.snapshot to \"initial\" to publish these rows. To leave some of them out, set finished_at in exactly those rows first.")
	}
	return 1, err
}

// seek begins behind at. The relay has forgotten what it was in the middle of.
func (s *claimer) seek(at, _ uint64) {
	s.begins = true
	s.pos = max(s.pos, at)
	s.drop(all)
	s.inTx, s.begun = false, false
}

// proceed goes on: the Claims have the place.
func (s *claimer) proceed() { s.begins = true }

// next returns the next event of the open transaction, nil if none is open.
func (s *claimer) next(ctx context.Context) (*cdc.Event, error) {
	ctx, release := patient(ctx)
	defer release()
	if err := s.keep(ctx); err != nil {
		return nil, err
	}
	switch {
	case !s.inTx:
		return nil, nil //nolint:nilnil // no event is none
	case !s.begun:
		s.begun = true
		s.pos += 2
		s.event = cdc.Event{Kind: cdc.Begin, Pos: cdc.Numbered(s.pos - 1), WAL: s.wal, Time: time.Now().UTC()}
		if len(s.queue) > 0 {
			s.event.Time = s.queue[0].row.event.Time
		}
		return &s.event, nil
	case len(s.queue) > 0:
		r := s.queue[0]
		s.queue, r.given = s.queue[1:], true
		if s.flying++; s.flying == 1 {
			s.moved = time.Now()
		}
		ev := r.row.event
		ev.Claim, r.row.event = r.number, nil
		return ev, nil
	}
	s.inTx, s.begun = false, false
	s.event = cdc.Event{Kind: cdc.Commit, Pos: cdc.Numbered(s.pos), Time: time.Now().UTC()}
	return &s.event, nil
}

// stopLimit is how long a statement may go on after a stop was asked for. A statement that is cut short
// loses the session, and without a session nobody writes what is delivered.
const stopLimit = 5 * time.Second

// patient returns a context that ends stopLimit after ctx.
func patient(ctx context.Context) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopLimit, cancel) })
	return longer, func() { stop(); cancel() }
}

// keep does what is due: it renews the leases and writes outcomes.
func (s *claimer) keep(ctx context.Context) error {
	now := time.Now()
	if !s.adopted || len(s.Claims.rows) > 0 && s.until.Sub(now) < s.Claims.set.Lease*2/3 {
		if err := s.giveUp(ctx); err != nil || s.gaveUp {
			return err
		}
		if err := s.renew(ctx); err != nil {
			return err
		}
	}
	if len(s.queue) > 0 && !s.safe() {
		s.drop(all)
	}
	if len(s.ended) >= flushRows || len(s.ended) > 0 && now.Sub(s.since) >= flushAfter || len(s.held) > 0 && !now.Before(s.again) {
		return s.flush(ctx)
	}
	return nil
}

// poll claims rows.
func (s *claimer) poll(ctx context.Context) error {
	ctx, release := patient(ctx)
	defer release()
	s.due = time.Now().Add(s.Claims.set.Interval)
	if err := s.flush(ctx); err != nil {
		return err
	}
	if s.stalled() {
		s.src.countLook()
		return nil
	}
	rows, err := s.claim(ctx)
	if err != nil {
		return err
	}
	s.used = time.Now()
	s.src.countLook()
	if len(rows) == 0 {
		return nil
	}
	s.queue, s.inTx, s.begun = rows, true, false
	s.due = time.Now() // there may be more
	return nil
}

// confirm writes what has ended. While the relay only opens the session,
// confirm runs beside the goroutine that has the Claims.
func (s *claimer) confirm(ctx context.Context) error {
	if !s.begins {
		return nil
	}
	if err := s.keep(ctx); err != nil {
		return err
	}
	return s.flush(ctx)
}

// leave gives back what was not given to the relay, and writes all outcomes. What is in flight keeps its
// claim until the lease ends, because its records may still arrive.
func (s *claimer) leave(ctx context.Context) error {
	if !s.adopted {
		return nil
	}
	s.drop(all)
	for _, r := range s.Claims.rows {
		if r.exhausted {
			s.finish(r, refused)
		}
	}
	for until := time.Now().Add(leaveLimit); ; {
		s.again = time.Time{}
		if err := s.flush(ctx); err != nil || len(s.held) == 0 {
			return err
		}
		if !time.Now().Before(until) || !wait.For(ctx, flushAfter) {
			s.Claims.set.Logger.Warn("other sessions have locked rows, so walpost cannot mark these rows as delivered: their events will be delivered again",
				"rows", len(s.held), "table", s.Claims.set.Table.String())
			return nil
		}
	}
}

// errGone says that the claims of rows in flight are gone.
var errGone = errors.New("rows in flight are not claimed by this worker any more")

// gone takes rows that are not claimed by this process any more.
func (k *Claims) gone(rows []*claimed) error {
	k.lost = nil
	for _, r := range rows {
		switch {
		case r.end != unknown:
		case r.given:
			k.lost = append(k.lost, r)
		default:
			k.drop(all) // the rows of one key belong together
		}
	}
	k.bind()
	if n := len(k.lost); n > 0 {
		return fault.Retry(fmt.Errorf("%d %w", n, errGone))
	}
	return nil
}
