package sink

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
)

// Stdout writes one line of JSON for each record: for trials, not for keeping. Once a write has failed, every record ends
// with that error: nothing behind it is written. It is used as Kafka is; only Wake and Stalled may be called by others.
type Stdout struct {
	w    *bufio.Writer
	wake chan struct{}
	acks []cdc.Ack
	err  atomic.Pointer[error] // of the first write that failed
}

// NewStdout makes a sink that writes to w.
func NewStdout(w io.Writer) *Stdout {
	return &Stdout{w: bufio.NewWriter(w), wake: make(chan struct{}, 1)}
}

// line is one record. A value that is not UTF-8 is in base64, under another name, so that nobody takes one for the other.
type line struct {
	Topic     string       `json:"topic"`
	Partition *int32       `json:"partition,omitempty"`
	Key       *string      `json:"key"`
	KeyB64    []byte       `json:"key_base64,omitempty"`
	Headers   [][2]*string `json:"headers,omitempty"` // a list: names may repeat, and their order counts
	Value     *string      `json:"value"`
	ValueB64  []byte       `json:"value_base64,omitempty"`
	Time      time.Time    `json:"time"`
}

func text(b []byte) (*string, []byte) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		return new(string(b)), nil
	}
	return nil, b
}

// Send writes the record. It goes out with the next Acks, or before.
func (s *Stdout) Send(rec *cdc.Record, ticket cdc.Ticket) {
	l := line{Topic: rec.Topic, Time: rec.Time.UTC()}
	if rec.Partition >= 0 {
		l.Partition = &rec.Partition
	}
	l.Key, l.KeyB64 = text(rec.Key)
	l.Value, l.ValueB64 = text(rec.Value)
	for i := range rec.Headers {
		h := &rec.Headers[i]
		v, b := text(h.Value)
		if b != nil {
			v = new("base64:" + base64.StdEncoding.EncodeToString(b))
		}
		l.Headers = append(l.Headers, [2]*string{&h.Key, v})
	}
	err := s.Stalled()
	if err == nil {
		err = s.write(&l)
	}
	a := cdc.Ack{Ticket: ticket, EventID: rec.EventID, Topic: rec.Topic, Latency: max(0, time.Since(rec.Committed))}
	if err != nil {
		a.Err, a.EventID = fmt.Errorf("write event %s: %w", rec.EventID, err), strings.Clone(rec.EventID)
	}
	s.acks = append(s.acks, a)
	poke(s.wake)
}

func (s *Stdout) write(l *line) error {
	b, err := json.Marshal(l)
	if err == nil {
		_, err = s.w.Write(append(b, '\n'))
	}
	if err != nil {
		s.fail(err)
	}
	return err
}

func (s *Stdout) fail(err error) { s.err.CompareAndSwap(nil, &err) }

// Acks writes out what is buffered, and only then acknowledges it.
func (s *Stdout) Acks(buf []cdc.Ack) []cdc.Ack {
	if len(s.acks) == 0 {
		return buf
	}
	if err := s.w.Flush(); err != nil {
		s.fail(err)
		for i := range s.acks {
			if a := &s.acks[i]; a.Err == nil {
				a.Err = fmt.Errorf("write: %w", err)
			}
		}
	}
	buf = append(buf, s.acks...)
	clear(s.acks)
	s.acks = s.acks[:0]
	return buf
}

// Wake receives something when there is something for Acks.
func (s *Stdout) Wake() <-chan struct{} { return s.wake }

// Stalled is the error of the first write that failed.
func (s *Stdout) Stalled() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

// PassOver does nothing: Stdout refuses no record, it only fails to write.
func (s *Stdout) PassOver(*cdc.Ack, func([]byte, *cdc.Ticket) bool) {}

// TakeBack does nothing: nothing waits.
func (s *Stdout) TakeBack(string, func([]byte, *cdc.Ticket) bool) {}

// Pending tells nothing: every record has ended with the next Acks.
func (s *Stdout) Pending(func(topic string, records int, why error, closed bool)) {}

// Close writes out what is buffered.
func (s *Stdout) Close(context.Context) error {
	if s.Stalled() != nil {
		return nil // reported by the acks
	}
	return s.w.Flush()
}
