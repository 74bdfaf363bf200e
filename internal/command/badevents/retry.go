package badevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/relay"
)

// RetryOptions say how events are delivered again.
type RetryOptions struct {
	DryRun bool
	// ToTopic, if set, is where all events go, instead of the topic of the letter or the router. The
	// key decides the partition.
	ToTopic string
	// MaxAge is how old the message of a consumer's letter may be, unless ToTopic is set; DefaultMaxAge by default. Every group gets
	// the message again, and the inbox of a group that has handled it may have forgotten it.
	MaxAge time.Duration
}

// DefaultMaxAge is a day less than an inbox remembers an event by default (inbox.DefaultKeep).
const DefaultMaxAge = 14 * 24 * time.Hour

// A RetryReport is what Retry did, or would do.
type RetryReport struct {
	DryRun    bool           `json:"dry_run"`
	Events    int            `json:"events"`    // selected
	Topics    map[string]int `json:"topics"`    // where the events go
	Delivered int            `json:"delivered"` // and marked
	Refused   []Refused      `json:"refused"`   // refused again: they stay dead
}

// A Refused is an event that cannot be delivered yet.
type Refused struct {
	Token    string     `json:"token"`
	EventID  string     `json:"event_id"`
	Reason   cdc.Reason `json:"reason"`
	Error    string     `json:"error"`
	Attempts int        `json:"attempts"`
	Unsaid   string     `json:"not_written,omitempty"` // why the topic does not tell of this attempt
}

const (
	chunkEvents = 200      // delivered before the next ones are read
	chunkBytes  = 16 << 20 // of them, unless one has more
)

// Retry delivers events again, in their order, and marks each one after the brokers have it. An event
// that is not open any more is left out, and so is a parked one: see Release.
func (t *Topics) Retry(ctx context.Context, selected []*Event, opts RetryOptions) (*RetryReport, error) {
	events := dead(selected)
	report := &RetryReport{DryRun: opts.DryRun, Events: len(events), Topics: map[string]int{}, Refused: []Refused{}}
	if len(events) == 0 {
		return report, nil
	}
	if !t.Consumers {
		t.Produce(!opts.DryRun)
	}
	if err := t.foresee(ctx, events, &opts, report); err != nil || opts.DryRun {
		return report, err
	}
	report.Refused = report.Refused[:0]
	err := t.change(ctx, func(c *change) error {
		return c.retry(ctx, events, &opts, report)
	})
	return report, err
}

// chunks calls each with the next events and their letters.
func (t *Topics) chunks(ctx context.Context, events []*deadletter.Entry, each func(chunk []*deadletter.Entry, letters map[string]*deadletter.Letter) error) error {
	for len(events) > 0 {
		n, size := 0, 0
		for n < len(events) && n < chunkEvents && (n == 0 || size+events[n].Size <= chunkBytes) {
			size += events[n].Size
			n++
		}
		letters, err := t.Dead.contents(ctx, events[:n]...)
		if err == nil {
			err = each(events[:n], letters)
		}
		if err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// foresee makes the record of each event, and sends none.
func (t *Topics) foresee(ctx context.Context, events []*deadletter.Entry, opts *RetryOptions, report *RetryReport) error {
	done := int64(0)
	if t.Consumers {
		if err := t.lookUp(ctx, events, opts.ToTopic); err != nil {
			return err
		}
	}
	return t.chunks(ctx, events, func(chunk []*deadletter.Entry, letters map[string]*deadletter.Letter) error {
		for _, e := range chunk {
			rec, err := t.record(letters[e.Token], opts)
			if fault.Retryable(err) { // the schema registry does not answer
				return err
			}
			if err == nil {
				report.Topics[rec.Topic]++
			} else {
				r := refused(e, err)
				r.Attempts = e.Attempts
				report.Refused = append(report.Refused, r)
			}
			done++
			t.Progress("making records", done, int64(len(events)))
		}
		return nil
	})
}

// lookUp asks the brokers for the topics that consumers' letters go to. A sink would wait for a missing one, and hold up the others.
func (t *Topics) lookUp(ctx context.Context, events []*deadletter.Entry, toTopic string) error {
	t.places = map[string]kafka.Topic{}
	for _, e := range events {
		t.places[cmp.Or(toTopic, e.Letter.Topic)] = kafka.Topic{}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	topics, err := kafka.Topics(ctx, t.client, slices.Sorted(maps.Keys(t.places)))
	for _, topic := range topics {
		t.places[topic.Name] = topic
	}
	return err
}

// misplaced says why a consumer's letter can't be sent to its place; nil if it can. The relay creates topics, and this command doesn't:
// nobody would read the message there.
func (t *Topics) misplaced(rec *cdc.Record) error {
	switch topic := t.places[rec.Topic]; {
	case errors.Is(topic.Err, kerr.UnknownTopicOrPartition) || errors.Is(topic.Err, kerr.InvalidTopicException):
		return &cdc.Refusal{Reason: cdc.InvalidTopic, Err: fmt.Errorf("topic %s does not exist: create it, or pass another one with --to-topic", rec.Topic)}
	case kafka.Denied(topic.Err):
		return &cdc.Refusal{Reason: cdc.InvalidRecord, Err: fmt.Errorf("topic %s: grant Write and Describe on it (%w)", rec.Topic, topic.Err)}
	case topic.Err == nil && int(rec.Partition) >= len(topic.Partitions):
		return &cdc.Refusal{Reason: cdc.InvalidRecord, Err: fmt.Errorf("topic %s has no partition %d: pass a topic with --to-topic", rec.Topic, rec.Partition)}
	}
	return nil
}

// tooOld is the reason of a consumer's letter that a retry leaves dead because of its age.
const tooOld cdc.Reason = "too_old"

// record is what an event gives now: the record as stored, or what the router makes of the row.
func (t *Topics) record(l *deadletter.Letter, opts *RetryOptions) (*cdc.Record, error) {
	rec, toTopic := new(cdc.Record), opts.ToTopic
	at := l.CommitTime
	if l.Written.Before(at) { // the producer's clock was fast, or it set any time
		at = l.Written
	}
	if limit := cmp.Or(opts.MaxAge, DefaultMaxAge); t.Consumers && toTopic == "" && time.Since(at) > limit {
		return nil, &cdc.Refusal{Reason: tooOld, Err: fmt.Errorf("the message is from %s, and other groups of topic %s may have forgotten that they have handled it: "+
			"pass --to-topic, or a longer --max-age if every group's Keep is longer, or give the message up with walpost dead drop", at.Format(time.RFC3339), l.Topic)}
	}
	if t.Consumers {
		rec = l.SendBack(time.Now())
	} else if l.Event == nil {
		*rec = *l.Record
	} else if ok, err := t.Router.Route(l.Event, rec); err != nil {
		return nil, err
	} else if !ok {
		return nil, &cdc.Refusal{Reason: cdc.Unroutable, Err: fmt.Errorf("the configuration produces no record for this row of %s", l.Table)}
	}
	if toTopic != "" {
		rec.Topic, rec.Partition = toTopic, -1
	}
	rec.Headers = slices.DeleteFunc(slices.Clone(rec.Headers), func(h cdc.Header) bool { return h.Key == relay.OriginHeader })
	rec.Headers = append(rec.Headers, cdc.Header{Key: relay.OriginHeader, Value: []byte(relay.OriginDeadLetter)})
	if t.Consumers {
		return rec, t.misplaced(rec)
	}
	return rec, nil
}

func (c *change) retry(ctx context.Context, events []*deadletter.Entry, opts *RetryOptions, report *RetryReport) error {
	for first := true; len(events) > 0; first = false {
		if !first {
			if err := c.newest(ctx); err != nil {
				return err
			}
		}
		chunk := events[:min(len(events), chunkEvents)]
		events = events[len(chunk):]
		err := c.chunks(ctx, c.stillOpen(chunk), func(chunk []*deadletter.Entry, letters map[string]*deadletter.Letter) error {
			for _, e := range chunk {
				if err := c.deliver(e, letters[e.Token], opts, report); err != nil {
					return err
				}
			}
			return c.settle(ctx)
		})
		if err != nil {
			return err
		}
		c.Progress("delivering", int64(report.Delivered+len(report.Refused)), int64(report.Events))
	}
	return nil
}

func (c *change) deliver(e *deadletter.Entry, l *deadletter.Letter, opts *RetryOptions, report *RetryReport) error {
	rec, err := c.record(l, opts)
	if fault.Retryable(err) { // the schema registry does not answer
		return err
	}
	if err != nil {
		c.again(e, l, err, report)
		return nil
	}
	marks := c.marks(e, deadletter.Retried, "") // not for a letter that is written from now on
	c.Send(rec, func(refused error) error {
		if refused != nil {
			c.again(e, l, refused, report)
		} else {
			c.close(marks, func() { report.Delivered++ })
		}
		return nil
	})
	return nil
}

// again writes the letter of an event that was refused once more. The event keeps its place.
func (c *change) again(e *deadletter.Entry, l *deadletter.Letter, err error, report *RetryReport) {
	r := refused(e, err)
	if c.Consumers { // its letter has the attempts and the errors of the handler
		if r.Attempts = e.Attempts; r.Reason == cdc.TooLarge {
			r.Error += ". A retry adds headers of up to 1 KiB: raise max.message.bytes of the topic, or pass another one with --to-topic"
		}
		report.Refused = append(report.Refused, r)
		return
	}
	l.Attempts, l.Reason, l.Error, l.Version = r.Attempts, r.Reason, r.Error, c.Version
	rec, wrong := l.Encode(c.Dead.Topic)
	note := func(unsaid error) error {
		if unsaid != nil {
			r.Unsaid = unsaid.Error() // the former letter is still there
		}
		report.Refused = append(report.Refused, r)
		return nil
	}
	if wrong != nil {
		_ = note(wrong)
		return
	}
	rec.Partition = e.Newest.Partition
	c.Send(rec, note)
}

// refused says why an event cannot be delivered again.
func refused(e *deadletter.Entry, err error) Refused {
	r := Refused{Token: e.Token, EventID: e.ID, Reason: cdc.Unroutable, Error: err.Error(), Attempts: e.Attempts + 1}
	var because interface{ BadBecause() cdc.Reason }
	if errors.As(err, &because) {
		r.Reason = because.BadBecause()
	}
	var apart interface{ Reason() string }
	if errors.As(err, &apart) {
		r.Error = apart.Reason()
	}
	return r
}
