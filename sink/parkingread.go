package sink

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// Read calls each for every committed record of the topic, in order, from the offset from on to the end that the topic has after
// the call began, or until each returns false. So a record whose append had ended is read. next is the offset behind the last
// record that each got, or behind the end, and is also right beside an error. A record is valid during the call of each.
//
// From 0 it reads what there is. If from is another offset that the topic has no longer, or if the topic isn't the one of the
// newest Fence, the error is kafka.ErrGone and needs an operator. A transaction of another producer that stays open longer than the
// patience is kafka.ErrOpen. This and all other errors can be tried again.
func (p *ParkingLog) Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (next int64, err error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	next = from
	r, err := p.reader(from)
	if err != nil {
		return next, p.fail(err)
	}
	r.Whole = from > 0
	err = p.read(ctx, r, func(rec *kgo.Record) bool {
		if rec.Offset < next { // after some errors a Reader starts over
			return true
		}
		next = rec.Offset + 1
		return each(rec)
	})
	switch {
	case errors.Is(err, errEnough):
		return next, nil
	case errors.Is(err, kerr.UnknownTopicOrPartition) && from == 0 && p.topicRead() == [16]byte{}:
		return 0, nil
	case kafka.Denied(err):
		return next, fault.Retry(fmt.Errorf("not authorized to read topic %s (grant Read and Describe on it): %w", p.cfg.Parking, err))
	case err != nil:
		return next, p.fail(p.dials.Explain(err))
	}
	return max(next, r.Next), nil
}

// Trim deletes the records in front of before, or in front of the first record of which own is false, if that comes earlier.
// Without the privilege to do so it logs a warning once and deletes nothing.
func (p *ParkingLog) Trim(ctx context.Context, before int64, own func(*kgo.Record) bool) error {
	p.reading.Lock()
	defer p.reading.Unlock()
	r, err := p.reader(0)
	if err != nil {
		return p.fail(err)
	}
	r.Stable = true // what is behind an open transaction stays
	upto := int64(0)
	err = p.read(ctx, r, func(rec *kgo.Record) bool {
		if rec.Offset >= before || !own(rec) {
			upto = max(upto, min(rec.Offset, before))
			return false
		}
		upto = max(upto, rec.Offset+1)
		return true
	})
	if err == nil || errors.Is(err, errEnough) {
		if upto <= r.Start {
			return nil
		}
		err = p.delete(ctx, r.Client, upto)
	}
	switch {
	case err == nil:
		return nil
	case kafka.Denied(err), errors.Is(err, kerr.PolicyViolation):
		if !p.warned {
			p.cfg.Logger.Warn().Err(err).Str("topic", p.cfg.Parking).
				Msg("records of the parking topic that nobody needs any more cannot be deleted, so the topic grows (grant Delete on it, and set its cleanup.policy=delete)")
		}
		p.warned = true
		return nil
	}
	return p.fail(p.dials.Explain(fmt.Errorf("delete the records in front of offset %d: %w", before, err)))
}

// delete deletes the records in front of an offset.
func (p *ParkingLog) delete(ctx context.Context, cl *kgo.Client, upto int64) error {
	var at kadm.Offsets
	at.Add(kadm.Offset{Topic: p.cfg.Parking, At: upto})
	answers, err := kadm.NewClient(cl).DeleteRecords(ctx, at)
	if err == nil {
		err = answers.Error()
	}
	return err
}

// reader returns a reader of the topic from an offset on.
func (p *ParkingLog) reader(from int64) (*kafka.Reader, error) {
	cl, err := p.client()
	return &kafka.Reader{Client: cl, Topic: p.cfg.Parking, Patience: p.patience, From: from}, err
}

// read calls each for the records up to the end, or until each returns false, which is errEnough. The topic must be the one of the
// newest Fence, or else the one that was read first.
func (p *ParkingLog) read(ctx context.Context, r *kafka.Reader, each func(*kgo.Record) bool) error {
	id := p.topicRead()
	var wrong error
	r.Again = func() {
		switch {
		case id != [16]byte{} && r.TopicID() != [16]byte{} && id != r.TopicID():
			wrong = fmt.Errorf("%w: the topic was created again", kafka.ErrGone)
		case r.Partitions > 1:
			wrong = errPartitions
		}
	}
	r.Each = func(rec *kgo.Record) error {
		switch {
		case wrong != nil:
			return wrong
		case !each(rec):
			return errEnough
		}
		return nil
	}
	err := r.ToEnd(ctx)
	if wrong != nil {
		return wrong
	}
	if err == nil || errors.Is(err, errEnough) {
		p.mu.Lock()
		if p.topic == [16]byte{} {
			p.topic = r.TopicID()
		}
		p.mu.Unlock()
	}
	return err
}

// topicRead is the id that the topic must have, or zero if any will do.
func (p *ParkingLog) topicRead() [16]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.topic
}
