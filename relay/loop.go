package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/fault"
)

const (
	busyWait     = 20 * time.Millisecond  // of Next while there is something to collect
	idleWait     = 250 * time.Millisecond // of Next while there is not; also how long a stop may go unnoticed
	maxBatch     = 32                     // events between two looks at the clock
	fullConfirm  = time.Second            // between Confirms while Next is not called: they alone notice a dead session
	confirmLimit = 5 * time.Second        // for one Confirm
	hungNext     = time.Second            // after a stop was asked for
	publishEvery = 100 * time.Millisecond
	goodSession  = 5 * time.Second // a session that lived this long makes the next attempt an immediate one
)

// A loop is one Run. All its fields belong to the goroutine of Run, except where they say otherwise.
type loop struct {
	*Relay

	// Beside the loop, one goroutine of each kind at a time, each reporting through its channel. They end with background.
	background context.Context
	reading    context.Context // for Next: ends a while after a stop was asked for
	cancel     context.CancelFunc
	unbind     func() bool
	wg         sync.WaitGroup
	saves      chan saved    // capacity 1
	checks     chan sighting // capacity 1
	attempts   chan attempt  // capacity 1
	arrived    *attempt      // came in and was not used yet

	// The session.
	sess       Session
	dead       Session // lost, not closed yet
	found      cdc.Identity
	runID      string                // of its checkpoint record
	commitTime time.Time             // of the newest event before it; zero where that is not known
	looked     *checkpoint.Published // the newest look that found what is published unchanged; nil where none did
	start      cdc.Position
	every      time.Duration // of Confirm
	opened     time.Time
	tries      int  // attempts since a session worked
	contested  bool // another process had the slot, or a gap was stepped over, since the newest session that was installed
	moved      bool // this session received or confirmed something new
	watched    bool // the monitor runs
	confirmed  cdc.Position
	lastOK     time.Time // of the last Confirm

	// What was read and what became of it.
	tracker  *checkpoint.Tracker // nil before the first session
	gen      uint64              // of tracker: acknowledgements of a former one must not reach this one
	progress progress
	marks    marks
	received cdc.Position
	rec      cdc.Record // filled by the router again and again
	acks     []cdc.Ack
	fresh    bool      // the next session must not go on with this tracker
	dropNext bool      // the next session must not skip what the checkpoint says was delivered
	stopping bool      // no way back to reading
	finished bool      // nothing is delivered any more
	outside  *halting  // what halts the run from outside, once the loop knows of it
	bad      *BadEvent // the first one; reading ended there

	copy *copying // nil while the stream is read

	skipping skipping
	skipped  uint64 // events passed over

	checkpointer checkpointer

	// For Status.
	now          time.Time // when the clock was looked at
	published    time.Time
	state        State
	reason       string
	batch        int // events until the next look at the clock
	batchSize    int
	sawEvent     bool // since the last look at the clock
	events       uint64
	transactions uint64
	windowFull   time.Duration
	latency      Histogram
	lastEvent    time.Time
	lastAck      time.Time
	recent       recent
	lost         edge            // no session
	stalled      edge            // the sink does not deliver
	storing      edge            // the checkpoint cannot be written
	check        edge            // the source cannot be checked
	told         map[string]told // remarks of the router
}

func newLoop(r *Relay) *loop {
	l := &loop{
		Relay: r, saves: make(chan saved, 1), checks: make(chan sighting, 1), attempts: make(chan attempt, 1),
		now: time.Now(), state: Starting, batchSize: 1, batch: 1,
	}
	l.background, l.cancel = context.WithCancel(context.Background())
	l.reading = l.background
	return l
}

// bound ends a Next that goes on although ctx has ended and its wait is over.
func (l *loop) bound(ctx context.Context) {
	reading, cancel := context.WithCancel(l.background)
	l.reading = reading
	l.unbind = context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(hungNext, cancel)
		context.AfterFunc(l.background, func() { timer.Stop() })
	})
}

// deliver works until ctx ends (nil) or until something cannot go on.
func (l *loop) deliver(ctx context.Context) error {
	for ctx.Err() == nil {
		var err error
		switch {
		case l.sess == nil:
			err = l.connect(ctx)
		case l.copy != nil:
			err = l.copyRows(ctx)
		default:
			err = l.stream(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stream reads and delivers until the session is lost, ctx ends, or something cannot go on.
func (l *loop) stream(ctx context.Context) error {
	for l.sess != nil {
		if l.full() {
			if err := l.waitFull(ctx); err != nil || ctx.Err() != nil {
				return err
			}
			continue
		}
		// Not ctx: a call that ctx cut short would leave a session that cannot confirm any more.
		ev, err := l.sess.Next(l.reading, l.patience())
		if err != nil {
			return l.lose(fmt.Errorf("read: %w", err))
		}
		if err := l.handle(ev); err != nil {
			return err
		}
		if l.batch--; l.batch > 0 && ev.Kind != cdc.Idle {
			continue
		}
		now := time.Now()
		l.pace(now.Sub(l.now))
		if err := l.tick(now); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// pace sets how many events may pass before the clock is looked at again: one while they are sparse, so that nothing waits for the next
// event, many while they are dense, where looking costs.
func (l *loop) pace(took time.Duration) {
	switch {
	case took < time.Millisecond:
		l.batchSize = min(2*l.batchSize, maxBatch)
	case took > 4*time.Millisecond:
		l.batchSize = 1
	}
	l.batch = l.batchSize
}

// patience is how long Next may wait.
func (l *loop) patience() time.Duration {
	if events, _ := l.tracker.InFlight(); events > 0 || l.checkpointer.busy {
		return min(busyWait, l.every/maxBatch)
	}
	return min(idleWait, l.every/4)
}

// full says whether the window is full. The transactions that are not safe are bounded too: with one key that waits for its broker
// and others that do not, little is in flight, but all that was read since is remembered, and comes again after a crash.
func (l *loop) full() bool {
	events, bytes := l.tracker.InFlight()
	return events >= l.cfg.Window.Events || int64(bytes) >= l.cfg.Window.Bytes || l.marks.len() > l.cfg.Window.Events
}

func (l *loop) waitFull(ctx context.Context) error {
	from := time.Now()
	if err := l.tick(from); err != nil || l.sess == nil || !l.full() {
		return err
	}
	l.wait(ctx.Done(), from.Add(fullConfirm/4))
	now := time.Now()
	l.windowFull += now.Sub(from)
	return l.tick(now)
}

// wait returns when there is something for tick, when stop is closed, or at until.
func (l *loop) wait(stop <-chan struct{}, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-l.sink.Wake():
	case s := <-l.saves:
		l.checkpointer.result(l, s)
	case a := <-l.attempts:
		l.arrived = &a
	case <-stop:
	case <-timer.C:
	}
}

// tick does everything that is due beside reading, at the time now. It never waits for more than a Confirm.
func (l *loop) tick(now time.Time) error {
	l.now = now
	if l.sawEvent {
		l.lastEvent, l.sawEvent = now, false
	}
	if err := l.collect(); err != nil {
		return err
	}
	select {
	case s := <-l.saves:
		l.checkpointer.result(l, s)
	default:
	}
	select {
	case k := <-l.checks:
		if err := l.checked(k); err != nil {
			return err
		}
	default:
	}
	select {
	case l.outside = <-l.halts:
		return l.outside
	default:
	}
	if l.tracker != nil {
		l.marks.drop(l.tracker.Safe()) // moved by acknowledgements and by commits
		if l.copy != nil {
			l.copy.advance(l.tracker.Safe())
		}
	}
	l.checkpointer.due(l)
	err := l.confirmIfDue()
	if now.Sub(l.published) >= publishEvery {
		l.publish()
	}
	return err
}

// collect takes what the sink has ended.
func (l *loop) collect() error {
	if l.tracker == nil {
		return nil
	}
	l.acks = l.sink.Acks(l.acks[:0])
	if len(l.acks) == 0 {
		return nil
	}
	var bad error // the first refusal, where the relay does not know of one yet
	for i := range l.acks {
		a := &l.acks[i]
		gen := a.Ticket.Tx >> genShift
		a.Ticket.Tx &= maxTx
		switch {
		case a.Err != nil:
			if refused := l.refusedBySink(a); bad == nil && l.bad == nil {
				bad = refused
			} else {
				l.anotherBad(refused)
			}
		case a.Err == nil && gen == l.gen:
			l.tracker.Ack(a.Ticket)
			l.events++
			if l.copy == nil { // how old a row of the table is says nothing of how fast it was delivered
				l.latency.add(a.Latency)
			}
		} // else of a tracker that was given up: its record is read and counted again
	}
	l.lastAck = l.now
	l.checkpointer.active = true
	return bad
}

// confirmIfDue tells the source what is safe: at once when there is something new, else as a sign of life.
func (l *loop) confirmIfDue() error {
	if l.sess == nil {
		return nil
	}
	every := l.every
	if l.stopping || l.full() {
		every = min(every, fullConfirm)
	}
	if l.checkpointer.durable <= l.confirmed && l.now.Sub(l.lastOK) < every {
		return nil
	}
	return l.confirm()
}

// confirm tells the source what is durable in the checkpoint, and never more.
func (l *loop) confirm() error {
	ctx, cancel := context.WithTimeout(l.background, confirmLimit)
	defer cancel()
	safe := l.checkpointer.durable
	if err := l.sess.Confirm(ctx, safe); err != nil {
		return l.lose(fmt.Errorf("confirm %s: %w", safe, err))
	}
	if safe > l.confirmed {
		l.confirmed, l.moved = safe, true
	}
	l.checkpointer.older = append(l.checkpointer.older, l.skipping.drop(l.confirmed)...)
	l.lastOK = l.now
	return nil
}

// lose ends the session because of err. It returns nil where another session can help.
func (l *loop) lose(err error) error {
	err = fmt.Errorf("session from %s: %w", l.start, err)
	l.dead, l.sess = l.sess, nil
	if l.moved || l.now.Sub(l.opened) >= goodSession {
		l.tries = 0
	}
	// A Next that was cut short because of a stop is no fault of the source.
	if !fault.Retryable(err) && (l.reading.Err() == nil || !errors.Is(err, context.Canceled)) {
		l.ended("refused", err)
		return err
	}
	l.ended("lost", err)
	// What is acknowledged goes into the record before the next session reads it: another server, after a failover, starts there.
	l.checkpointer.active, l.checkpointer.last = true, time.Time{}
	l.checkpointer.due(l)
	l.lost.fault(time.Now(), func(n int, _ time.Duration) {
		l.log.Warn().Err(err).Int("times", n).Int("in_flight", l.inFlight()).Msg("source lost")
	})
	if !l.stopping {
		l.setState(Connecting, "source lost: "+err.Error())
	}
	return nil
}

func (l *loop) inFlight() int {
	if l.tracker == nil {
		return 0
	}
	events, _ := l.tracker.InFlight()
	return events
}
