package statelog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// sayReading is how often a Read that takes long says how far it is.
const sayReading = 10 * time.Second

// errEnough ends a reading because its caller has read enough.
var errEnough = errors.New("enough")

// Read calls each for every committed record of the topic, in order, from the offset from on to the end that the topic has after
// the call began, or until each returns false. So a record whose append had ended is read. A record is valid during the call of each.
// Read takes as long as it needs while it comes further, and its memory does not grow with the topic. The state is what it found on the
// way; its Next is the offset behind the last record that each got, or behind the end, and is also right beside an error.
//
// From 0 it reads what there is; a topic that is missing is no error unless the newest Open has found it. If from is another offset that the topic has
// no longer, or if the topic of a single writer isn't the one of the newest Open, the error is kafka.ErrGone and needs an operator. A transaction of another
// producer that stays open longer than the patience is kafka.ErrOpen. This and all other errors can be tried again.
func (l *Log) Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (cdc.LogState, error) {
	return l.read(ctx, from, false, each)
}

// read is Read. If it is stable, an open transaction ends the reading.
func (l *Log) read(ctx context.Context, from int64, stable bool, each func(*kgo.Record) bool) (cdc.LogState, error) {
	l.reading.Lock()
	defer l.reading.Unlock()
	r, err := l.reader(from)
	if err != nil {
		return stateOf(r, from), l.fail(err)
	}
	r.Whole, r.Stable = from > 0, stable
	next, began, said := from, time.Now(), time.Now()
	r.Each = func(rec *kgo.Record) error {
		if rec.Offset < next { // after some errors a Reader starts over
			return nil
		}
		if now := time.Now(); now.Sub(said) >= sayReading {
			said = now
			l.Logger.Info("reading a topic of walpost's own; walpost check says whether it is larger than necessary",
				"topic", l.Topic, "offset", rec.Offset, "end", r.End, "for", now.Sub(began).Round(time.Millisecond))
		}
		if next = rec.Offset + 1; !each(rec) {
			return errEnough
		}
		return nil
	}
	err = r.ToEnd(ctx)
	switch {
	case err == nil:
		next = max(next, r.Next)
	case errors.Is(err, errEnough):
		err = nil
	case errors.Is(err, kerr.UnknownTopicOrPartition) && from == 0 && !l.opened():
		return cdc.LogState{Missing: true}, nil
	case kafka.Denied(err):
		err = l.unreadable(err)
	case errors.Is(err, kafka.ErrOpen):
		err = l.fail(l.hanging(ctx, r, err))
	default:
		err = l.fail(l.dials.Explain(err))
	}
	return stateOf(r, next), err
}

// hanging explains kafka.ErrOpen: the transaction may be one that never ends.
func (l *Log) hanging(ctx context.Context, r *kafka.Reader, err error) error {
	ctx, cancel := context.WithTimeout(ctx, kafka.ProbeLimit)
	defer cancel()
	h := kafka.Hanging(ctx, r.Client, l.Topic, r.Partition, r.Next)
	if h == nil {
		return err
	}
	abort := fmt.Sprintf("kafka-transactions.sh --bootstrap-server %s abort --topic %s --partition %d --start-offset %d", strings.Join(l.Brokers, ","), h.Topic, h.Partition, h.Start)
	hint := fmt.Sprintf("The relay of transactional id %s ends it when it begins a session, and delivers its events again. If that relay can't, run %s.", h.ID, abort)
	if h.ID == l.TransactionalID { // what it wrote may count as written
		hint = fmt.Sprintf("Run %s. Then walpost verify names events that are in no topic, and walpost replay delivers them from the table.", abort)
	}
	return fault.WithHint(fmt.Errorf("%w: %w", err, h), hint)
}

func (l *Log) unreadable(err error) error {
	return fault.Retry(fmt.Errorf("not authorized to read topic %s (grant Read and Describe on it): %w", l.Topic, err))
}

// Trim deletes the records in front of before, or in front of the first record of which own is false, if that comes earlier.
// Without the privilege to do so it logs a warning once and deletes nothing.
func (l *Log) Trim(ctx context.Context, before int64, own func(*kgo.Record) bool) error {
	l.reading.Lock()
	defer l.reading.Unlock()
	r, err := l.reader(0)
	if err != nil {
		return l.fail(err)
	}
	r.Stable = true // what is behind an open transaction stays
	upto := int64(0)
	r.Each = func(rec *kgo.Record) error {
		if rec.Offset >= before || !own(rec) {
			upto = max(upto, min(rec.Offset, before))
			return errEnough
		}
		upto = max(upto, rec.Offset+1)
		return nil
	}
	err = r.ToEnd(ctx)
	if err == nil || errors.Is(err, errEnough) {
		if upto <= r.Start {
			return nil
		}
		var at kadm.Offsets
		at.Add(kadm.Offset{Topic: l.Topic, At: upto})
		var answers kadm.DeleteRecordsResponses
		if answers, err = kadm.NewClient(r.Client).DeleteRecords(ctx, at); err == nil {
			err = answers.Error()
		}
	}
	switch {
	case err == nil:
		return nil
	case kafka.Denied(err), errors.Is(err, kerr.PolicyViolation):
		l.warn(err, "records of the topic that nobody needs any more cannot be deleted, so the topic grows (grant Delete on it, and set its cleanup.policy=delete)")
		return nil
	}
	return l.fail(l.dials.Explain(fmt.Errorf("delete the records in front of offset %d: %w", before, err)))
}

// reader returns a reader of the topic from an offset on. If only one process writes it, the topic must be the one of the newest Open.
func (l *Log) reader(from int64) (*kafka.Reader, error) {
	cl, err := l.client()
	r := &kafka.Reader{Client: cl, Topic: l.Topic, Patience: l.patience, From: from}
	if l.TransactionalID != "" {
		l.mu.Lock()
		r.ID = l.topic
		l.mu.Unlock()
	}
	return r, err
}

// opened reports whether an Open has found the topic.
func (l *Log) opened() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.there
}
