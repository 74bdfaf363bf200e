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

// inquiry is the topics to be asked about. Guarded by Kafka.mu.
type inquiry struct {
	topics  []*topic
	running bool // askAll runs
}

// ids is what producer ids the sink was given. Guarded by Kafka.mu.
type ids struct {
	newest producerID
	known  bool // newest may be used, by any partition that has not used it
}

var noID = producerID{id: -1}

// ask puts the topic in line. Its partitions go on when the brokers have answered. mu is held.
func (s *Kafka) ask(t *topic) {
	if s.closed || t.asking || t.halted {
		return
	}
	t.asking = true
	s.line.topics = append(s.line.topics, t)
	if !s.line.running {
		s.line.running = true
		s.wg.Go(s.askAll)
	}
}

// askAll asks about the topics in line until there are none.
func (s *Kafka) askAll() {
	for {
		s.mu.Lock()
		n := min(len(s.line.topics), askGroup)
		if n == 0 || s.closed {
			s.line = inquiry{}
			s.mu.Unlock()
			return
		}
		group := s.line.topics[:n:n]
		s.line.topics = s.line.topics[n:]
		id := s.needsID(group)
		s.mu.Unlock()
		known, errs := s.question(group)
		var idErr error
		if id {
			idErr = s.identify()
		}
		s.mu.Lock()
		for i, t := range group {
			t.asking = false
			err := errs[i]
			if err == nil && idErr != nil {
				err = reason(t.name, idErr)
			}
			if err == nil {
				err = t.learn(&known[i], time.Now())
			}
			switch {
			case s.closed || err == nil:
			case refusal(err) != "" && t.queue.len() > 0: // no valid name
				t.refuseFirst(err)
			default:
				s.later(t, err)
			}
		}
		s.mu.Unlock()
	}
}

// later says why the topic waits, and puts it in line after a pause. mu is held.
func (s *Kafka) later(t *topic, why error) {
	t.reason, t.asking = why, true
	time.AfterFunc(t.pause.Next(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.asking = false
		s.ask(t)
	})
}

// refuseFirst refuses the first record of a topic that can never be known.
func (t *topic) refuseFirst(err error) {
	if sl := t.queue.peek(); sl != nil {
		t.queue.pop()
		t.halted = true
		t.reason = t.refuse(sl, -1, err)
	}
}

// needsID reports whether one of the topics needs a producer id that the sink does not have. mu is held.
func (s *Kafka) needsID(group []*topic) bool {
	if !s.ids.known {
		return true
	}
	for _, t := range group {
		for _, p := range t.parts {
			if p.due && p.renew && p.producer == s.ids.newest {
				return true
			}
		}
	}
	return false
}

// identify gets a new producer id.
func (s *Kafka) identify() error {
	ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
	defer cancel()
	resp, err := s.brokers.identify(ctx)
	if err != nil {
		return s.unreachable(err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	s.mu.Lock()
	s.ids = ids{producerID{resp.ProducerID, resp.ProducerEpoch}, true}
	s.mu.Unlock()
	return nil
}

// question asks the brokers for topics and creates those that are missing, where that is configured. The errors say why a topic can
// not be used now; a refusal among them that it never can.
func (s *Kafka) question(group []*topic) ([]kafka.Topic, []error) {
	all, errs := make([]kafka.Topic, len(group)), make([]error, len(group))
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
		return all, errs
	}
	known, down := s.brokers.topics(ctx, names)
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
			all[i] = is
		}
	}
	creates.Wait()
	return all, errs
}

// errFresh is why a topic waits that the sink has just created. It is no stall unless it lasts.
var errFresh = errors.New("was created and is not ready yet")

// makes reports whether the sink creates the topic if it is missing.
func (s *Kafka) makes(topic string) bool { return s.cfg.Topics.Create || topic == s.cfg.DeadLetters }

// create makes a missing topic. The brokers need a moment until it can be used, so the topic stays in line.
func (s *Kafka) create(ctx context.Context, topic string) error {
	var err error
	if topic == s.cfg.DeadLetters {
		_, _, err = statelog.Letters.Create(ctx, s.cl, topic, false)
	} else {
		how := kafka.NewTopic{Name: topic, Partitions: s.cfg.Topics.Partitions, Replicas: s.cfg.Topics.ReplicationFactor}
		_, err = how.Create(ctx, s.cl, false)
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	s.log.Info().Str("topic", topic).Msg("topic created")
	return fmt.Errorf("topic %s %w", topic, errFresh)
}
