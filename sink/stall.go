package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/kafka"
)

// probe is the search for the reason of a stall. Guarded by Kafka.mu.
type probe struct {
	running bool
	at      time.Time // of the newest answer
	found   map[string]error
}

// waiter is a topic, or a partition of one, with records that have not ended.
type waiter struct {
	t      *topic
	n      int32 // -1 for a topic that is not known
	open   int
	why    error
	passes bool // why is known, and no stall unless it lasts
	since  time.Time
	halted bool
}

// before reports whether w tells more than o about what delivery waits for: a cause tells more than an election, then the longest wait
// counts.
func (w *waiter) before(o *waiter) bool {
	known, than := w.why != nil && !electing(w.why), o.why != nil && !electing(o.why)
	if known != than {
		return known
	}
	return cmp.Or(w.since.Compare(o.since), cmp.Compare(w.t.name, o.t.name), cmp.Compare(w.n, o.n)) < 0
}

// waiters calls each for all that waits. mu is held.
func (s *Kafka) waiters(each func(w waiter)) {
	for _, t := range s.topics {
		fresh := errors.Is(t.reason, errFresh)
		if t.halted || t.queue.len() > 0 {
			each(waiter{t, -1, t.queue.len(), t.reason, fresh, t.since, t.halted})
		}
		for _, p := range t.parts {
			open := p.open()
			switch {
			case open == 0 && p.state != halted:
			case (p.state == waits || t.gathers) && t.reason != nil:
				each(waiter{t, p.n, open, t.reason, fresh, p.since, false})
			default:
				each(waiter{t, p.n, open, p.reason, p.state != halted && moving(p.reason), p.since, p.state == halted})
			}
		}
	}
}

// moving reports whether an answer, or the lack of one, may only mean that another broker becomes the leader.
func moving(err error) bool {
	return !errors.As(err, new(*kerr.Error)) || electing(err)
}

// electing reports whether the brokers are choosing another leader, as far as an answer tells.
func electing(err error) bool {
	e, ok := errors.AsType[*kerr.Error](err)
	return ok && (e == kerr.NotLeaderForPartition || e == kerr.LeaderNotAvailable || e == kerr.FencedLeaderEpoch || e == kerr.OutOfOrderSequenceNumber)
}

// passing is a stall whose cause isn't known yet: brokers that stop give their partitions away, and then close connections.
type passing struct{ error }

// CauseKnown is false: a later error may tell the cause.
func (passing) CauseKnown() bool { return false }

func (p passing) Unwrap() error { return p.error }

// errClosed is what the client takes for missing TLS. It is something else where brokers have answered before.
var errClosed = errors.New("a broker closed the connection at once, as one does that starts or stops")

// Stalled says what delivery is waiting for, or nil. It is cheap: where the reason is not known yet it starts one search for
// it, not more often than every kafka.ProbeEvery, and says meanwhile how long there was no acknowledgement.
func (s *Kafka) Stalled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err := s.uploads.stalled(now); err != nil && !s.closed {
		return err
	}
	var worst waiter
	silent := map[string]bool{}
	s.waiters(func(w waiter) {
		if (w.why == nil || w.passes) && now.Sub(w.since) < kafka.StallAfter {
			return
		}
		if worst.t == nil || w.before(&worst) {
			worst = w
		}
		if w.why == nil {
			silent[w.t.name] = true
		}
	})
	if s.tx != nil {
		if err := s.tx.stalled(now); err != nil {
			return err
		}
	}
	if worst.t == nil || s.closed {
		s.probe.found = nil
		return nil
	}
	if len(silent) > 0 && !s.probe.running && now.Sub(s.probe.at) > kafka.ProbeEvery {
		s.probe.running = true
		s.wg.Go(func() { s.search(slices.Sorted(maps.Keys(silent))) })
	}
	switch {
	case electing(worst.why):
		return passing{worst.why}
	case worst.why != nil:
		return worst.why
	}
	if err := s.probe.found[worst.t.name]; err != nil {
		return err
	}
	if err := s.dials.Last(); err != nil { // the search says the same later, because it waits for the brokers
		return fmt.Errorf("topic %s: %w", worst.t.name, err)
	}
	return kafka.Silence{Topic: worst.t.name, Since: now.Sub(worst.since)}
}

// Unreachable reports whether the newest attempt to connect to a broker has failed.
func (s *Kafka) Unreachable() bool { return s.dials.Last() != nil }

// Pending calls each for every topic with records that are sent and not delivered: how many, and what they wait for, nil where that is
// not known. It calls each once more for every partition that is closed behind a record that was refused. each must not call the sink.
func (s *Kafka) Pending(each func(topic string, records int, why error, closed bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type sum struct {
		open int
		why  error
	}
	sums := map[string]sum{}
	s.waiters(func(w waiter) {
		if w.halted {
			if w.open > 0 {
				each(w.t.name, w.open, w.why, true)
			}
			return
		}
		all := sums[w.t.name]
		all.open, all.why = all.open+w.open, cmp.Or(all.why, w.why, s.probe.found[w.t.name])
		sums[w.t.name] = all
	})
	for name, all := range sums {
		each(name, all.open, all.why, false)
	}
}

func (s *Kafka) search(topics []string) {
	if len(topics) > 32 {
		topics = topics[:32] // one reason is enough for all; the others have their turn later
	}
	ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
	defer cancel()
	found := map[string]error{}
	known, err := kafka.Topics(ctx, s.cl, topics, "min.insync.replicas")
	for i, name := range topics {
		if err != nil {
			found[name] = s.unreachable(err)
		} else if why := known[i].Unwritable(); why != nil {
			found[name] = why
		} else if why := s.dials.Last(); why != nil {
			found[name] = fmt.Errorf("topic %s: %w", name, why)
		}
	}
	s.mu.Lock()
	s.probe = probe{at: time.Now(), found: found}
	s.mu.Unlock()
}

// unreachable names the brokers, and the dialer's own error if there is one. Where brokers have answered before, a connection that
// ended says only that the next one tells more.
func (s *Kafka) unreachable(err error) error {
	if s.answered.Load() {
		closed, why := new(*kgo.ErrFirstReadEOF), s.dials.Last()
		switch {
		case errors.As(why, closed), why == nil && errors.As(err, closed):
			return fmt.Errorf("brokers %v: %w", s.cfg.Brokers, passing{errClosed})
		case errors.As(err, closed):
			err = errClosed
		case why == nil && kgo.IsRetryableBrokerErr(err):
			err = passing{err}
		}
	}
	return s.dials.Explain(fmt.Errorf("brokers %v: %w", s.cfg.Brokers, err))
}
