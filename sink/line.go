package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/topicname"
)

// A topic that waits has no goroutine: thousands of topics may be missing at once. It waits on a timer, and then in a line of the
// topics that the brokers are to be asked about. One goroutine asks about many of them with one request.
const (
	askGroup      = 200 // topics in one request
	createsAtOnce = 16
)

// later says why the topic waits, and puts it in line after a pause. It is called by the topic's tender, which ends.
func (s *Kafka) later(t *topic, why error) {
	s.mu.Lock()
	t.reason = why
	end := s.leave(t)
	time.AfterFunc(t.pause.Next(), func() { s.ask(t) })
	s.mu.Unlock()
	s.closeAll(end)
}

// ask puts the topic in line. Its tender goes on when the brokers have answered.
func (s *Kafka) ask(t *topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.line = append(s.line, t)
	if !s.asking {
		s.asking = true
		s.wg.Add(1)
		go s.askAll()
	}
}

// askAll asks about the topics in line until there are none.
func (s *Kafka) askAll() {
	defer s.wg.Done()
	for {
		s.mu.Lock()
		n := min(len(s.line), askGroup)
		if n == 0 || s.closed {
			s.asking, s.line = false, nil
			s.mu.Unlock()
			return
		}
		group := s.line[:n:n]
		s.line = s.line[n:]
		s.mu.Unlock()
		for i, err := range s.learn(group) {
			if err == nil {
				err = s.settled(group[i])
			}
			switch t := group[i]; {
			case err == nil:
				s.resume(t)
			case refusal(err) != "": // no valid name
				s.poison(t, err)
			default:
				s.later(t, err)
			}
		}
	}
}

// resume starts the tender of a topic that the brokers were asked about.
func (s *Kafka) resume(t *topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.known, t.asked = true, true
	s.wg.Add(1) // s.askAll still counts, so nobody has stopped waiting
	go s.tend(t)
}

// learn asks the brokers for topics and creates those that are missing, where that is configured. Nothing of them is in flight. The
// errors say why a topic can not be used now; a refusal among them that it never can.
func (s *Kafka) learn(group []*topic) []error {
	errs := make([]error, len(group))
	ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
	defer cancel()
	var names []string
	for i, t := range group {
		if err := topicname.Check(t.name); err != nil {
			errs[i] = fmt.Errorf("%w: %w", kerr.InvalidTopicException, err)
			continue
		}
		names = append(names, t.name)
	}
	if len(names) == 0 {
		return errs
	}
	known, down := kafka.Topics(ctx, s.adm, names, "max.message.bytes")
	var creates sync.WaitGroup
	turn := make(chan struct{}, createsAtOnce)
	for i, t := range group {
		if errs[i] != nil {
			continue
		}
		if down != nil {
			errs[i] = s.unreachable(down)
			continue
		}
		is := known[0]
		known = known[1:]
		switch {
		case errors.Is(is.Err, kerr.UnknownTopicOrPartition) && s.makes(t.name):
			turn <- struct{}{}
			creates.Go(func() {
				errs[i] = s.create(ctx, t.name)
				<-turn
			})
		case is.Err != nil:
			errs[i] = reason(t.name, is.Err)
		case is.Refused != nil && !errors.As(is.Refused, new(*kerr.Error)): // the lack of a right is a *kerr.Error
			errs[i] = s.unreachable(is.Refused)
		default:
			s.mu.Lock()
			s.limits.Store(t.name, is.Limit())
			t.partitions, t.limit = int32(len(is.Partitions)), int(is.Limit())
			s.mu.Unlock()
		}
	}
	creates.Wait()
	return errs
}

// errFresh is why a topic waits that the sink has just created. It is no stall unless it lasts.
var errFresh = errors.New("was created and is not ready yet")

// makes reports whether the sink creates the topic if it is missing.
func (s *Kafka) makes(topic string) bool { return s.cfg.Topics.Create || topic == s.cfg.DeadLetters }

// create makes a missing topic. The brokers need a moment until it can be used, so the topic stays in line.
func (s *Kafka) create(ctx context.Context, topic string) error {
	var err error
	if topic == s.cfg.DeadLetters {
		_, _, err = statelog.Letters.Create(ctx, s.adm, topic, false)
	} else {
		how := kafka.NewTopic{Name: topic, Partitions: s.cfg.Topics.Partitions, Replicas: s.cfg.Topics.ReplicationFactor}
		_, err = how.Create(ctx, s.adm, false)
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	s.log.Info().Str("topic", topic).Msg("topic created")
	return fmt.Errorf("topic %s %w", topic, errFresh)
}

// settled gives a topic that was learned a client of the present generation that works with the topic's present limit.
func (s *Kafka) settled(t *topic) error {
	s.mu.Lock()
	end, forgotten := s.enter(t)
	end = append(end, s.leave(t)...)
	c := t.cl[ordinary]
	s.mu.Unlock()
	s.closeAll(end)
	if len(forgotten) > 0 {
		s.wg.Go(func() { s.adm.PurgeTopicsFromClient(forgotten...) }) // it never produces, so nothing is lost
	}
	if c != nil {
		if told, asked := c.told(t.name); !asked || told == s.limitOf(t.name) {
			return nil
		}
	}
	return s.fresh(t, ordinary)
}
