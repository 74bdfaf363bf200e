// Package badevents is the work of walpost dead. It reads what the dead letter topic says, shows
// it, and has letters delivered again or given up. It needs no database, and it may work while a
// relay writes to the topic. It does the same for the dead letter topic of consumers.
package badevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// A log is a topic that is read from its beginning, and read on later. It belongs to one goroutine.
type log struct {
	Topic   string
	Missing bool // the topic does not exist

	client   *kgo.Client
	decode   func(rec *kgo.Record) (*deadletter.Letter, *deadletter.Mark, error)
	progress func(done, total int64) // how many records were read, and how many there are
	add      func(rec *kgo.Record)   // takes the next record of a partition
	reset    func()                  // forgets all records
	readers  []*kafka.Reader
	next     []int64 // offsets behind the last record that add has taken, by partition
	restart  bool    // a reader started over: the log may be another one
	read     int64
}

// patience is how long the brokers may give no answer about a topic.
const patience = 20 * time.Second

// Read reads up to the present end of the topic. The next call reads on from there.
func (l *log) Read(ctx context.Context) error {
	for {
		topic, err := l.describe(ctx)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			l.forget()
			l.Missing = true
			return nil
		}
		if err != nil {
			return l.unreadable(err)
		}
		for p := len(l.readers); p < len(topic.Partitions); p++ {
			l.follow(int32(p))
		}
		for _, r := range l.readers {
			if err := r.ToEnd(ctx); err != nil {
				return l.unreadable(err)
			}
		}
		if !l.restart {
			l.Missing = false
			return nil
		}
		l.forget()
	}
}

func (l *log) describe(ctx context.Context) (*kafka.Topic, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	topic, err := kafka.DescribeTopic(ctx, l.client, l.Topic)
	if err == nil {
		err = topic.Err
	}
	return topic, err
}

func (l *log) forget() {
	l.readers, l.next, l.restart, l.read = nil, nil, false, 0
	l.reset()
}

func (l *log) follow(p int32) {
	r := &kafka.Reader{Client: l.client, Topic: l.Topic, Partition: p}
	begun := false
	r.Again = func() { l.restart, begun = l.restart || begun, true }
	r.Each = func(rec *kgo.Record) error {
		if l.restart || rec.Offset < l.next[p] {
			return nil
		}
		l.next[p] = rec.Offset + 1
		l.add(rec)
		total := int64(0)
		for _, r := range l.readers {
			total += r.End - r.Start
		}
		l.read++
		l.progress(l.read, total)
		return nil
	}
	l.readers, l.next = append(l.readers, r), append(l.next, 0)
}

func (l *log) unreadable(err error) error { return kafka.Unreadable(l.Topic, err) }

// Letters is what a dead letter topic says, as of the newest Read. It keeps no payload.
type Letters struct {
	log
	Fold deadletter.Fold

	consumers bool // the letters are those of consumers
}

// NewLetters returns Letters that have read nothing. progress is told how many records were read, and
// how many there are.
func NewLetters(client *kgo.Client, topic string, progress func(done, total int64)) *Letters {
	return newLetters(client, topic, func() deadletter.Fold { return deadletter.Fold{} }, progress)
}

// newLetters is NewLetters with another empty Fold.
func newLetters(client *kgo.Client, topic string, empty func() deadletter.Fold, progress func(done, total int64)) *Letters {
	l := &Letters{log: log{Topic: topic, client: client, progress: progress}}
	l.decode = func(rec *kgo.Record) (*deadletter.Letter, *deadletter.Mark, error) { return l.Fold.Decode(rec) }
	l.add = func(rec *kgo.Record) { l.Fold.Add(rec) }
	l.reset = func() { l.Fold = empty() }
	l.reset()
	return l
}

// notOurs is the error of a topic that has records, and none of them is walpost's.
func (l *log) notOurs(foreign int, option string) error {
	return fault.Config(fmt.Errorf("topic %s has %d records, and none of them is walpost's", l.Topic, foreign),
		"Set delivery."+option+" to the topic that walpost run writes to. For the dead letters of a consumer, pass --dead-letter-topic.")
}

// owned returns an error if the topic has records, and none of them is walpost's.
func (l *Letters) owned() error {
	f := &l.Fold
	switch {
	case f.Foreign == 0 || f.Damaged > 0 || f.Newest != "" || len(f.Entries()) > 0:
		return nil
	case l.consumers:
		return fault.Config(fmt.Errorf("topic %s has %d records, and none of them is a dead letter of a consumer", l.Topic, f.Foreign),
			"Set --dead-letter-topic to the DeadLetterTopic of the consumer. Without this flag, the command reads the dead letters of the relay.")
	}
	return l.notOurs(f.Foreign, "dead_letter_topic")
}

// far is a distance of offsets that is worth another request instead of reading on.
const far = 2000

// errEnough ends a reading early.
var errEnough = errors.New("enough")

// contents reads the newest letters of events again, with what they hold. They own their bytes.
func (l *log) contents(ctx context.Context, events ...*deadletter.Entry) (map[string]*deadletter.Letter, error) {
	order := slices.SortedFunc(slices.Values(events), func(a, b *deadletter.Entry) int {
		return cmp.Or(cmp.Compare(a.Newest.Partition, b.Newest.Partition), cmp.Compare(a.Newest.Offset, b.Newest.Offset))
	})
	found := map[string]*deadletter.Letter{}
	for i := 0; i < len(order); {
		at := order[i].Newest
		r := kafka.Reader{Client: l.client, Topic: l.Topic, Partition: at.Partition, From: at.Offset, Stable: true}
		r.Each = func(rec *kgo.Record) error {
			if rec.Offset < order[i].Newest.Offset {
				return nil
			}
			letter, _, err := l.decode(deadletter.Owned(rec))
			if rec.Offset > order[i].Newest.Offset || err == nil && (letter == nil || letter.Token != order[i].Token) {
				err = errors.New("it is no longer in the topic: run the command again")
			}
			if err != nil {
				return fmt.Errorf("dead letter %s: %w", order[i].Token, err)
			}
			found[letter.Token] = letter
			if i++; i == len(order) || order[i].Newest.Partition != at.Partition || order[i].Newest.Offset > rec.Offset+far {
				return errEnough
			}
			return nil
		}
		if err := r.ToEnd(ctx); err == nil {
			return nil, l.unreadable(fmt.Errorf("dead letter %s is no longer in the topic: run the command again", order[i].Token))
		} else if !errors.Is(err, errEnough) {
			return nil, l.unreadable(err)
		}
	}
	return found, nil
}

// A Step is one record about an event: a letter, without what the letter holds, or a mark.
type Step struct {
	At     deadletter.Place
	Letter *deadletter.Letter // nil for a mark
	Form   deadletter.Form    // of the letter
	Mark   *deadletter.Mark   // nil for a letter
}

// history reads all that the topic says of an event, and the payload of its newest letter: the value
// of the record as it is in the topic, and the headers of the event.
func (l *log) history(ctx context.Context, e *deadletter.Entry) (steps []Step, value []byte, headers []cdc.Header, err error) {
	for p := range l.readers {
		r := kafka.Reader{Client: l.client, Topic: l.Topic, Partition: int32(p), Stable: true}
		r.Again = func() { steps = slices.DeleteFunc(steps, func(s Step) bool { return s.At.Partition == int32(p) }) }
		r.Each = func(rec *kgo.Record) error {
			letter, mark, err := l.decode(rec)
			switch at := (deadletter.Place{Partition: rec.Partition, Offset: rec.Offset}); {
			case err != nil || letter != nil && letter.Token != e.Token || mark != nil && mark.Token != e.Token:
			case mark != nil:
				steps = append(steps, Step{At: at, Mark: mark})
			default:
				if at == e.Newest {
					value = slices.Clone(rec.Value)
					if letter.Record != nil {
						for _, h := range letter.Record.Headers {
							headers = append(headers, cdc.Header{Key: h.Key, Value: slices.Clone(h.Value)})
						}
					}
				}
				small := *letter
				small.Record, small.Event, small.Key = nil, nil, nil
				steps = append(steps, Step{At: at, Letter: &small, Form: letter.Form()})
			}
			return nil
		}
		if err := r.ToEnd(ctx); err != nil {
			return nil, nil, nil, l.unreadable(err)
		}
	}
	return steps, value, headers, nil
}

// A Filter selects events. Empty fields select all.
type Filter struct {
	Tokens       []string
	State        deadletter.State
	Reason       cdc.Reason
	Tables       []string
	Topic        string
	Key          *string
	Since, Until time.Time // of the commit; Until is the first time that does not count

	Group string // the consumer group, in the dead letter topic of consumers

	// Relay selects the events of another relay than that of the configuration. All selects those of every relay.
	Relay string
	All   bool
}

// ofRelay reports whether the filter takes the events of the relay of e.
func (f *Filter) ofRelay(e *Event, cfg *Config) bool {
	switch {
	case f.All || cfg.Consumers:
		return true
	case f.Relay != "":
		return e.IsOf(f.Relay, "")
	}
	return e.IsOf(cfg.Name, cfg.Database)
}

func (f *Filter) selects(e *Event) bool {
	return (len(f.Tokens) == 0 || slices.Contains(f.Tokens, e.Token)) &&
		(f.State == "" || e.State == f.State) &&
		(f.Reason == "" || e.Reason == f.Reason) &&
		(len(f.Tables) == 0 || slices.Contains(f.Tables, e.Table)) &&
		(f.Topic == "" || e.Letter.Topic == f.Topic) &&
		(f.Group == "" || e.Group == f.Group) &&
		(f.Key == nil || e.Key != nil && string(e.Key) == *f.Key) &&
		(f.Since.IsZero() || !e.CommitTime.Before(f.Since)) &&
		(f.Until.IsZero() || e.CommitTime.Before(f.Until))
}
