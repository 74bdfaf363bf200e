package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/failpoint"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/flight"
)

const (
	busyWait     = 20 * time.Millisecond  // of Next while acknowledgements or a write are awaited
	soonWait     = time.Millisecond       // of Next until recently after a dead letter
	recently     = 200 * time.Millisecond // until a topic has refused its next record
	idleWait     = 250 * time.Millisecond // of Next otherwise; a stop may go unnoticed for so long
	maxBatch     = 32                     // events between two looks at the clock
	fullConfirm  = time.Second            // between Confirms while Next is not called
	confirmLimit = 5 * time.Second        // for one Confirm
	hungNext     = time.Second            // how long Next may go on after a stop was asked for
	publishEvery = 100 * time.Millisecond
	goodSession  = 5 * time.Second // a session that lived this long makes the next attempt an immediate one
)

// A loop is one Run. Its fields, and those of its parts, belong to the goroutine of Run.
type loop struct {
	relay *Relay
	parts
	phase     phase
	parker    parker
	monitor   monitor
	connector connector
	shutdown  shutdown

	acks     []cdc.Ack
	parkWake <-chan struct{} // of the topic of parked events; nil without one
}

// parts are what the loop shares with its phases and the parker.
type parts struct {
	*opener
	*tasks
	*link
	*board
	*course
	*traffic
	*badEvents
	checkpointer *checkpointer
}

// A link is the session, and what is known of the sessions before it.
type link struct {
	held
	contested bool            // another process had the slot, or a gap was accepted, since the newest session
	worked    bool            // the start is over: a session has delivered, or another relay was waited for
	begun     bool            // a session has begun: the phase is a real one, and the monitor runs
	reading   context.Context // for Next; it ends a while after a stop was asked for
}

// held is what the loop knows of the newest session, which holds the slot unless it is lost.
type held struct {
	sess      Session // nil once it is lost
	found     cdc.Identity
	start     cdc.Position
	every     time.Duration // between two Confirms
	opened    time.Time
	moved     bool // it received or confirmed something new
	confirmed cdc.Position
	lastOK    time.Time // of the last Confirm
}

// traffic is what is routed and sent.
type traffic struct {
	router  Router
	sink    Sink
	keeper  Keeper // nil for a source of positions
	flight  flight.Flight
	rec     cdc.Record    // the router fills it again and again
	awaits  fault.Awaited // what the router needs for the event that was read last; nil for nothing
	outcome Delivery      // the observer's, filled again and again
}

func newLoop(r *Relay) *loop {
	keeper, _ := r.source.(Keeper)
	p := parts{
		opener: r.opener, tasks: newTasks(), link: &link{}, board: &board{now: time.Now(), st: r.Status()},
		course:  &course{at: atStart.rules(), reason: "starting"},
		traffic: &traffic{router: r.router, sink: r.sink, keeper: keeper},
	}
	p.reading = p.background
	l := &loop{relay: r}
	p.checkpointer = &checkpointer{opener: p.opener, tasks: p.tasks, board: p.board, parker: &l.parker, durable: new(checkpoint.Record)}
	p.checkpointer.commits.Committer = r.committer
	p.badEvents = &badEvents{opener: p.opener, link: p.link, board: p.board, traffic: p.traffic, checkpointer: p.checkpointer}
	l.parts, l.parker = p, parker{parts: p, l: l}
	l.monitor = monitor{opener: p.opener, tasks: p.tasks, link: p.link, board: p.board, checkpointer: p.checkpointer}
	l.connector, l.shutdown = connector{parts: p, l: l}, shutdown{parts: p, l: l}
	if r.cfg.Parking != nil {
		l.parkWake = r.cfg.Parking.Wake()
	}
	l.phase = l.newStreaming(nil) // of nothing, until the first session begins
	return l
}

// bound ends a Next that goes on although ctx has ended and its wait is over. The caller must call
// the function that it returns.
func (l *link) bound(ctx, background context.Context) (release func() bool) {
	reading, cancel := context.WithCancel(background)
	l.reading = reading
	return context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(hungNext, cancel)
		context.AfterFunc(background, func() { timer.Stop() })
	})
}

// deliver works until ctx ends (nil) or until something cannot go on.
func (l *loop) deliver(ctx context.Context) error {
	for ctx.Err() == nil {
		work := l.connector.connect
		if l.sess != nil {
			work = l.phase.run
		}
		if err := work(ctx); err != nil {
			return err
		}
	}
	return nil
}

// full reports whether the window is full. It also bounds the transactions that are not safe. When
// one key waits for its broker and other keys do not, little is in flight. But the loop remembers
// all that was read since, and a crash brings all of it again.
func (l *loop) full() bool {
	events, bytes := l.flight.Tracker.InFlight()
	return l.parker.waits() || !l.parker.writable() || events >= l.cfg.Window.Events || int64(bytes) >= int64(l.cfg.Window.Bytes) || l.flight.Waiting() > l.cfg.Window.Events
}

// startFlight begins to count from start, and forgets what was counted before.
func (l *loop) startFlight(start cdc.Position) {
	l.flight = l.flight.Next(start)
	l.parker.parkingFlight = parkingFlight{}
	l.checkpointer.sent, l.checkpointer.frozen = l.flight.Sent, false
	l.checkpointer.commits.cutSends = l.flight.Sent
}

// route makes l.rec the record of ev. It reports whether ev gives one. If the router needs the answer of
// a schema registry for that, the loop waits, and does everything but read. If the loop fails, ctx ends or
// the session is lost before the answer comes, err is an *unread. Then the phase must end without another
// event.
func (l *loop) route(ctx context.Context, ev *cdc.Event) (ok bool, err error) {
	for {
		l.rec.EventID = "" // the router sets it, if it gets that far
		ok, err = l.router.Route(ev, &l.rec)
		if l.awaits = fault.Awaits(err); l.awaits == nil {
			return ok, err
		}
		l.checkpointer.commits.more = false
		for !l.awaits.Ready() {
			l.wait(ctx.Done(), time.Now().Add(awaitLook))
			if err := l.tick(time.Now()); err != nil || ctx.Err() != nil || l.sess == nil {
				l.awaits = nil
				return false, &unread{err}
			}
		}
	}
}

// awaitLook is how soon the loop sees an answer.
const awaitLook = 5 * time.Millisecond

// An unread says that the event that was read last was not handled. err is what ends the run, or nil if
// the event comes again.
type unread struct{ err error }

func (*unread) Error() string { return "the event was not handled" }

// unlessUnread is the error with which a phase ends because of err.
func unlessUnread(err error) error {
	if end, is := errors.AsType[*unread](err); is {
		return end.err
	}
	return err
}

// send hands l.rec to the sink, or to the topic of parked events. It is event number row of the transaction at commit, or row number
// row of the table if commit is 0. The transaction that it counts for begins at begin.
func (l *loop) send(begin, commit cdc.Position, row int, table *cdc.Relation, verdict parking.Verdict) {
	if l.at.sends != sendsNew {
		panic(fmt.Sprintf("relay: an event is sent in the stage %q", l.at.stage))
	}
	ticket := l.flight.Tracker.Add(l.rec.Size())
	l.flight.Count(&ticket, begin)
	ticket.Commit, ticket.Row, ticket.Table = commit, uint32(row), table
	if verdict == parking.Park {
		rec := l.rec
		l.parker.append(&rec, ticket)
	} else {
		failpoint.Hit(failpoint.Send)
		l.sink.Send(&l.rec, ticket)
	}
	l.rec = cdc.Record{} // its bytes belong to the sink now, and the next event may be long in coming
}

// wait returns when there is something for tick, when stop is closed, at until unless that is zero,
// and after publishEvery.
func (l *loop) wait(stop <-chan struct{}, until time.Time) { l.waitOr(nil, stop, until) }

// waitOr is wait that also returns for a row, and then reports true.
func (l *loop) waitOr(rows <-chan FedRow, stop <-chan struct{}, until time.Time) (FedRow, bool) {
	limit := publishEvery
	if !until.IsZero() {
		limit = min(limit, time.Until(until))
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case row := <-rows:
		return row, true
	case <-l.sink.Wake():
	case <-l.parkWake:
	case report := <-l.reports:
		report()
	case ask := <-l.relay.asks:
		ask(l)
	case <-stop:
	case <-timer.C:
	}
	return FedRow{}, false
}

// tick does everything that is due beside reading, at the time now. It never waits for more than a
// Confirm.
func (l *loop) tick(now time.Time) error {
	l.now = now
	if l.sawEvent {
		l.st.LastEvent.Time, l.sawEvent = now, false
	}
	if err := l.collect(); err != nil {
		return err
	}
	if err := l.overdue(); err != nil && !l.ending() {
		return err
	}
	for len(l.reports) > 0 {
		(<-l.reports)()
	}
	if err := l.monitor.judge(l.phase); err != nil {
		return err
	}
	if l.sess != nil && l.checkpointer.durable.Timeline > l.found.Timeline { // the next session names places by the new history
		return l.lose(fault.Retry(fmt.Errorf("the server is on timeline %d now", l.checkpointer.durable.Timeline)))
	}
	select {
	case ask := <-l.relay.asks:
		ask(l)
	default:
	}
	if err := l.shutdown.asked(); err != nil {
		return err
	}
	l.phase.advance()
	if err := l.parker.advance(); err != nil {
		return err
	}
	l.checkpointer.due(now, l.phase, !l.ending())
	err := l.confirmIfDue()
	if now.Sub(l.st.Turned) >= publishEvery {
		l.publish()
	}
	return err
}

// overdue returns an error if nothing may be sent any more, because another process may soon deliver
// what is in flight.
func (t *traffic) overdue() error {
	if t.keeper == nil || t.inFlight() == 0 {
		return nil
	}
	return t.keeper.Overdue()
}

// take takes what the sink has ended.
func (l *loop) take() error {
	letters, other := l.parker.collect() // the first fault that is no bad event
	l.acks = append(l.sink.Acks(l.acks[:0]), letters...)
	if len(l.acks) == 0 {
		return other
	}
	failpoint.Hit(failpoint.Ack)
	defer clear(l.acks) // their ids are parts of payloads
	var bad error       // the first refusal, if the relay does not know one yet
	for i := range l.acks {
		a := &l.acks[i]
		if a.Err == nil {
			l.recent.Add(a.Topic, a.EventID, l.now)
			l.observe(a)
		}
		switch {
		case flight.Untracked(&a.Ticket):
			other = cmp.Or(other, l.parker.Delivered(a))
		case claimEnded(l.keeper, a, l.sink.PassOver):
			l.flight.Ack(a.Ticket)
		case errors.Is(a.Err, cdc.ErrTakenBack):
			other = cmp.Or(other, l.parker.tookBack(a))
		case a.Err != nil:
			refused := l.named(badevent.Refused(a))
			parked, err := l.parker.parkRefused(refused, a)
			switch {
			case err != nil:
				other = cmp.Or(other, err)
			case parked:
			case l.buryRecord(refused, a):
			case bad == nil && l.shutdown.bad == nil:
				l.observe(a)
				bad = l.recordHalt(refused)
			default:
				l.observe(a)
				l.shutdown.anotherBad(l.recordHalt(refused))
			}
			l.checkpointer.commits.refused = l.checkpointer.commits.refused || bad != nil || l.shutdown.bad != nil
		case l.flight.Ack(a.Ticket):
			l.st.Events++
			if a.Ticket.Commit != 0 || l.keeper != nil { // the age of a table's row is not a delay
				l.st.Latency.Add(a.Latency)
			}
		}
	}
	l.st.LastAck.Time = l.now
	l.checkpointer.active = true
	return cmp.Or(other, bad)
}

// confirmIfDue tells the source what is safe: at once when there is something new, otherwise as a
// sign of life.
func (l *loop) confirmIfDue() error {
	if l.sess == nil {
		return nil
	}
	every := l.every
	if l.at.reads != readsStream || l.full() || l.awaits != nil { // Next is not called
		every = min(every, fullConfirm)
	}
	if l.checkpointer.durable.Position <= l.confirmed && l.now.Sub(l.lastOK) < every {
		return nil
	}
	return l.confirm()
}

// confirm tells the source what is durable in the checkpoint, and never more.
func (l *loop) confirm() error {
	if !l.at.confirms {
		panic(fmt.Sprintf("relay: a position is confirmed in the stage %q", l.at.stage))
	}
	safe := l.checkpointer.durable.Position
	failpoint.Hit(failpoint.Confirm)
	if err := l.within(confirmLimit, func(ctx context.Context) error { return l.sess.Confirm(ctx, safe) }); err != nil {
		return l.lose(fmt.Errorf("confirm %s: %w", safe, err))
	}
	failpoint.Hit(failpoint.Confirmed)
	if safe > l.confirmed {
		l.confirmed, l.moved = safe, true
	}
	l.checkpointer.older.add(l.skipping.Drop(l.confirmed)...)
	l.lastOK = l.now
	return nil
}

// lose ends the session because of err. It returns nil if another session can help.
func (l *loop) lose(err error) error {
	err = fmt.Errorf("session from %s: %w", l.start, err)
	l.connector.drop(l.sess, l.moved || l.now.Sub(l.opened) >= goodSession)
	l.sess = nil
	// A Next that was cut short because of a stop is no fault of the source.
	if !fault.Passing(err, l.worked) && (l.reading.Err() == nil || !errors.Is(err, context.Canceled)) {
		l.ended("refused", err)
		return err
	}
	l.ended("lost", nil)
	l.noteError(err, &l.lost)
	// The next session may be on another server, after a failover, and starts where the record is.
	// So all that is acknowledged goes into the record before.
	l.checkpointer.last, l.checkpointer.commits.more = time.Time{}, false
	l.checkpointer.due(l.now, l.phase, false)
	l.lost.Fault(time.Now(), l.log).Warn("source lost", errFields(err, "in_flight", l.inFlight())...)
	l.to(loses, "source lost: "+err.Error())
	return nil
}

func (t *traffic) inFlight() int { return t.flight.InFlight() }

// landed reports whether nothing is in flight.
func (t *traffic) landed() bool { return t.inFlight() == 0 }
