package relay

import (
	"errors"
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// handle takes one event from the session.
func (l *loop) handle(ev *cdc.Event) error {
	switch ev.Kind {
	case cdc.Insert, cdc.Update, cdc.Delete:
		return l.row(ev)
	case cdc.Begin:
		fresh, err := l.progress.begin(ev.Pos)
		if fresh {
			l.moved, l.sawEvent = true, true
			l.tracker.Begin(ev.Time)
		}
		if err != nil {
			return l.inconsistent(err)
		}
	case cdc.Commit:
		fresh, err := l.progress.commit()
		if err != nil {
			return l.inconsistent(err)
		}
		if fresh {
			l.transactions++
			l.received = max(l.received, ev.Pos)
			if err := l.tracker.Commit(ev.Pos); err != nil {
				return fmt.Errorf("end of transaction %s: %w", l.progress.whole, err)
			}
		}
	case cdc.Idle:
		// With a transaction read in part, a position can only be one from before it.
		if ev.Pos > 0 && l.progress.open == 0 && !l.progress.inTx {
			l.received = max(l.received, ev.Pos)
			l.tracker.Idle(ev.Pos)
		}
	case cdc.Message:
		if ev.Msg.Transactional {
			return l.row(ev)
		}
		return l.standalone(ev)
	}
	return nil
}

// row takes an event inside a transaction.
func (l *loop) row(ev *cdc.Event) error {
	mine, err := l.progress.event()
	if err != nil {
		return l.inconsistent(err)
	}
	if !mine {
		return nil
	}
	l.sawEvent = true
	l.rec.EventID = "" // the router sets it, if it gets that far
	ok, err := l.router.Route(ev, &l.rec)
	skip := l.passOver(ev, l.progress.open, l.progress.events)
	switch {
	case skip:
	case err != nil:
		return l.unroutable(ev, l.progress.open, l.progress.events, err)
	case !ok:
		return nil
	}
	// An event that is passed over counts as a record, whatever the router makes of it: the next start finds the same count.
	send, err := l.progress.record(l.rec.EventID)
	if err != nil {
		return l.inconsistent(err)
	}
	if send && !skip {
		l.send(ev, l.progress.open, l.progress.events)
	}
	return nil
}

// standalone takes a message outside transactions: a transaction of its own, which ends where the message does.
func (l *loop) standalone(ev *cdc.Event) error {
	mine, err := l.progress.standalone(ev.Pos)
	if err != nil {
		return l.inconsistent(err)
	}
	if !mine {
		return nil
	}
	l.moved, l.sawEvent = true, true
	l.rec.EventID = ""
	ok, err := l.router.Route(ev, &l.rec)
	if l.passOver(ev, ev.Pos, 1) {
		ok, err = false, nil
	}
	if err != nil {
		return l.unroutable(ev, ev.Pos, 1, err)
	}
	l.tracker.Begin(ev.Time)
	if ok {
		l.send(ev, ev.Pos, 1)
	}
	l.received = max(l.received, ev.Pos)
	if err := l.tracker.Commit(ev.Pos); err != nil {
		return fmt.Errorf("message at %s: %w", ev.Pos, err)
	}
	return nil
}

// send hands l.rec to the sink. l.rec was made of ev, event number row of the transaction at begin.
func (l *loop) send(ev *cdc.Event, begin cdc.Position, row int) {
	ticket := l.tracker.Add(l.rec.Size())
	if ticket.Tx > maxTx {
		panic("relay: too many transactions for a ticket") // 2^48: nine years at a million a second
	}
	l.marks.add(ticket.Tx, begin)
	ticket.Commit, ticket.Row, ticket.Table = begin, uint32(row), relationOf(ev)
	ticket.Tx |= l.gen << genShift
	l.recent.add(l.rec.Topic, l.rec.EventID, l.now)
	l.sink.Send(&l.rec, ticket)
	l.rec = cdc.Record{} // the sink's now; the next event may be long in coming
}

// inconsistent gives up what is remembered of the source's history, because what it sent does not fit to it, and has the next
// session start at the checkpoint with nothing skipped. What is not about that is an error of the source.
func (l *loop) inconsistent(err error) error {
	switch {
	case errors.Is(err, errNext):
		l.dropNext = true
	case errors.Is(err, errChanged):
	default:
		return fmt.Errorf("source: %w", err)
	}
	l.fresh = true
	l.progress = progress{} // else a stop now would write down how far this transaction came
	l.log.Error().Err(err).Str("lsn", l.checkpointer.durable.String()).
		Msg("starting again at the checkpoint and skipping nothing: events may be delivered twice")
	return l.lose(fault.Retry(err))
}
