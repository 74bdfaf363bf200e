package relay

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// The source.
type fakeSource struct{ p *proc }

func (s fakeSource) Open(ctx context.Context, create, replaceLost bool) (Session, error) {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opens++
	if w.hang {
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return nil, fault.Retry(ctx.Err())
	}
	if d := w.slowOpen; d > 0 {
		w.mu.Unlock()
		time.Sleep(d)
		w.mu.Lock()
	}
	if w.openErr != nil {
		return nil, w.openErr
	}
	if w.down || s.p.dead || s.p.away || s.p.frozen {
		return nil, fault.Retry(errors.New("connection refused"))
	}
	created := false
	if (create && !w.id.SlotFound.Exists) || (replaceLost && w.id.SlotFound.Invalidation != "") {
		w.creates++
		created = true
		w.id.SlotFound = cdc.SlotState{Exists: true, Created: true, Confirmed: w.pos, WALStatus: "reserved"}
		w.slotMade()
	}
	if w.flake() {
		return nil, errNet
	}
	id := w.identity()
	id.SlotFound.Created = created
	if w.session != nil {
		id.SlotFound.ActivePID = 4711
	}
	return &fakeSession{p: s.p, id: id, snapshot: created}, nil
}

func (w *world) identity() cdc.Identity {
	id := w.id
	id.Server = w.pos.LSN()
	return id
}

func (s fakeSource) Check(ctx context.Context) (cdc.Identity, error) {
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	return s.p.w.identity(), s.p.w.checkErr
}

type fakeSession struct {
	p     *proc
	id    cdc.Identity
	early bool // started before the slot's position: fine for one who notices before he reads
	dead  error

	snapshot bool // of the slot that it made

	tx, ev int // next to send
	told   cdc.Position
	last   time.Time // of Confirm
	event  cdc.Event
	vals   [3]cdc.Value
}

func (s *fakeSession) Identity() cdc.Identity { return s.id }

func (s *fakeSession) StatusEvery() time.Duration { return s.p.w.status }

func (s *fakeSession) Start(ctx context.Context, at cdc.Position) error {
	w := s.p.w
	for {
		w.mu.Lock()
		if s.p.dead || w.down || s.p.away || s.p.frozen || !w.usable() {
			w.mu.Unlock()
			return errNet
		}
		if w.startErr != nil {
			defer w.mu.Unlock()
			return w.startErr
		}
		if w.session == nil || w.session == s {
			break
		}
		wait := w.changed
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wait:
		case <-time.After(time.Second):
		}
	}
	defer w.mu.Unlock()
	w.session, s.last = s, time.Now()
	created := s.id.SlotFound.Created
	s.id = w.identity()
	s.id.SlotFound.Created = created
	s.early = at < w.id.SlotFound.Confirmed
	for s.tx < len(w.log) && w.log[s.tx].end <= at {
		s.tx++
	}
	s.ev, s.told = -1, at
	if w.flake() {
		s.snap()
		return errNet
	}
	return nil
}

// snap ends the connection. The server notices at once or a second later.
func (s *fakeSession) snap() {
	w := s.p.w
	s.dead = errNet
	if w.session != s {
		return
	}
	if w.rng.IntN(2) == 0 {
		w.session = nil
		w.wake()
		return
	}
	go func() {
		time.Sleep(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.session == s {
			w.session = nil
			w.wake()
		}
	}()
}

// usable says whether the slot can be read.
func (w *world) usable() bool { return w.id.SlotFound.Exists && w.id.SlotFound.Invalidation == "" }

func (w *world) flake() bool { return w.flaky > 0 && w.rng.Float64() < w.flaky }

func (s *fakeSession) alive() error {
	if s.p.dead || s.p.away {
		return errNet
	}
	if s.dead != nil {
		return s.dead
	}
	if s.p.w.flake() {
		s.snap()
		return errNet
	}
	if gap := time.Since(s.last); gap > s.p.w.status+500*time.Millisecond {
		s.p.w.fail("%s without a sign of life", gap)
	}
	return nil
}

func (s *fakeSession) Next(ctx context.Context, wait time.Duration) (*cdc.Event, error) {
	w := s.p.w
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		w.mu.Lock()
		if w.blocked {
			w.mu.Unlock()
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		if s.p.frozen {
			w.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if err := s.alive(); err != nil {
			w.mu.Unlock()
			return nil, err
		}
		if s.early {
			w.fail("reading from before the slot's position")
		}
		if ev := s.next(); ev != nil {
			w.mu.Unlock()
			return ev, nil
		}
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			s.event = cdc.Event{Kind: cdc.Idle}
			return &s.event, nil
		}
	}
}

// next is the next event, nil when there is none. A keepalive comes now and then where there is no transaction.
func (s *fakeSession) next() *cdc.Event {
	w := s.p.w
	if s.tx == len(w.log) {
		if s.told < w.pos {
			s.told = w.pos
			s.event = cdc.Event{Kind: cdc.Idle, Pos: w.pos}
			return &s.event
		}
		return nil
	}
	t := w.log[s.tx]
	switch s.ev++; {
	case s.ev == 0:
		s.event = cdc.Event{Kind: cdc.Begin, Pos: t.begin, Time: t.time}
	case s.ev <= len(t.rows):
		if w.strays[s.tx] && s.ev == 1 { // leaves out the first one
			s.ev++
			if s.ev > len(t.rows) {
				s.event = cdc.Event{Kind: cdc.Commit, Pos: t.end, Time: t.time}
				s.tx, s.ev, s.told = s.tx+1, -1, t.end
				return &s.event
			}
		}
		r := t.rows[s.ev-1]
		s.vals = [3]cdc.Value{{Bytes: []byte(r.id)}, {Bytes: []byte(r.key)}, {Bytes: indexText(r.index)}}
		kind := cdc.Insert
		if r.index%5 == 2 { // rows and messages are events of one transaction
			kind = cdc.Message
		}
		s.event = cdc.Event{Kind: kind, LSN: t.begin.LSN(), Time: t.time, Row: cdc.Row{Relation: cmp.Or(w.renamed, r.relation()), Values: s.vals[:]}}
	default:
		s.event = cdc.Event{Kind: cdc.Commit, Pos: t.end, Time: t.time}
		s.tx, s.ev, s.told = s.tx+1, -1, t.end
	}
	return &s.event
}

func (s *fakeSession) Confirm(ctx context.Context, safe cdc.Position) error {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blocked {
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return fault.Retry(ctx.Err())
	}
	if err := s.alive(); err != nil {
		return err
	}
	w.confirms++
	w.maxGap = max(w.maxGap, time.Since(s.last))
	s.last = time.Now()
	if known := max(s.told, s.id.Server.Position()); safe > known {
		w.fail("confirm %s of a session on which the server stood at %s", safe, known)
	}
	if safe <= w.id.SlotFound.Confirmed {
		return nil
	}
	rec := w.newest()
	if rec == nil || safe > rec.Position {
		w.fail("confirm %s above the checkpoint %v", safe, rec)
	}
	if !w.usable() {
		w.fail("confirm %s of a slot that is lost", safe)
	}
	// While rows of the table are published the position is where the slot was made: what is before it is in no stream.
	if got, _, _ := w.delivered(); safe > got && (rec == nil || rec.Copy == nil) {
		w.fail("confirm %s above what is delivered, %s", safe, got)
	}
	w.id.SlotFound.Confirmed = safe
	return nil
}

func (s *fakeSession) Close(ctx context.Context) error {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session == s {
		w.session = nil
		w.wake()
	}
	s.dead = errors.New("used after Close")
	return nil
}

// cut ends the present session as a lost connection does.
func (w *world) cut(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutLocked(err)
}

func (w *world) cutLocked(err error) {
	if w.session != nil {
		w.session.dead = err
		w.session = nil
		w.wake()
	}
}
