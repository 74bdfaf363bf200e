package checkpoint

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
)

// A twin is a tracker that forgets nothing and works everything out anew. It is the oracle of the Tracker's tests: too
// simple to be wrong, and written without a look at the ring.
type twin struct {
	start cdc.Position
	log   []entry // everything reported, in order
	parts []part  // that were ended, in order
}

// A part has the number that the tracker gave it. It ends behind some deliveries of an entry.
type part struct {
	number      uint64
	entry, adds int
}

// passed reports whether everything up to the end of a part is acknowledged.
func (w *twin) passed(p part) bool {
	for _, e := range w.log[:p.entry] {
		if slices.Contains(e.acked, false) {
			return false
		}
	}
	return !slices.Contains(w.log[p.entry].acked[:p.adds], false)
}

type entry struct {
	idle      bool
	open      bool
	committed time.Time
	end       cdc.Position
	sizes     []int
	acked     []bool
}

func (w *twin) begin(committed time.Time) {
	w.log = append(w.log, entry{open: true, committed: committed})
}
func (w *twin) newest() *entry { return &w.log[len(w.log)-1] }
func (w *twin) isOpen() bool   { return len(w.log) > 0 && w.newest().open }

func (w *twin) add(size int) {
	e := w.newest()
	e.sizes, e.acked = append(e.sizes, size), append(e.acked, false)
}

func (w *twin) commit(end cdc.Position) { e := w.newest(); e.open, e.end = false, end }

func (w *twin) idle(pos cdc.Position) {
	if !w.isOpen() {
		w.log = append(w.log, entry{idle: true, end: pos})
	}
}

// reported is the newest position that was reported.
func (w *twin) reported() cdc.Position {
	pos := w.start
	for _, e := range w.log {
		pos = max(pos, e.end)
	}
	return pos
}

func (w *twin) safe() cdc.Position {
	pos := w.start
	for _, e := range w.log {
		if e.open || slices.Contains(e.acked, false) {
			break
		}
		pos = max(pos, e.end) // a stale report means nothing
	}
	return pos
}

// safeEnd is the end of the newest transaction before safe that had a delivery.
func (w *twin) safeEnd() (end cdc.Position) {
	for _, e := range w.log {
		if e.open || slices.Contains(e.acked, false) {
			break
		}
		if len(e.acked) > 0 {
			end = e.end
		}
	}
	return end
}

// lastEnd is the end of the newest transaction that had a delivery and has ended.
func (w *twin) lastEnd() (end cdc.Position) {
	for _, e := range w.log {
		if !e.open && len(e.acked) > 0 {
			end = e.end
		}
	}
	return end
}

func (w *twin) inFlight() (events, bytes int) {
	for _, e := range w.log {
		for i, acked := range e.acked {
			if !acked {
				events++
				bytes += e.sizes[i]
			}
		}
	}
	return events, bytes
}

func (w *twin) oldest() time.Time {
	for _, e := range w.log {
		if slices.Contains(e.acked, false) {
			return e.committed
		}
	}
	return time.Time{}
}

func (w *twin) openTx() (added, pending int, open bool) {
	if !w.isOpen() {
		return 0, 0, false
	}
	for _, acked := range w.newest().acked {
		if !acked {
			pending++
		}
	}
	return len(w.newest().acked), pending, true
}

// A pair is a Tracker and its twin, told the same.
type pair struct {
	t       *Tracker
	w       *twin
	tickets []delivery // in the order of Add
	begun   int
	story   *line
}

// A line is the newest step of a story. It is put into words only when a test fails.
type line struct {
	before *line
	verb   string
	args   [2]int
}

type delivery struct {
	ticket      cdc.Ticket
	entry, item int // in the twin
}

// newPair has a ring of the smallest size, so that four transactions grow it twice and it wraps all the time.
func newPair(start cdc.Position) *pair {
	t := New(start)
	t.ring = make([]transaction, 1)
	return &pair{t: t, w: &twin{start: start}}
}

func (p *pair) clone() *pair {
	t, w := *p.t, *p.w
	t.ring = slices.Clone(t.ring)
	w.log, w.parts = slices.Clone(w.log), slices.Clone(w.parts)
	for i := range w.log {
		w.log[i].sizes, w.log[i].acked = slices.Clone(w.log[i].sizes), slices.Clone(w.log[i].acked)
	}
	return &pair{t: &t, w: &w, tickets: slices.Clone(p.tickets), begun: p.begun, story: p.story}
}

func (p *pair) tell(verb string, args ...int) {
	l := &line{before: p.story, verb: verb}
	copy(l.args[:], args)
	p.story = l
}

// told is the story so far, for the message of a test that fails.
func (p *pair) told() string {
	var b []string
	for l := p.story; l != nil; l = l.before {
		b = append(b, fmt.Sprint(l.verb, " ", l.args[0], " ", l.args[1]))
	}
	slices.Reverse(b)
	return "after: " + strings.Join(b, "; ")
}

func (p *pair) begin() {
	p.begun++
	p.tell("begin", p.begun)
	committed := time.Unix(int64(p.begun), 0)
	p.t.Begin(committed)
	p.w.begin(committed)
}

func (p *pair) add(size int) {
	p.tell("add", len(p.tickets), size)
	ticket := p.t.Add(size)
	p.w.add(size)
	p.tickets = append(p.tickets, delivery{ticket, len(p.w.log) - 1, len(p.w.newest().sizes) - 1})
}

func (p *pair) part() {
	p.tell("part")
	if number, ok := p.t.Part(); ok {
		p.w.parts = append(p.w.parts, part{number, len(p.w.log) - 1, len(p.w.newest().acked)})
	}
}

func (p *pair) commit(end cdc.Position) error {
	p.tell("commit", int(end))
	err := p.t.Commit(end)
	if wrong := end <= p.w.reported(); wrong != (err != nil) {
		return fmt.Errorf("commit at %d after %d was reported: %w", end, p.w.reported(), err)
	}
	if err == nil {
		p.w.commit(end)
	}
	return nil
}

func (p *pair) idle(pos cdc.Position) {
	p.tell("idle", int(pos))
	p.t.Idle(pos)
	p.w.idle(pos)
}

func (p *pair) acked(i int) bool {
	d := p.tickets[i]
	return p.w.log[d.entry].acked[d.item]
}

func (p *pair) ack(i int) {
	p.tell("ack", i)
	d := p.tickets[i]
	p.t.Ack(d.ticket)
	p.w.log[d.entry].acked[d.item] = true
}

// openTx describes the transaction that has begun and not ended, if there is one: the deliveries added to it, and how many
// of them wait for their acknowledgement.
func openTx(t *Tracker) (added, pending int, open bool) {
	if !t.open {
		return 0, 0, false
	}
	for n := t.next - 1; n >= t.first && (n == t.next-1 || t.at(n).part); n-- {
		pending += t.at(n).pending
	}
	return t.added, pending, true
}

// differ says where the tracker and its twin do not agree.
func (p *pair) differ() error {
	if got, want := p.t.Safe(), p.w.safe(); got != want {
		return fmt.Errorf("safe is %d, must be %d", got, want)
	}
	if got, want := p.t.SafeEnd(), p.w.safeEnd(); got != want {
		return fmt.Errorf("the newest delivery before safe ends at %d, must be %d", got, want)
	}
	if got, want := p.t.LastEnd(), p.w.lastEnd(); got != want {
		return fmt.Errorf("the newest delivery ends at %d, must be %d", got, want)
	}
	events, bytes := p.t.InFlight()
	if e, b := p.w.inFlight(); events != e || bytes != b {
		return fmt.Errorf("in flight are %d events, %d bytes; must be %d, %d", events, bytes, e, b)
	}
	if got, want := p.t.Oldest(), p.w.oldest(); !got.Equal(want) {
		return fmt.Errorf("oldest is %d, must be %d", got.Unix(), want.Unix())
	}
	for _, part := range p.w.parts {
		if got, want := p.t.Passed(part.number), p.w.passed(part); got != want {
			return fmt.Errorf("part %d is passed: %t, must be %t", part.number, got, want)
		}
	}
	added, pending, open := openTx(p.t)
	if a, n, o := p.w.openTx(); added != a || pending != n || open != o {
		return fmt.Errorf("open is %d, %d, %t; must be %d, %d, %t", added, pending, open, a, n, o)
	}
	if events == 0 && !open && p.t.first != p.t.next {
		return fmt.Errorf("%d transactions are kept, and nothing is in flight", p.t.next-p.t.first)
	}
	return nil
}

// state is all that decides what can happen next, of the tracker as of its twin: two paths that lead to one state need not
// both be walked on. What the twin holds behind its safe position decides nothing, and deliveries of one transaction
// and one size are as good as one another.
func (p *pair) state() string {
	b := make([]byte, 0, 128)
	put := func(values ...int) {
		for _, v := range values {
			b = binary.AppendVarint(b, int64(v))
		}
	}
	flag := func(v bool) int {
		if v {
			return 1
		}
		return 0
	}
	t := p.t
	put(int(t.safe), int(t.full), int(t.last), int(t.first), int(t.next), flag(t.open), t.added, t.events, t.bytes, len(t.ring))
	for n := t.first; n != t.next; n++ {
		tx := t.at(n)
		put(int(tx.end), int(tx.full), tx.pending, tx.bytes, int(tx.committed.Unix()), flag(tx.part))
	}
	for _, part := range p.w.parts {
		put(int(part.number), part.entry, part.adds, flag(p.w.passed(part)))
	}
	put(p.begun, int(p.w.safe()), int(p.w.reported()))
	live := false
	for _, e := range p.w.log {
		waiting, bytes := 0, 0
		for i, acked := range e.acked {
			if !acked {
				waiting++
				bytes += e.sizes[i]
			}
		}
		if live = live || e.open || waiting > 0; live {
			put(flag(e.idle), flag(e.open), int(e.end), int(e.committed.Unix()), len(e.acked), waiting, bytes)
		}
	}
	return string(b)
}
