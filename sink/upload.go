package sink

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// A Store keeps the payloads of claims. Its methods can be called at the same time.
type Store interface {
	// Put stores data durably. A key that is there already has the same data.
	Put(ctx context.Context, key string, data []byte) error
}

const (
	uploadsAtOnce = 16
	uploadLimit   = time.Minute // of one attempt, with what its bytes take
	slowest       = 128 << 10   // bytes per second of an upload that gets its share of a slow link
	brisk         = 1 << 20     // bytes per second of an upload that nobody needs to hear of
)

// uploads put payloads into the store, and try again for as long as it takes. A record waits for its own payload alone: a partition
// sends nothing from that record on. Claims of one key share an upload, so what is sent again takes no more memory.
type uploads struct {
	store Store

	mu     sync.Mutex         // may be taken while Kafka.mu is held, and not the other way around
	open   map[string]*upload // by key
	line   []*upload          // that nobody works on
	active []*upload          // from the oldest one
}

// An upload is of a payload that is not stored yet.
type upload struct {
	key     string
	payload []byte
	claims  []*cdc.Claim
	wakes   []func()
	began   time.Time
	err     error // of the newest attempt
}

// Upload puts the payload of a claim into the store. It calls wake when the payload is stored, from another goroutine, or not at all if
// it is stored already. The goroutine of Send calls it.
func (s *Kafka) Upload(c *cdc.Claim, wake func()) {
	u := &s.uploads
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.IsStored() || s.ctx.Err() != nil {
		return
	}
	o := u.open[c.Key]
	if o == nil {
		o = &upload{key: c.Key, payload: c.Payload}
		u.open[c.Key] = o
		u.line = append(u.line, o)
		if len(u.active) < uploadsAtOnce {
			first := u.next()
			s.wg.Go(func() { s.upload(first) })
		}
	}
	c.Payload = nil
	o.claims, o.wakes = append(o.claims, c), append(o.wakes, wake)
}

// next takes the next upload from the line; nil for none. mu is held.
func (u *uploads) next() *upload {
	if len(u.line) == 0 {
		return nil
	}
	next := u.line[0]
	u.line[0] = nil // the array outlives it
	u.line = u.line[1:]
	next.began = time.Now()
	u.active = append(u.active, next)
	return next
}

// upload stores one payload after another, until there are none.
func (s *Kafka) upload(next *upload) {
	u, pause := &s.uploads, kafka.Backoff(0)
	for next != nil {
		ctx, cancel := context.WithTimeout(s.ctx, uploadLimit+time.Duration(len(next.payload)/slowest)*time.Second)
		err := u.store.Put(ctx, next.key, next.payload)
		cancel()
		if err != nil {
			u.mu.Lock()
			next.err = err
			u.mu.Unlock()
			if !pause.Sleep(s.ctx) {
				return
			}
			continue
		}
		pause = 0
		next = u.stored(next)
	}
}

// stored ends an upload, and returns the next one.
func (u *uploads) stored(o *upload) *upload {
	u.mu.Lock()
	for _, c := range o.claims {
		c.Stored()
	}
	delete(u.open, o.key)
	o.payload, o.claims = nil, nil
	u.active = slices.DeleteFunc(u.active, func(a *upload) bool { return a == o })
	next := u.next()
	u.mu.Unlock()
	for _, wake := range o.wakes { // nobody adds to those of a payload that is stored
		wake()
	}
	return next
}

// stalled is why payloads are not stored, or nil while that takes no longer than an acknowledgement may.
func (u *uploads) stalled(now time.Time) (why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range u.active {
		since := now.Sub(o.began)
		switch {
		case since < kafka.StallAfter || o.err == nil && since < kafka.StallAfter+time.Duration(len(o.payload)/brisk)*time.Second:
		case o.err != nil:
			return fmt.Errorf("the store of records.claim_check: %w", o.err)
		case why == nil:
			why = fmt.Errorf("the store of records.claim_check: storing %d bytes has taken %s so far", len(o.payload), since.Round(100*time.Millisecond))
		}
	}
	return why
}

// offer has the lanes look at the topic after a payload was stored.
func (t *topic) offer() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.closed || t.dead {
		return
	}
	for _, p := range t.parts {
		p.offer()
	}
}
