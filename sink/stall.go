package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/kafka"
)

// probe is the search for the reason of a stall. Guarded by Kafka.mu.
type probe struct {
	running bool
	at      time.Time // of the newest answer
	found   map[string]error
}

// Stalled says what delivery is waiting for, or nil. It is cheap: where the reason is not known yet it starts one search for
// it, not more often than every kafka.ProbeEvery, and says meanwhile how long there was no acknowledgement.
func (s *Kafka) Stalled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var worst *topic
	var silent []string
	for _, t := range s.topics {
		if t.pending == 0 && t.gate != halted {
			continue
		}
		if (t.reason == nil || errors.Is(t.reason, errFresh)) && now.Sub(t.since) < kafka.StallAfter {
			continue
		}
		if worst == nil || t.since.Before(worst.since) || t.since.Equal(worst.since) && t.name < worst.name {
			worst = t
		}
		if t.reason == nil || t.flight > 0 && now.Sub(t.since) >= kafka.StallAfter { // the reason may be an earlier attempt's
			silent = append(silent, t.name)
		}
	}
	if worst == nil || s.closed {
		s.probe.found = nil
		return nil
	}
	if len(silent) > 0 && !s.probe.running && now.Sub(s.probe.at) > kafka.ProbeEvery {
		s.probe.running = true
		s.wg.Add(1)
		go s.search(silent)
	}
	if worst.reason != nil {
		return worst.reason
	}
	if err := s.probe.found[worst.name]; err != nil {
		return err
	}
	if err := s.dials.Last(); err != nil { // the search says the same later, because it waits for the brokers
		return fmt.Errorf("topic %s: %w", worst.name, err)
	}
	return kafka.Silence{Topic: worst.name, Since: now.Sub(worst.since)}
}

// Unreachable reports whether the newest attempt to connect to a broker has failed.
func (s *Kafka) Unreachable() bool { return s.dials.Last() != nil }

// Pending calls each once for every topic that has records which are sent and not delivered: how many, what they wait for (nil
// where that is not known), and whether the topic is closed behind a record that was refused. each must not call the sink.
func (s *Kafka) Pending(each func(topic string, records int, why error, closed bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, t := range s.topics {
		if t.pending == 0 {
			continue
		}
		why := t.reason
		if why == nil {
			why = s.probe.found[name]
		}
		each(name, t.pending, why, t.gate == halted)
	}
}

func (s *Kafka) search(topics []string) {
	defer s.wg.Done()
	slices.Sort(topics)
	if len(topics) > 32 {
		topics = topics[:32] // one reason is enough for all; the others have their turn later
	}
	s.nudge(topics)
	ctx, cancel := context.WithTimeout(s.ctx, kafka.ProbeLimit)
	defer cancel()
	found, wait, told := map[string]error{}, map[string]time.Duration{}, map[int32]time.Duration{}
	known, err := kafka.Topics(ctx, s.adm, topics, "min.insync.replicas")
	for i, name := range topics {
		if err != nil {
			found[name] = s.unreachable(err)
		} else if errors.Is(known[i].Err, kerr.UnknownTopicOrPartition) && s.makes(name) { // it was deleted while its events wait
			found[name] = s.create(ctx, name)
		} else if why := known[i].Unwritable(); why != nil {
			found[name] = why
		} else if wait[name], why = s.mustWait(ctx, &known[i], told); why != nil {
			found[name] = fmt.Errorf("topic %s: %w", name, why)
		} else if why := s.dials.Last(); why != nil {
			found[name] = fmt.Errorf("topic %s: %w", name, why)
		}
	}
	s.mu.Lock()
	s.probe.running, s.probe.at, s.probe.found = false, time.Now(), found
	for _, name := range topics {
		if t := s.topics[name]; t != nil { // else it was forgotten meanwhile
			s.suspect(t, found[name] == nil, wait[name])
		}
	}
	s.mu.Unlock()
}

// nudge has the clients that hold records of these topics load what the brokers know. The client then tries again with whatever
// it still holds. Without that it would try at its next load, minutes later, where it has missed a record: franz-go 1.22.2 makes
// a new topic's partitions visible after it has buffered their first record (storePartitionsUpdate), so a failure of all that is
// buffered passes over that record if it comes in between (failBufferedRecords, after a producer id was refused).
func (s *Kafka) nudge(topics []string) {
	clients := map[*client]bool{}
	s.mu.Lock()
	for _, name := range topics {
		if t := s.topics[name]; t != nil && t.flight > 0 {
			clients[t.through] = true
		}
	}
	s.mu.Unlock()
	for c := range clients {
		c.ForceMetadataRefresh()
	}
}

// unreachable names the brokers, and the dialer's own error if there is one.
func (s *Kafka) unreachable(err error) error {
	return s.dials.Explain(fmt.Errorf("brokers %v: %w", s.cfg.Brokers, err))
}
