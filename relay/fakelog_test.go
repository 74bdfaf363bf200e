package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
)

const parkTopic = "parked"

// A parkWorld is the topic of parked events at the brokers.
type parkWorld struct {
	records []*kgo.Record // from the offset start on
	id      string        // of the topic; "" if it does not exist
	start   int64
	writer  *fakeLog // the process that may commit, as its gen
	gen     int

	slow   bool // it takes nothing for now
	unread bool // it cannot be read for now
	lies   bool // transactions end without an answer

	backlog *parking.Backlog          // what it says
	closed  map[string]*parking.Entry // by token
	tokens  map[string]string         // of the events that it has a letter of, by event id
	by      map[string]*proc          // who released an event last, by token
}

func newParkWorld() *parkWorld {
	p := &parkWorld{id: "a", closed: map[string]*parking.Entry{}, tokens: map[string]string{}, by: map[string]*proc{}}
	p.observe()
	return p
}

// observe works out what the topic says from its records.
func (p *parkWorld) observe() {
	p.backlog = parking.History("shop", func(e *parking.Entry) { p.closed[e.Token] = e })
	for _, rec := range p.records {
		p.backlog.Add(parking.Read(rec))
	}
}

// entry is what the topic says of an event, nil for nothing.
func (p *parkWorld) entry(token string) *parking.Entry {
	if e := p.backlog.Entry(token); e != nil {
		return e
	}
	return p.closed[token]
}

func (p *parkWorld) end() int64 { return p.start + int64(len(p.records)) }

// events is how many events are parked. The world is locked.
func (p *parkWorld) events() int { return p.backlog.Counts().Events }

// landParked is the arrival of a record in the topic of parked events, also of a command. It returns what the record says.
func (w *world) landParked(rec *cdc.Record) parking.Item {
	p := w.park
	stored := &kgo.Record{Key: rec.Key, Value: rec.Value, Offset: p.end()}
	for _, h := range rec.Headers {
		stored.Headers = append(stored.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	p.records = append(p.records, stored)
	it := parking.Read(stored)
	switch {
	case it.Letter != nil:
		if e := p.closed[it.Letter.Token]; e != nil && e.State == deadletter.Dropped && it.Letter.Attempts == 1 && p.backlog.Entry(e.Token) == nil {
			w.fail("event %s was dropped, and is parked again", it.Letter.ID)
		}
		if rec := w.newest(); !w.gapsOK && (rec == nil || rec.Parking == nil || rec.Parking.ID != p.id) {
			w.fail("the letter of event %s is written before the anchor is durable", it.Letter.ID)
		}
		p.tokens[it.Letter.ID] = it.Letter.Token
		if *seed0 != 0 {
			w.tell("letter %s of %s, %s, attempt %d", it.Letter.ID, it.Letter.Key, it.Letter.Reason, it.Letter.Attempts)
		}
	case it.Mark != nil && *seed0 != 0:
		w.tell("mark %s of %s %s %d", it.Mark.State, rec.Key, it.Mark.Token, it.Mark.Offset)
	}
	if p.backlog.Add(it); p.backlog.Problem != nil {
		w.fail("the topic of parked events: %v", p.backlog.Problem)
	}
	return it
}

// A fakeLog is the topic as one process sees it, and the transactions of that process.
type fakeLog struct {
	p    *proc
	wake chan struct{}
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu      sync.Mutex
	rng     *rand.Rand
	gen     int // of the newest Open
	working bool
	pending []cdc.Pending // what was appended and has not ended
	left    []cdc.Pending // the same, before the newest Open
	ended   []cdc.Appended
	broken  error
	late    time.Duration // of Open
}

func newFakeLog(p *proc, seed uint64) *fakeLog {
	return &fakeLog{p: p, wake: make(chan struct{}, 1), stop: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 3))}
}

var errFenced = errors.New("another producer has the transactional id")

func (f *fakeLog) delay() time.Duration {
	f.p.w.mu.Lock()
	limit := f.p.w.maxDelay
	f.p.w.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.rng.Int64N(int64(limit) + 1))
}

func (f *fakeLog) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-f.stop:
		return false
	case <-ctx.Done():
		return false
	case <-after(d):
		return true
	}
}

func (f *fakeLog) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fakeLog) Wake() <-chan struct{} { return f.wake }

func (f *fakeLog) Open(ctx context.Context, create bool) (state cdc.LogState, err error) {
	f.mu.Lock()
	late := f.late
	f.left, f.pending = append(f.left, f.pending...), nil // the writer stops first
	f.gen, f.broken = -1, errFenced
	f.mu.Unlock()
	if !f.sleep(ctx, late+f.delay()) {
		return state, fault.Retry(context.Canceled)
	}
	w := f.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	park := w.park
	switch {
	case f.p.dead || w.stalled || park.slow:
		return state, errNet
	case park.id == "" && !create:
		f.mu.Lock()
		f.broken = nil // until something is appended
		f.mu.Unlock()
		return cdc.LogState{Missing: true}, nil
	case park.id == "":
		park.gen++
		*park = parkWorld{id: fmt.Sprint("again", park.gen), gen: park.gen, closed: park.closed, tokens: park.tokens}
		park.observe()
	}
	park.gen++
	park.writer = f
	f.mu.Lock()
	f.gen, f.broken = park.gen, nil
	f.left, f.pending = append(f.left, f.pending...), nil
	f.mu.Unlock()
	return cdc.LogState{ID: park.id, Start: park.start, End: park.end()}, nil
}

func (f *fakeLog) Append(rec *cdc.Record, ticket cdc.Ticket) {
	f.p.w.do(func() { f.p.w.judgeSent(f.p, rec) })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, cdc.Pending{Record: rec, Ticket: ticket})
	if !f.working {
		f.working = true
		f.wg.Go(f.work)
	}
}

// work commits what is appended, some at a time.
func (f *fakeLog) work() {
	w := f.p.w
	for f.sleep(context.Background(), time.Millisecond+f.delay()) {
		w.mu.Lock()
		f.mu.Lock()
		idle := f.broken != nil || f.gen == 0 || len(f.pending) == 0
		if idle || w.stalled || w.park.slow || f.p.lateLetters {
			if f.working = !idle || len(f.pending) > 0; !f.working {
				f.mu.Unlock()
				w.mu.Unlock()
				return
			}
			f.mu.Unlock()
			w.mu.Unlock()
			f.sleep(context.Background(), 20*time.Millisecond)
			continue
		}
		batch := f.pending[:1+f.rng.IntN(len(f.pending))]
		gen := f.gen
		switch {
		case f.p.dead:
			f.mu.Unlock()
			w.mu.Unlock()
			return
		case w.park.writer != f || w.park.gen != gen:
			f.broken = errFenced
		default:
			first := w.park.end()
			lies := w.park.lies && f.rng.IntN(3) == 0
			if !lies || f.rng.IntN(2) == 0 {
				for _, m := range batch {
					if it := w.landParked(m.Record); it.Mark != nil && it.Mark.State == deadletter.Released {
						w.park.by[it.Mark.Token] = f.p
					}
				}
			}
			if lies {
				f.broken = errors.New("the outcome of a transaction is unknown")
				break
			}
			late := time.Duration(f.rng.Int64N(int64(w.maxDelay) + 1))
			f.mu.Unlock()
			w.mu.Unlock()
			f.sleep(context.Background(), late)
			f.mu.Lock()
			if f.gen == gen && f.broken == nil { // otherwise nobody has heard of it
				for i, m := range batch {
					f.ended = append(f.ended, cdc.Appended{Ticket: m.Ticket, Record: m.Record, Offset: first + int64(i)})
				}
				f.pending = f.pending[len(batch):]
			}
			f.mu.Unlock()
			f.wakeUp()
			continue
		}
		f.mu.Unlock()
		w.mu.Unlock()
		f.wakeUp()
	}
}

func (f *fakeLog) Appends(buf []cdc.Appended) []cdc.Appended {
	f.mu.Lock()
	defer f.mu.Unlock()
	buf = append(buf, f.ended...)
	f.ended = nil
	return buf
}

func (f *fakeLog) Broken() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

func (f *fakeLog) Unwritten() []cdc.Pending {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.left
	f.left = nil
	return all
}

func (f *fakeLog) Stalled() error { return nil }

var errGone = fault.Person(errors.New("records that were in the partition are gone"), "walpost verify")

func (f *fakeLog) Read(ctx context.Context, from int64, each func(*kgo.Record) bool) (cdc.LogState, error) {
	w := f.p.w
	w.mu.Lock()
	at := cdc.LogState{ID: w.park.id, Missing: w.park.id == "", Start: w.park.start, End: w.park.end(), Next: from}
	unread := w.park.unread
	var topic []*kgo.Record
	if from >= at.Start && from <= w.park.end() {
		topic = w.park.records[from-at.Start : len(w.park.records) : len(w.park.records)]
	}
	w.mu.Unlock()
	switch {
	case at.Missing:
		return at, errNet
	case from < at.Start:
		return at, errGone
	}
	if !f.sleep(ctx, f.delay()) {
		return at, fault.Retry(context.Canceled)
	}
	if unread {
		topic = topic[:len(topic)/2] // and then the connection is lost
	}
	for _, rec := range topic {
		w.mu.Lock()
		dead := f.p.dead
		w.mu.Unlock()
		if dead {
			return at, errNet
		}
		at.Next = rec.Offset + 1
		if !each(rec) {
			return at, nil
		}
	}
	if unread {
		return at, errNet
	}
	return at, nil
}

func (f *fakeLog) Trim(_ context.Context, before int64, own func(*kgo.Record) bool) error {
	w := f.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if rec := w.newest(); !f.p.dead && (rec.Parking == nil || rec.Parking.Offset < before) {
		w.fail("the topic is trimmed up to %d, and the anchor is %+v", before, rec.Parking)
	}
	for !f.p.dead && w.park.start < before && own(w.park.records[0]) {
		w.park.start++
		w.park.records = w.park.records[1:]
	}
	return nil
}

func (f *fakeLog) close() {
	f.once.Do(func() { close(f.stop) })
	f.wg.Wait()
}

// breakLog has the log of r break.
func (r *run) breakLog(err error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.log.broken = err
}

// slowFence makes each Fence of r last so long.
func (r *run) slowFence(late time.Duration) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.log.late = late
}
