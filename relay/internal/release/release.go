// Package release delivers the events of parked keys that a person wants released. It works in rounds:
// each round delivers some events of a key, waits for the brokers, and then says so in the topic of
// parked events. A key is free when the parking.Lot says so, which reads the topic.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay/internal/badevent"
	"github.com/walpost/walpost/relay/internal/recent"
)

const (
	releaseEvents = 1000        // parked events that are delivered at one time, at most
	releaseBytes  = 8 << 20     // the same in bytes of their letters
	lastEvents    = 100         // with so many events left, reading pauses until the key is free
	pauseFor      = time.Second // at most
	pauseAgain    = time.Second // after a pause in which a key did not become free; doubles up to pauseRare
	pauseRare     = 2 * time.Minute
	fetchAgain    = time.Second // after letters could not be read
)

// OriginHeader is a header of every record that does not come straight from the stream. Origin is its
// value for an event that was parked.
const (
	OriginHeader = "walpost.origin"
	Origin       = "dead_letter"
)

// A Releaser releases keys. All its methods are called by the relay's loop. Its fields are set once,
// but Writer.
type Releaser struct {
	Lot    *parking.Lot
	Read   func(ctx context.Context, from int64, each func(*kgo.Record) bool) (next int64, err error) // the topic
	Send   func(*cdc.Record, cdc.Ticket)
	Pass   func(topic string, taken func([]byte, *cdc.Ticket) bool)
	Route  func(*cdc.Event, *cdc.Record) (bool, error)
	Beside func(work func(context.Context) (report func())) // runs work beside the loop
	Note   func(error)                                      // an error that is waited out
	Works  func() bool                                      // this process holds the slot, its letters count, and it reads
	Log    zerolog.Logger

	Topic, Name, Version string
	Writer               deadletter.Writer // as whom the process has opened the topic

	Written uint64 // records of the topic that are acknowledged
	Sent    uint64 // records that were sent
	Marks   int    // records of the topic that are not acknowledged
	Pausing bool   // the loop is to read nothing, so that a key becomes free

	now      Now
	rounds   map[parking.Key]*round
	sent     map[uint64]*released // what is sent and not acknowledged, by Ticket.Tx
	fetching bool
	fetchAt  time.Time // no fetch before
	missing  recent.Edge

	slow     map[parking.Key]bool // keys that got further events while they were released
	pauseEnd time.Time
	pauseAt  time.Time // no pause before
	pauses   int       // in a row, in which a key did not become free
}

// Now is what the loop knows at one moment.
type Now struct {
	Time  time.Time
	Room  int                       // records that may be sent
	Seen  uint64                    // what Written was when the newest complete reading of the topic began
	Ready func(*parking.Entry) bool // an event whose place no letter of its key can come before any more
}

// A round delivers some events of one key, in order.
type round struct {
	key     parking.Key
	writer  deadletter.Writer
	entries []*parking.Entry
	acked   []bool
	left    int    // records that have not ended, with the marks and letters of the round
	marked  bool   // its mark is sent
	written uint64 // what Now.Seen must come to, so that the Lot knows all that the round wrote
}

// A released is a record of a round, or a record for the topic of parked events.
type released struct {
	of     *round             // nil for the mark of a holder
	letter *deadletter.Letter // nil for a mark
	nth    int
}

// Open says in the topic that the process writes as w from now on.
func (p *Releaser) Open(w deadletter.Writer) {
	p.Writer = w
	p.write(parking.OpenedMark(p.Topic, p.Name, w, time.Now()), nil)
}

// Busy is how many records are sent and not acknowledged.
func (p *Releaser) Busy() int { return len(p.sent) }

// Waits reports whether there is something that makes room for further events, so that it is worth
// waiting for.
func (p *Releaser) Waits() bool { return p.fetching || len(p.rounds) > 0 }

// write sends a record to the topic. It is of a round, or of none.
func (p *Releaser) write(rec *cdc.Record, of *round) {
	p.Marks++
	p.hand(rec, &released{of: of})
}

func (p *Releaser) hand(rec *cdc.Record, what *released) {
	if p.sent == nil {
		p.sent = map[uint64]*released{}
	}
	p.Sent++
	p.sent[p.Sent] = what
	if what.of != nil {
		what.of.left++
	}
	p.Send(rec, cdc.Ticket{Tx: p.Sent, Size: uint32(rec.Size())})
}

// Advance begins the rounds that can begin, and decides whether the loop reads on.
func (p *Releaser) Advance(now Now) {
	p.now = now
	for key, r := range p.rounds {
		if r.marked && r.left == 0 && now.Seen >= r.written {
			p.over(key, r)
		}
	}
	if room := now.Room - len(p.sent); p.Works() && room > 0 && !p.fetching && !now.Time.Before(p.fetchAt) {
		busy := func(key parking.Key) bool { return p.rounds[key] != nil }
		if next := p.Lot.Next(busy, now.Ready, parking.Bounds{Events: min(room, releaseEvents), Bytes: releaseBytes}); len(next) > 0 {
			p.fetch(next)
		}
	}
	p.pause()
}

// over ends a round, once the lot knows what it wrote.
func (p *Releaser) over(key parking.Key, r *round) {
	delete(p.rounds, key)
	switch left := p.Lot.Left(key); {
	case left == 0:
		delete(p.slow, key)
		p.Log.Info().Str("table", key.Table).Str("key", key.Key).Msg("a parked key is released")
	case slices.Contains(r.acked, false): // an event was refused again
		delete(p.slow, key)
	case left <= lastEvents:
		if p.slow == nil {
			p.slow = map[parking.Key]bool{}
		}
		p.slow[key] = true
	}
}

// pause decides whether the loop reads on. A key that gets events faster than a release can deliver
// them would never become free. So reading pauses for a moment if little of a key is left.
func (p *Releaser) pause() {
	now := p.now.Time
	for key := range p.slow {
		if p.Lot.Left(key) == 0 || !p.Lot.Asked(key) && p.rounds[key] == nil && p.now.Seen >= p.Written {
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
		p.pauseAt = now.Add(min(pauseRare, pauseAgain<<min(p.pauses, 10)))
	case !p.Pausing && wanted && !now.Before(p.pauseAt):
		p.Pausing, p.pauseEnd = true, now.Add(pauseFor)
	}
}

// fetch reads the letters of the events that are to be delivered next.
func (p *Releaser) fetch(next map[parking.Key][]*parking.Entry) {
	p.fetching = true
	wanted := map[int64]bool{}
	var first, last int64
	for _, entries := range next {
		for _, e := range entries {
			if len(wanted) == 0 {
				first, last = e.Offset, e.Offset
			}
			wanted[e.Offset] = true
			first, last = min(first, e.Offset), max(last, e.Offset)
		}
	}
	p.Beside(func(ctx context.Context) func() {
		letters := map[string]*deadletter.Letter{} // by token: another letter of an event can come meanwhile
		read, err := p.Read(ctx, first, func(rec *kgo.Record) bool {
			if wanted[rec.Offset] {
				if letter, _, err := deadletter.Decode(deadletter.Owned(rec)); err == nil && letter != nil {
					letters[letter.Token] = letter
				}
			}
			return rec.Offset < last
		})
		if err == nil && read <= last { // a new leader may say too early an end for a moment
			err = fmt.Errorf("offset %d is needed, and the topic ends at %d", last, read)
		}
		return func() { p.fetched(next, letters, err) }
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
		err = fmt.Errorf("read parked events: %w", err)
		p.Note(err)
		p.missing.Fault(time.Now(), p.Log.Warn()).Err(err).Msg("parked keys cannot be released")
		return
	}
	p.missing.Over(time.Now(), p.Log.Info()).Msg("parked keys can be released again")
	if !p.Works() {
		return
	}
	for key, entries := range next {
		r := &round{key: key, writer: p.Writer, left: 1}
		for _, e := range entries {
			if !p.sendParked(r, e, letters[e.Token]) {
				break
			}
		}
		if p.rounds == nil {
			p.rounds = map[parking.Key]*round{}
		}
		p.rounds[key] = r
		p.ended(r)
	}
}

const lostHint = "The topic has lost records: check its cleanup.policy and retention.ms. The parked event is not in the topic any more: walpost verify names the rows that are in no topic, " +
	"and walpost replay delivers them from the table. Then start walpost again: it continues with the records that the topic has now."

// sendParked sends the record of a parked event. It reports false if the event cannot be routed yet.
func (p *Releaser) sendParked(r *round, e *parking.Entry, letter *deadletter.Letter) bool {
	rec := letter.Record
	if letter.Event != nil {
		rec = &cdc.Record{}
		ok, err := p.Route(letter.Event, rec)
		if err == nil && !ok { // for example because the table has another name now
			err = fmt.Errorf("the configuration produces no record for this row of %s", letter.Table)
		}
		if err != nil {
			p.again(r, letter, cmp.Or(badevent.Because(err), cdc.Unroutable), err)
			return false
		}
	}
	r.entries, r.acked = append(r.entries, e), append(r.acked, false)
	isOrigin := func(h cdc.Header) bool { return h.Key == OriginHeader }
	rec.Headers = append(slices.DeleteFunc(slices.Clone(rec.Headers), isOrigin), cdc.Header{Key: OriginHeader, Value: []byte(Origin)})
	p.hand(rec, &released{of: r, letter: letter, nth: len(r.entries) - 1})
	return true
}

// again writes a letter for an event that cannot be delivered yet. The key stays parked, and nobody
// tries again before a person asks for it.
func (p *Releaser) again(r *round, letter *deadletter.Letter, reason cdc.Reason, cause error) {
	next := *letter
	next.Reason, next.Attempts, next.Writer, next.Version = reason, letter.Attempts+1, r.writer, p.Version
	next.Error = (&badevent.Event{Err: cause}).Reason()
	rec, err := next.Encode(p.Topic)
	if err != nil {
		p.Note(err)
		return
	}
	p.write(rec, r)
	p.Log.Error().Str("token", next.Token).Str("id", next.ID).Str("table", next.Table).Str("reason", string(reason)).Int("attempts", next.Attempts).
		Str("err", next.Error).Msg("a parked event still cannot be delivered: its key stays parked")
}

// Ended takes the end of a record that no position waits for.
func (p *Releaser) Ended(a *cdc.Ack) error {
	what := p.sent[a.Ticket.Tx]
	delete(p.sent, a.Ticket.Tx)
	r := what.of
	var refusal *cdc.Refusal
	switch {
	case what.letter == nil && a.Err != nil:
		return fault.Person(fmt.Errorf("the topic of parked events refuses a record: %w", a.Err), "Repair the topic or its limit, and start walpost again.")
	case what.letter == nil:
		p.Marks--
		p.Written++
	case a.Err == nil:
		r.acked[what.nth] = true
	case errors.As(a.Err, &refusal):
		p.again(r, what.letter, refusal.Reason, a.Err)
		p.Pass(a.Topic, func(_ []byte, t *cdc.Ticket) bool {
			other := p.sent[t.Tx]
			return other != nil && other.of == r && other.letter != nil
		})
	case !errors.Is(a.Err, cdc.ErrTakenBack):
		return fmt.Errorf("deliver parked event %s: %w", a.EventID, a.Err)
	}
	if r != nil {
		p.ended(r)
	}
	return nil
}

// ended takes the end of one record of a round. Behind the last one the round says in the topic what
// it delivered: the events up to the first one that did not arrive.
func (p *Releaser) ended(r *round) {
	r.left--
	r.written = p.Written
	if r.left > 0 || r.marked {
		return
	}
	r.marked = true
	n := slices.Index(r.acked, false)
	if n < 0 {
		n = len(r.acked)
	}
	if n > 0 {
		p.write(parking.ReleasedMark(p.Topic, p.Name, r.writer, r.key, r.entries[n-1].Token, time.Now()), r)
	}
}
