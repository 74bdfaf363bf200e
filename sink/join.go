package sink

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/kafka"
)

// has reports whether a partition is part of the transaction, and otherwise has it joined. mu is held.
func (tx *transactions) has(p *partition) bool {
	at := topicPartition{p.t, p.n}
	if tx.latest || tx.joined[at] {
		return true
	}
	if !slices.Contains(tx.toJoin, at) {
		tx.toJoin = append(tx.toJoin, at)
	}
	if !tx.joins {
		tx.joins = true
		tx.s.wg.Go(tx.join)
	}
	return false
}

// join adds partitions to the transaction until there are none.
func (tx *transactions) join() {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { tx.joins = false }()
	var pause kafka.Backoff
	for len(tx.toJoin) > 0 && tx.state == sending && !s.closed {
		all, id, number := tx.toJoin, s.ids.newest, tx.number
		tx.toJoin = nil
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
		errs, err := tx.coordinator.join(ctx, id, all)
		cancel()
		s.mu.Lock()
		if id != s.ids.newest || number != tx.number || tx.state != sending { // the answer may be for the transaction before
			tx.offer()
			continue
		}
		var failed error
		for i, at := range all {
			why := err
			if err == nil {
				why = errs[i]
			}
			p := at.t.parts[at.n]
			switch {
			case why == nil:
				tx.joined[at] = true
			case over(why):
				tx.lose(why)
				return
			case p == nil || at.t.dead:
				continue
			case refusal(why) != "" || kafka.Denied(why) || isOne(why, kerr.UnknownTopicOrPartition):
				p.wait(reason(at.t.name, why))
			default:
				tx.failing, failed = why, why
			}
			if p != nil {
				p.offer()
			}
		}
		if failed == nil {
			pause, tx.failing = 0, nil
			continue
		}
		s.mu.Unlock()
		again(s.ctx, failed, &pause)
		s.mu.Lock()
		tx.offer()
	}
}

// stalled is what the transaction waits for, nil while it goes on. mu is held.
func (tx *transactions) stalled(now time.Time) error {
	if tx.failing == nil || now.Sub(tx.since) < kafka.StallAfter {
		return nil
	}
	return fmt.Errorf("transactional id %s: %w", tx.id, tx.s.unreachable(tx.failing))
}

// giveUp aborts what is open, so that readers of committed records need not wait for its timeout.
func (tx *transactions) giveUp(ctx context.Context) {
	s := tx.s
	s.mu.Lock()
	idle := tx.state == unfenced || tx.open+len(tx.held) == 0
	id := s.ids.newest
	s.mu.Unlock()
	switch { // otherwise the brokers do it after the timeout
	case idle:
	case tx.latest:
		_, _ = tx.coordinator.finish(ctx, id, false, true)
	default: // a late produce request must not be written behind the end of the transaction
		_, _ = tx.coordinator.initialize(ctx, id)
	}
}
