// Package release delivers the events of parked keys that are to be released, and gives up the events
// that an operator drops. It works in rounds: each round delivers some events of a key, waits for the
// brokers, and then writes the result into the topic of parked events. A key is free once the brokers
// have that result.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/recent"
)

const (
	roundEvents = 1000             // parked events that are read at one time, at most
	roundBytes  = 8 << 20          // the same in bytes of their letters
	mostSent    = 10 * roundEvents // records of rounds that are not acknowledged
	readPieces  = 64               // places of the topic that one reading begins at, at most
	readAcross  = 200              // unwanted offsets that a reading crosses, rather than beginning again
	dropAtOnce  = 1000             // events that are given up at one time
	stuckAfter  = 10 * time.Second // without an acknowledgement, a round gives back what waits for its topic
	stuckRest   = 30 * time.Second // and its key waits
	lastEvents  = 100              // with so many events left, reading pauses until the key is free
	pauseFor    = time.Second      // at most
	fetchAgain  = time.Second      // after letters could not be read
)

// pauseAgain is the time after a pause of the loop, which grows while no key becomes free in the pauses.
var pauseAgain = backoff.Backoff{Min: time.Second, Max: 2 * time.Minute}

// OriginHeader is a header of every record that does not come straight from the stream. Origin is its
// value for an event that was parked.
const (
	OriginHeader = "walpost.origin"
	Origin       = "dead_letter"
)

// A Sink delivers records.
type Sink interface {
	Send(*cdc.Record, cdc.Ticket)
	PassOver(a *cdc.Ack, taken func(key []byte, ticket *cdc.Ticket) bool)
	TakeBack(topic string, taken func(key []byte, ticket *cdc.Ticket) bool)
}

// A Releaser releases keys. All its methods are called by the relay's loop, Reset first. Its exported fields
// are set once, but Backlog, and Writing and Pausing, which only the Releaser sets.
type Releaser struct {
	Backlog *parking.Backlog
	Sink    Sink
	Route   func(*cdc.Event, *cdc.Record) (bool, error)
	// Read and Write are of the topic of parked events.
	Read   func(ctx context.Context, from int64, each func(*kgo.Record) bool) (cdc.LogState, error)
	Write  func(rec *cdc.Record, ticket cdc.Ticket)
	Beside func(work func(context.Context) (report func())) // runs work beside the loop
	Note   func(error)                                      // an error that is waited out
	Works  func() bool                                      // this process holds the slot, and reads
	Log    *slog.Logger

	TopicName, Name, Version string

	Writing int  // records of the topic that are not acknowledged
	Pausing bool // the loop is to read nothing, so that a key becomes free

	now      Now
	rounds   map[parking.Key]*round
	dropping map[parking.Key]bool
	resting  map[parking.Key]time.Time // keys whose topic takes nothing
	sent     map[uint64]*released      // what is sent and not acknowledged, by Ticket.Tx
	newest   uint64                    // of these numbers
	fetching bool
	fetchAt  time.Time // no fetch before
	failed   error     // of the newest fetch
	missing  recent.FaultLog

	awaits    fault.Awaited // what the router needs for the next event of awaitsKey; nil for nothing
	awaitsKey parking.Key

	slow     map[parking.Key]bool // keys that got further events while they were released
	pauseEnd time.Time
	pauseAt  time.Time // no pause before
	pauses   int       // in a row, in which a key did not become free
}

// Now is what the loop knows at one moment.
type Now struct {
	Time  time.Time
	Room  int                       // records that may be sent
	Ready func(*parking.Entry) bool // an event that no letter of its key can come before any more
}

// A round delivers some events of one key, in order.
type round struct {
	key    parking.Key
	sent   []sentEvent
	topics map[string]bool // of its records
	left   int             // records that have not ended, with the results and letters of the round
	marked bool            // its result is appended
	moved  time.Time       // when one ended
	stuck  bool            // what waited was given back
	void   bool            // another holder decides about the key now
}

// A sentEvent is a parked event that a round delivers.
type sentEvent struct {
	*parking.Entry
	topic   string
	arrived bool
}

// A released is a record of a round, or a record for the topic of parked events.
type released struct {
	round  *round             // nil for what is of no round
	letter *deadletter.Letter // of a delivered event
	nth    int                // of that event
	done   func()             // what follows, nil for nothing
}

// Reset begins anew with backlog, because another process may have held the slot: what this one has sent
// and not written down is not its business any more. forgotten says that the sink gives no Ack of it either.
func (p *Releaser) Reset(backlog *parking.Backlog, forgotten bool) {
	for _, r := range p.rounds {
		for topic := range r.topics {
			p.Sink.TakeBack(topic, p.inRound(r))
		}
	}
	for tx, what := range p.sent {
		if forgotten || what.letter == nil { // else a record of the topic, which is fenced
			delete(p.sent, tx)
		} else {
			what.round.void = true
		}
	}
	if p.sent == nil {
		p.sent = map[uint64]*released{}
	}
	p.Backlog, p.Writing, p.fetching = backlog, 0, false
	p.rounds, p.dropping = map[parking.Key]*round{}, map[parking.Key]bool{}
	p.resting, p.slow, p.awaits = map[parking.Key]time.Time{}, map[parking.Key]bool{}, nil
}

// Busy is how many records are sent and not acknowledged.
func (p *Releaser) Busy() int { return len(p.sent) }

// Stalled is why keys are not released although they should be, nil for no reason.
func (p *Releaser) Stalled() error {
	switch {
	case p.missing.Times > 2:
		return p.failed
	case p.awaits != nil:
		return p.awaits.Stalled()
	}
	return nil
}

// Append writes a record that is of no round into the topic. done is called once the brokers have it.
func (p *Releaser) Append(rec *cdc.Record, done func()) { p.append(rec, &released{done: done}) }

func (p *Releaser) append(rec *cdc.Record, what *released) {
	p.Writing++
	p.Write(rec, p.ticket(rec, what))
}

func (p *Releaser) ticket(rec *cdc.Record, what *released) cdc.Ticket {
	p.newest++
	p.sent[p.newest] = what
	if what.round != nil {
		what.round.left++
	}
	return cdc.Ticket{Tx: p.newest, Size: uint32(rec.Size())}
}

// Advance begins the rounds that can begin, and decides whether the loop reads on.
func (p *Releaser) Advance(now Now) {
	p.now = now
	for _, r := range p.rounds {
		p.unstick(r)
	}
	if p.awaits != nil && (p.awaits.Ready() || !p.Backlog.Releases(p.awaitsKey)) {
		p.awaits = nil
	}
	maps.DeleteFunc(p.resting, func(_ parking.Key, until time.Time) bool { return !now.Time.Before(until) })
	if p.Works() {
		p.drop()
		p.begin()
	}
	p.pause()
}

// drop gives up the events that an operator asked for, but none of a round.
func (p *Releaser) drop() {
	busy := func(key parking.Key) bool { return p.rounds[key] != nil || p.dropping[key] || p.fetching }
	for _, e := range p.Backlog.ToDrop(busy, dropAtOnce) {
		if p.dropping[e.Key] {
			continue // another event of the key is being dropped: one result after the other
		}
		p.dropping[e.Key] = true
		p.Log.Warn("a parked event is dropped, as walpost dead drop asked", "token", e.Token, "id", e.ID, "table", e.Key.Table, "why", e.Why)
		key := e.Key
		p.append(parking.DroppedMark(p.TopicName, p.Name, e, p.now.Time), &released{done: func() { delete(p.dropping, key) }})
	}
}

// begin reads the letters of the events that are to be delivered next.
func (p *Releaser) begin() {
	room := min(p.now.Room, mostSent) - len(p.sent)
	if room <= 0 || p.fetching || p.now.Time.Before(p.fetchAt) {
		return
	}
	busy := func(key parking.Key) bool {
		_, rests := p.resting[key]
		return rests || p.rounds[key] != nil || p.dropping[key]
	}
	if next := p.Backlog.Next(busy, p.now.Ready, parking.Bounds{Events: min(room, roundEvents), Bytes: roundBytes}); len(next) > 0 {
		p.fetch(next)
	}
}

// unstick gives back what a round has sent to a topic that takes nothing, so that other keys can go
// on, and so that its events can be dropped.
func (p *Releaser) unstick(r *round) {
	if r.stuck || r.marked || p.now.Time.Sub(r.moved) < stuckAfter {
		return
	}
	r.stuck = true
	p.resting[r.key] = p.now.Time.Add(stuckRest)
	for topic := range r.topics {
		p.Sink.TakeBack(topic, p.inRound(r))
	}
}

// inRound tells the records of a round to the sink.
func (p *Releaser) inRound(r *round) func([]byte, *cdc.Ticket) bool {
	return func(_ []byte, t *cdc.Ticket) bool {
		other := p.sent[t.Tx]
		return other != nil && other.round == r && other.letter != nil
	}
}

// pause decides whether the loop reads on. A key that gets events faster than a release can deliver
// them would never become free. So reading pauses for a moment if little of a key is left.
func (p *Releaser) pause() {
	now := p.now.Time
	for key := range p.slow {
		if !p.Backlog.Releases(key) {
			delete(p.slow, key)
		}
	}
	wanted := p.Works() && len(p.slow) > 0
	switch {
	case p.Pausing && (!wanted || !now.Before(p.pauseEnd)):
		p.Pausing = false
		if p.pauses++; !wanted {
			p.pauses = 0
		}
		p.pauseAt = now.Add(pauseAgain.Limit(p.pauses + 1))
	case !p.Pausing && wanted && !now.Before(p.pauseAt):
		p.Pausing, p.pauseEnd = true, now.Add(pauseFor)
	}
}

// fetch reads the letters of events.
func (p *Releaser) fetch(next map[parking.Key][]*parking.Entry) {
	var wanted []int64 // offsets, because the loop goes on with the entries
	for _, entries := range next {
		for _, e := range entries {
			wanted = append(wanted, e.Offset)
		}
	}
	slices.Sort(wanted)
	type piece struct{ first, last int64 }
	var pieces []piece
	for _, at := range wanted {
		if n := len(pieces); n > 0 && at-pieces[n-1].last <= readAcross {
			pieces[n-1].last = at
		} else if n < readPieces {
			pieces = append(pieces, piece{at, at})
		}
	}
	for key, entries := range next { // what is behind the last piece comes next
		n := slices.IndexFunc(entries, func(e *parking.Entry) bool { return e.Offset > pieces[len(pieces)-1].last })
		if n == 0 {
			delete(next, key)
		} else if n > 0 {
			next[key] = entries[:n]
		}
	}
	p.fetching = true
	backlog := p.Backlog
	p.Beside(func(ctx context.Context) func() {
		letters := map[string]*deadletter.Letter{} // by token: another letter of an event can come meanwhile
		var err error
		for _, r := range pieces {
			var read cdc.LogState
			read, err = p.Read(ctx, r.first, func(rec *kgo.Record) bool {
				if _, ok := slices.BinarySearch(wanted, rec.Offset); ok {
					if letter, _, err := deadletter.Decode(deadletter.Owned(rec)); err == nil && letter != nil {
						letters[letter.Token] = letter
					}
				}
				return rec.Offset < r.last
			})
			if err == nil && read.Next <= r.last { // a new leader may say too early an end for a moment
				err = fmt.Errorf("offset %d is needed, and the topic ends at %d", r.last, read.Next)
			}
			if err != nil {
				break
			}
		}
		return func() {
			if backlog == p.Backlog { // otherwise Reset has begun anew
				p.fetched(next, letters, err)
			}
		}
	})
}

// fetched delivers what fetch has read.
func (p *Releaser) fetched(next map[parking.Key][]*parking.Entry, letters map[string]*deadletter.Letter, err error) {
	p.fetching = false
	for key, entries := range next {
		for _, e := range entries {
			if err == nil && letters[e.Token] == nil {
				err = fault.Person(fmt.Errorf("event %s of key %s is not at offset %d any more", e.Token, key, e.Offset), lostHint)
			}
		}
	}
	if err != nil {
		p.fetchAt = time.Now().Add(fetchAgain)
		p.failed = fmt.Errorf("parked keys cannot be released: %w", err)
		p.Note(p.failed)
		p.missing.Fault(time.Now(), p.Log).Warn("parked keys cannot be released", "err", err)
		return
	}
	p.missing.Over(time.Now(), p.Log).Info("parked keys can be released again")
	if !p.Works() {
		return
	}
	for key, entries := range next {
		r := &round{key: key, left: 1, topics: map[string]bool{}, moved: time.Now()}
		p.rounds[key] = r
		for _, e := range entries {
			if !p.deliver(r, e, letters[e.Token]) {
				break
			}
		}
		p.ended(r)
	}
}

const lostHint = "The topic has lost records: check its cleanup.policy and retention.ms. The parked event is not in the topic any more: walpost verify lists the rows that are in no topic, " +
	"and walpost replay delivers them from the table. Then start walpost again. If it refuses, it prints how to go on."

// awaitRest is how long a key rests if the router needs the answer of a schema registry.
const awaitRest = time.Second

// deliver sends the record of a parked event. It reports false if the event cannot be routed yet.
func (p *Releaser) deliver(r *round, e *parking.Entry, letter *deadletter.Letter) bool {
	rec := letter.Record
	if letter.Event != nil {
		rec = &cdc.Record{}
		ok, err := p.Route(letter.Event, rec)
		if awaits := fault.Awaits(err); awaits != nil { // the key's next round begins with this event
			p.awaits, p.awaitsKey = awaits, r.key
			p.resting[r.key] = p.now.Time.Add(awaitRest)
			return false
		}
		if err == nil && !ok { // for example because the table has another name now
			err = fmt.Errorf("the configuration produces no record for this row of %s", letter.Table)
		}
		if err != nil {
			p.again(r, letter, cmp.Or(badevent.Because(err), cdc.Unroutable), err)
			return false
		}
	}
	r.sent = append(r.sent, sentEvent{Entry: e, topic: rec.Topic})
	isOrigin := func(h cdc.Header) bool { return h.Key == OriginHeader }
	rec.Headers = append(slices.DeleteFunc(slices.Clone(rec.Headers), isOrigin), cdc.Header{Key: OriginHeader, Value: []byte(Origin)})
	r.topics[rec.Topic] = true
	p.Sink.Send(rec, p.ticket(rec, &released{round: r, letter: letter, nth: len(r.sent) - 1}))
	return true
}

// again writes a letter for an event that cannot be delivered yet. The key stays parked, and nobody
// tries again before an operator asks for it.
func (p *Releaser) again(r *round, letter *deadletter.Letter, reason cdc.Reason, cause error) {
	e := p.Backlog.Entry(letter.Token)
	if r.void || e == nil || e.Drop != 0 { // it is dropped once the round is over
		return
	}
	next := *letter
	next.First = e.First
	next.Reason, next.Attempts, next.Version = reason, letter.Attempts+1, p.Version
	next.Error = (&badevent.Event{Err: cause}).Reason()
	rec, err := next.Encode(p.TopicName)
	if err != nil {
		p.Note(err)
		return
	}
	p.append(rec, &released{round: r})
	p.Log.Error("a parked event still cannot be delivered: its key stays parked",
		"token", next.Token, "id", next.ID, "table", next.Table, "reason", string(reason), "attempts", next.Attempts, "err", next.Error)
}

// Delivered takes the end of a record that the sink has. The record is of a round.
func (p *Releaser) Delivered(a *cdc.Ack) error {
	what := p.take(a.Ticket)
	r := what.round
	var refusal *cdc.Refusal
	switch {
	case a.Err == nil:
		r.sent[what.nth].arrived, r.moved = true, p.now.Time
	case errors.As(a.Err, &refusal):
		p.again(r, what.letter, refusal.Reason, a.Err)
		p.Sink.PassOver(a, p.inRound(r))
	case !errors.Is(a.Err, cdc.ErrTakenBack):
		return fmt.Errorf("deliver parked event %s: %w", a.EventID, a.Err)
	}
	p.ended(r)
	return nil
}

// Written takes the end of a record of the topic, once the Backlog has it.
func (p *Releaser) Written(ticket cdc.Ticket) {
	what := p.take(ticket)
	if what == nil { // of a time before Reset
		return
	}
	p.Writing--
	if what.done != nil {
		what.done()
	}
	if what.round != nil {
		p.ended(what.round)
	}
}

func (p *Releaser) take(ticket cdc.Ticket) *released {
	what := p.sent[ticket.Tx]
	delete(p.sent, ticket.Tx)
	return what
}

// delivered are the events of a round that need not be delivered again: in each topic those up to the
// first one that did not arrive.
func (r *round) delivered() (events []*parking.Entry) {
	stopped := map[string]bool{}
	for _, e := range r.sent {
		if stopped[e.topic] = stopped[e.topic] || !e.arrived; !stopped[e.topic] {
			events = append(events, e.Entry)
		}
	}
	return events
}

// ended takes the end of one record of a round. Behind the last one the round writes what it has
// delivered.
func (p *Releaser) ended(r *round) {
	if r.left--; r.left > 0 || r.void {
		return
	}
	done := r.delivered()
	if !r.marked && len(done) > 0 {
		r.marked = true
		p.append(parking.ReleasedMark(p.TopicName, p.Name, done, p.now.Time), &released{round: r})
		return
	}
	delete(p.rounds, r.key)
	switch left := len(p.Backlog.Entries(r.key)); {
	case left == 0:
		p.Log.Info("a parked key is released", "table", r.key.Table, "key", r.key.Key)
	case len(done) == len(r.sent) && left <= lastEvents && p.Backlog.Releases(r.key):
		p.slow[r.key] = true
		return
	}
	delete(p.slow, r.key)
}
