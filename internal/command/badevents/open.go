package badevents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/wait"
)

// WaitingConfig says which dead letters a Waiting is about.
type WaitingConfig struct {
	Kafka kafka.Config
	Topic string
	// Name and Database are of the relay. IDs takes the dead letters of every relay of the database,
	// because the relay may have had another name. Count takes its own.
	Name, Database string
	// Written reports whether this process writes dead letters, or has written one: then the topic
	// exists.
	Written func() bool
}

// Waiting tells which dead letters are open, for a relay that runs for months. It reads only what is new
// in the topic since the last time, and holds what is open. Its methods may be called by any goroutine.
//
// Whatever it answers is complete: rows are deleted because of it. So an answer that is not certain is
// an error, and a topic that was read and is not there any more, is another one, or has lost an open
// letter, has no answer.
type Waiting struct {
	WaitingConfig

	reading sync.Mutex // guards all that follows, and one reading
	client  *kgo.Client
	letters *Letters // nil before the first reading
	absent  bool     // the topic did not exist when it was read last
	id      topicID
	ends    []int64            // of the partitions, as far as they were ever read
	open    []deadletter.Place // of the dead letters that IDs returned last

	mu    sync.Mutex // guards:
	count Count
}

// A Count says how many dead letters of the relay are open.
type Count struct {
	Open int
	Err  error // why Open is not known
}

var errUnread = errors.New("the dead letter topic has not been read yet")

type topicID = [16]byte

// NewWaiting does not connect.
func NewWaiting(cfg WaitingConfig) *Waiting {
	return &Waiting{WaitingConfig: cfg, count: Count{Err: errUnread}}
}

// Close frees the connections.
func (w *Waiting) Close() {
	w.reading.Lock()
	defer w.reading.Unlock()
	if w.client != nil {
		w.client.Close()
	}
}

// Count is the result of the newest reading, by IDs or by Run.
func (w *Waiting) Count() Count {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

const (
	followEvery = 10 * time.Second
	// sureMissing is how many answers in a row must say that the topic does not exist, before the first
	// answer is believed. A broker that has just started may not know its topics.
	sureMissing = 3
	askAgain    = time.Second
)

// Run reads the topic again and again until ctx ends, so that Count is new.
func (w *Waiting) Run(ctx context.Context) {
	for {
		_, _ = w.IDs(ctx) // Count has the error
		if !wait.For(ctx, followEvery) {
			return
		}
	}
}

// IDs are the ids of the events that are dead now, or "" for an event without an id.
func (w *Waiting) IDs(ctx context.Context) (ids []string, err error) {
	w.reading.Lock()
	defer w.reading.Unlock()
	now := Count{}
	if now.Err = w.read(ctx); now.Err == nil {
		w.open = w.open[:0]
		for _, e := range w.letters.Fold.Entries() {
			if e.Database == w.Database {
				ids, w.open = append(ids, e.ID), append(w.open, e.Newest)
			}
			if e.IsOf(w.Name, w.Database) {
				now.Open++
			}
		}
	}
	if now.Err == nil || ctx.Err() == nil {
		w.mu.Lock()
		w.count = now
		w.mu.Unlock()
	}
	return ids, now.Err
}

// read reads what is new. Without an error, the Fold has every open dead letter.
func (w *Waiting) read(ctx context.Context) error {
	if w.letters == nil {
		var err error
		if w.client, err = w.Kafka.NewClient(); err != nil {
			return err
		}
		w.letters = newLetters(w.client, w.Topic, deadletter.NewOpenFold, func(int64, int64) {})
	}
	l := w.letters
	for asked := 1; ; asked++ {
		switch err := l.Read(ctx); {
		case err != nil:
			return err
		case !l.Missing:
			return w.same(l)
		case w.ends != nil:
			return w.lost("no longer exists")
		case w.Written():
			return fmt.Errorf("topic %s does not exist: dead letters go there, and walpost run creates it", w.Topic)
		case w.absent || asked == sureMissing:
			w.absent = true
			return nil
		case !wait.For(ctx, askAgain):
			return context.Cause(ctx)
		}
	}
}

// same returns an error if the topic is not the one that was read before, or if it cannot be understood.
func (w *Waiting) same(l *Letters) error {
	if w.ends == nil {
		w.id = l.readers[0].TopicID()
	}
	if len(l.readers) < len(w.ends) {
		return w.lost("was deleted and created again")
	}
	for p, r := range l.readers {
		switch {
		case r.TopicID() != w.id:
			return w.lost("was deleted and created again")
		case p < len(w.ends) && r.End < w.ends[p]:
			return w.lost(fmt.Sprintf("has lost records: partition %d ends at offset %d, and it has had %d", p, r.End, w.ends[p]))
		}
	}
	for _, at := range w.open {
		if start := l.readers[at.Partition].Start; start > at.Offset { // its readers have started over, without it
			return w.lost(fmt.Sprintf("has lost open dead letters: partition %d begins at offset %d, and one was at offset %d", at.Partition, start, at.Offset))
		}
	}
	w.absent, w.ends = false, slices.Grow(w.ends[:0], len(l.readers))
	for _, r := range l.readers {
		w.ends = append(w.ends, r.End)
	}
	if f := &l.Fold; f.Damaged > 0 {
		return fault.WithHint(fmt.Errorf("topic %s: %d records of walpost cannot be read: %w", w.Topic, f.Damaged, f.Problem),
			"If a newer version of walpost wrote them, run that version. Otherwise retry or drop the other dead letters, and set delivery.dead_letter_topic to a new topic.")
	}
	return nil
}

// lost is the error of a topic without letters that it had. It lasts as long as the process.
func (w *Waiting) lost(what string) error {
	return fault.WithHint(fmt.Errorf("topic %s %s: which dead letters were open is not known", w.Topic, what),
		"Run "+fault.Command("verify")+" to find the rows whose events are in no topic, and "+fault.Command("replay")+" to deliver them. Then start walpost run again.")
}
