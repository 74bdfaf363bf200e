package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/lib/topicname"
	"github.com/walpost/walpost/internal/statelog"
)

// A topic that waits has no goroutine: thousands of topics may be missing at once. It waits on a timer, and then in a line of the
// topics that the brokers are to be asked about. One goroutine asks about many of them with one request.
const (
	askGroup      = 200 // topics in one request
	createsAtOnce = 16
)

// inquiry is the topics to be asked about, and the missing ones to be created. Guarded by Kafka.mu.
type inquiry struct {
	topics   []*topic
	running  bool // askAll runs
	missing  []*topic
	creators int // goroutines that create
}

// ids is what producer ids the sink was given. Guarded by Kafka.mu.
type ids struct {
	newest producerID
	known  bool  // newest may be used, by any partition that has not used it
	err    error // of the newest request for one
	asking bool  // a request is on its way that nobody waits for
}

var noID = producerID{id: -1}

// ask puts the topic in line. Its partitions go on when the brokers have answered. mu is held.
func (s *Kafka) ask(t *topic) {
	if s.closed || t.asking || t.halted || t.dead {
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
			s.line.topics, s.line.running = nil, false
			s.mu.Unlock()
			return
		}
		group := s.line.topics[:n:n]
		s.line.topics = s.line.topics[n:]
		id, failed := s.needsID(group), s.ids.err != nil || s.ids.asking
		s.mu.Unlock()
		known, errs := s.question(group)
		if id && !failed {
			s.identify()
		}
		s.mu.Lock()
		if id && failed && !s.ids.asking && !s.closed { // it may take long again
			s.ids.asking = true
			s.wg.Go(s.identify)
		}
		for i, t := range group {
			err := errs[i]
			if err == nil && !t.dead {
				err = t.learn(&known[i], time.Now())
			}
			t.asking = false
			switch {
			case s.closed || t.dead:
			case err == nil:
				s.answered.Store(true)
				t.resume()
			case errors.Is(err, kerr.UnknownTopicOrPartition) && s.makes(t.name):
				s.make(t)
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
		if t.pending > 0 || len(t.leaders) > 0 || t.name == s.cfg.DeadLetters {
			s.ask(t)
		}
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
	if s.tx != nil {
		return false
	}
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

// identify gets a new producer id. Partitions that need none go on without.
func (s *Kafka) identify() {
	ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
	defer cancel()
	resp, err := s.brokers.identify(ctx)
	if err != nil {
		err = s.unreachable(err)
	} else {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids.asking, s.ids.err = false, err; err == nil {
		s.ids.newest, s.ids.known = producerID{resp.ProducerID, resp.ProducerEpoch}, true
	}
}

// question asks the brokers for topics. The errors say why a topic can not be used now; a refusal among them that it never can.
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
	for i, t := range group {
		if errs[i] != nil {
			continue
		}
		if down != nil {
			errs[i] = s.unreachable(down)
			continue
		}
		if all[i], known = known[0], known[1:]; all[i].Err != nil {
			errs[i] = reason(t.name, all[i].Err)
		}
	}
	return all, errs
}

// errFresh is why a topic waits that the sink has just created. It is no stall unless it lasts.
var errFresh = errors.New("was created and is not ready yet")

// makes reports whether the sink creates the topic if it is missing.
func (s *Kafka) makes(topic string) bool { return s.cfg.Topics.Create || topic == s.cfg.DeadLetters }

// make has a missing topic created. Others don't wait for that. mu is held.
func (s *Kafka) make(t *topic) {
	t.asking = true
	s.line.missing = append(s.line.missing, t)
	if s.line.creators < createsAtOnce {
		s.line.creators++
		s.wg.Go(s.createAll)
	}
}

// createAll creates the missing topics until there are none. The brokers need a moment until a new topic can be used, so it comes into
// the line again.
func (s *Kafka) createAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.line.missing) > 0 && !s.closed {
		t := s.line.missing[0]
		s.line.missing = s.line.missing[1:]
		s.mu.Unlock()
		err := s.create(t.name)
		s.mu.Lock()
		if refusal(err) != "" && t.queue.len() > 0 { // the name collides with another one
			t.asking = false
			t.refuseFirst(err)
			continue
		}
		s.later(t, err)
	}
	s.line.creators--
}

func (s *Kafka) create(topic string) error {
	ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
	defer cancel()
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
	s.log.Info("topic created", "topic", topic)
	return fmt.Errorf("topic %s %w", topic, errFresh)
}
