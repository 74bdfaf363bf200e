// Package pump sends the records of a command and tells what became of each one. A Pump remembers what a record was sent
// for, bounds what is in flight, lets a partition go on behind a refused record, and says what delivery waits for. The sink keeps
// the order of each key and retries.
//
// The relay's loop doesn't use it. A Pump waits for nothing but acknowledgements, while the loop also reads, confirms,
// and follows the topic of parked events. And the loop counts its records by transaction (checkpoint.Tracker), across the
// sessions of a run, so a Pump would be a second count. A release of parked keys sends through the loop's sink, and gets its
// acknowledgements from the loop.
package pump

import (
	"cmp"
	"context"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A Sink delivers records: it is the part of relay.Sink that a Pump needs.
type Sink interface {
	Send(rec *cdc.Record, ticket cdc.Ticket)
	Acks(buf []cdc.Ack) []cdc.Ack
	PassOver(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool)
	Wake() <-chan struct{}
	Stalled() error
	Pending(each func(topic string, records int, why error, closed bool))
}

// A Pump sends records, each for a T. Its fields are set before the first Send. It belongs to one goroutine.
type Pump[T any] struct {
	Sink Sink
	// Ended takes the end of a record. a.Err is nil, or why the record was refused. Ended may send more. When it returns nil
	// for a refused record, its partition goes on behind that one. An error ends the Wait: the record stays in flight, and so does
	// what was sent to its partition later.
	Ended func(of T, a *cdc.Ack) error
	// Look, if not nil, is called about once a second while Wait waits. An error ends the Wait.
	Look func(ctx context.Context) error
	// Say tells the user what delivery waits for. It isn't called again for the same reason.
	Say func(text string)
	// Events and Bytes are how much may be in flight while there is room.
	Events int
	Bytes  int64

	first uint64    // number of sent[0]
	sent  []sent[T] // from the oldest record in flight on
	open  int       // of sent, those in flight
	bytes int64     // of them
	acks  []cdc.Ack
	told  string // by Say

	looked time.Time // when Wait last looked; zero before the first Wait
}

type sent[T any] struct {
	of    T
	bytes int64
	ended bool
}

// Every is the time between two looks.
const Every = time.Second

// Send sends a record, whether there is room or not. The sink takes over the bytes of rec, but not the struct.
func (p *Pump[T]) Send(rec *cdc.Record, of T) {
	size := rec.Size()
	p.sent = append(p.sent, sent[T]{of: of, bytes: int64(size)})
	p.open++
	p.bytes += int64(size)
	p.Sink.Send(rec, cdc.Ticket{Tx: p.first + uint64(len(p.sent)) - 1, Size: uint32(size)})
}

// Room reports whether there is room for another record. What has ended behind a record in flight counts like one, because it
// is remembered.
func (p *Pump[T]) Room() bool { return len(p.sent) < p.Events && p.bytes < p.Bytes }

// Landed reports whether nothing is in flight.
func (p *Pump[T]) Landed() bool { return p.open == 0 }

// Oldest returns what the oldest record in flight was sent for. It reports false if nothing is in flight.
func (p *Pump[T]) Oldest() (of T, ok bool) {
	if p.open == 0 {
		return of, false
	}
	return p.sent[0].of, true
}

// Wait calls Ended for what has ended, until ready reports true, but at least until the time at. It returns the error of
// Ended or Look, or the cause of the end of ctx.
func (p *Pump[T]) Wait(ctx context.Context, at time.Time, ready func() bool) error {
	if p.looked.IsZero() {
		p.looked = time.Now()
	}
	for {
		is := ready()
		more, err := p.collect()
		left := time.Until(at)
		switch {
		case err != nil:
			return err
		case is && !more && left <= 0: // nothing that has ended since is left for the caller
			return nil
		case more:
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		limit := time.Until(p.looked.Add(Every))
		if left > 0 {
			limit = min(limit, left)
		}
		timer := time.NewTimer(limit)
		select {
		case <-ctx.Done():
		case <-p.Sink.Wake():
		case <-timer.C:
		}
		timer.Stop()
		if time.Since(p.looked) < Every || ctx.Err() != nil {
			continue
		}
		if why := p.Sink.Stalled(); why != nil && why.Error() != p.told {
			p.told = why.Error()
			p.Say("waiting: " + p.told)
		}
		if p.Look != nil {
			if err := p.Look(ctx); err != nil {
				return err
			}
		}
		p.looked = time.Now()
	}
}

// Drain is for a command that ends early: it calls Ended until nothing more can end, or for limit. What waits behind a record
// whose Ended returned an error can't end. Drain returns the first such error. It doesn't Look.
func (p *Pump[T]) Drain(limit time.Duration) (stop error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	p.Look = nil
	for {
		err := p.Wait(ctx, time.Time{}, p.quiet)
		if err == nil || ctx.Err() != nil {
			return stop
		}
		stop = cmp.Or(stop, err)
	}
}

func (p *Pump[T]) quiet() bool {
	open := 0
	p.Sink.Pending(func(_ string, records int, _ error, closed bool) {
		if !closed {
			open += records
		}
	})
	return open == 0
}

// collect takes what has ended. It reports whether something has.
func (p *Pump[T]) collect() (more bool, stop error) {
	p.acks = p.Sink.Acks(p.acks[:0])
	defer clear(p.acks) // their ids are parts of payloads
	for i := range p.acks {
		a := &p.acks[i]
		n := a.Ticket.Tx - p.first
		if err := p.Ended(p.sent[n].of, a); err != nil {
			stop = cmp.Or(stop, err)
			continue
		}
		if a.Err != nil {
			p.Sink.PassOver(a, nil)
		}
		p.sent[n].ended = true
		p.open--
		p.bytes -= p.sent[n].bytes
	}
	n := 0
	for n < len(p.sent) && p.sent[n].ended {
		n++
	}
	clear(p.sent[:n])
	p.sent, p.first = p.sent[n:], p.first+uint64(n)
	return len(p.acks) > 0, stop
}
