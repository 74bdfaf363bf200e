package sink

import (
	"errors"

	"github.com/walpost/walpost/internal/kafka"
)

func (s *Kafka) limitOf(topic string) int32 {
	if n, ok := s.limits.Load(topic); ok {
		return n.(int32)
	}
	return kafka.UsualLimit
}

// fresh gives the topic another client of a kind, one that has nothing to do with the topic's past: the present one works with
// another limit, knows the topic as it was before it was created again, or can not produce any more. A topic that has no
// client of that kind yet gets its first one.
//
// The client's own way for the first two is to purge the topic. But a purge starts its sequence numbers anew under the same
// producer id and epoch, and a partition that still remembers a batch of the same numbers would acknowledge the next one as
// a duplicate without writing it (TestPurgeWouldLoseARecord). A new producer id has no past.
func (s *Kafka) fresh(t *topic, k kind) error {
	s.mu.Lock()
	c, old, gen := s.next[k], t.cl[k], s.gen
	s.mu.Unlock()
	usable := c != nil && c != old
	if usable {
		told, asked := c.told(t.name)
		usable = !asked || told == s.limitOf(t.name)
	}
	var made *client
	if !usable {
		var err error
		if made, err = s.newClient(k, gen); err != nil {
			return err
		}
		c = made
	}
	s.mu.Lock()
	if closed := s.closed; closed || made == nil && s.next[k] != c || made != nil && gen != s.gen {
		s.mu.Unlock()
		if made != nil {
			made.Close()
		}
		if closed {
			return errClosed
		}
		return s.fresh(t, k) // another topic's tender replaced c meanwhile, and may have closed it
	}
	unused := s.next[k]
	s.next[k], t.cl[k] = c, c
	c.topics++
	if old != nil {
		old.topics--
	}
	var end []*client
	for _, u := range []*client{unused, old} {
		if u != nil && u != c && u.topics == 0 && (len(end) == 0 || end[0] != u) {
			end = append(end, u)
		}
	}
	s.mu.Unlock()
	s.closeAll(end)
	return nil
}

// repair does what helps against err, if anything does, before the next attempt. Nothing is in flight for the topic.
func (s *Kafka) repair(t *topic, err error) {
	s.mu.Lock()
	c := t.through // which failed the records
	s.mu.Unlock()
	switch {
	case errors.Is(err, errStuck):
		return // abandon did
	case missing(err):
		s.moved(t, s.fresh(t, c.kind))
		return
	}
	if why := c.fatal(s.ctx); why != nil && s.ctx.Err() == nil {
		s.log.Debug().Err(why).Str("topic", t.name).Msg("the kafka client cannot produce any more and was replaced") // Stalled tells the reason
		s.moved(t, s.fresh(t, c.kind))
		return
	}
	c.ForceMetadataRefresh()
}

func (s *Kafka) moved(t *topic, err error) {
	if err != nil && s.ctx.Err() == nil {
		s.log.Error().Err(err).Str("topic", t.name).Msg("new kafka client")
	}
}
