package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// Parking reads the topic of parked events: see relay.Parking. It holds one answer of the brokers at a time.
type Parking struct {
	cfg      Config
	patience time.Duration // of a Read that comes no further: kafka.ReadPatience; shorter in tests

	mu sync.Mutex
	cl *kgo.Client // nil until needed
	id [16]byte    // of the topic, since the first reading; zero before it, and before Kafka 2.8

	warned bool
}

// NewParking returns a Parking of cfg.Parking. It does not wait for the brokers.
func NewParking(cfg Config) *Parking { return &Parking{cfg: cfg, patience: kafka.ReadPatience} }

// Close frees the connections.
func (p *Parking) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cl != nil {
		p.cl.Close()
		p.cl = nil
	}
}

// errPartitions says that the topic does not keep the order of its records.
var errPartitions = errors.New("the topic has more than one partition, so it does not keep the order of the parked events")

// errEnough ends a reading because its caller has read enough.
var errEnough = errors.New("enough")

// Read calls each for the records from the offset from on, up to the end that the topic has now.
func (p *Parking) Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (next int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = from
	if p.cl == nil {
		if p.cl, err = p.cfg.NewClient(); err != nil {
			return next, p.fail(err)
		}
	}
	r := kafka.Reader{Client: p.cl, Topic: p.cfg.Parking, Patience: p.patience, From: from, Whole: from > 0}
	var wrong error
	r.Again = func() {
		switch {
		case p.id != [16]byte{} && p.id != r.TopicID():
			wrong = fmt.Errorf("%w: the topic was created again", kafka.ErrGone)
		case r.Partitions > 1:
			wrong = errPartitions
		}
	}
	r.Each = func(rec *kgo.Record) error {
		switch {
		case wrong != nil:
			return wrong
		case rec.Offset < next: // after some errors a Reader starts over
			return nil
		}
		next = rec.Offset + 1
		if !each(rec) {
			return errEnough
		}
		return nil
	}
	err = r.ToEnd(ctx)
	switch {
	case wrong != nil:
		err = wrong
	case errors.Is(err, errEnough):
		err = nil
	case errors.Is(err, kerr.UnknownTopicOrPartition) && from == 0 && p.id == [16]byte{}:
		return 0, nil
	case kafka.Denied(err) && !p.cfg.Park && from == 0 && p.id == [16]byte{} && r.TopicID() == [16]byte{}:
		p.cfg.Logger.Info().Err(err).Str("topic", p.cfg.Parking).Msg("walpost may not see the parking topic, and no policy needs it: walpost assumes that no key is parked")
		return 0, nil
	}
	if err != nil {
		return next, p.fail(err)
	}
	if p.id = r.TopicID(); from == 0 && r.Start > 0 && !p.warned {
		p.warned = true
		p.cfg.Logger.Warn().Str("topic", p.cfg.Parking).Int64("offset", r.Start).
			Msg("records at the beginning of the parking topic were removed: if events were parked in them, these events are lost, and walpost verify names them")
	}
	return max(next, r.Next), nil
}

// fail makes err, an error of a reading, one that is waited out, unless events are lost.
func (p *Parking) fail(err error) error {
	err = fmt.Errorf("topic %s: %w", p.cfg.Parking, err)
	switch {
	case errors.Is(err, errPartitions):
		return fault.Person(err, "Name a topic with one partition, or one that does not exist, in delivery.parking_topic. If keys are parked, release them first.")
	case errors.Is(err, kafka.ErrGone):
		return fault.Person(err, "Events that were parked in the topic may be lost: walpost verify names those that are in no topic, "+
			"and walpost replay delivers them from the table. Then start walpost again: it continues with the records that the topic has now.")
	}
	return fault.Retry(err)
}
