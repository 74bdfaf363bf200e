package parking

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
)

const topic = "parked"

var began = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// stored is a record as a consumer gets it.
func stored(rec *cdc.Record, offset int) *kgo.Record {
	out := &kgo.Record{Key: rec.Key, Value: rec.Value, Offset: int64(offset)}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return out
}

// A said is a record of the topic as the model knows it.
type said struct {
	what     deadletter.State // Open for a letter
	key      Key
	token    string
	at       Place
	system   string
	writer   deadletter.Writer
	attempts int
	reason   cdc.Reason
	name     string
}

func (s *said) record() *cdc.Record {
	e := &Entry{Token: s.token, Key: s.key}
	switch s.what {
	case deadletter.Opened:
		return OpenedMark(topic, s.name, s.writer, began)
	case deadletter.Released:
		return ReleasedMark(topic, s.name, s.writer, s.key, s.token, began)
	case deadletter.Asked:
		return Request(topic, s.name, s.key, began)
	case deadletter.Dropped:
		return DroppedMark(topic, s.name, e, "because", began)
	default:
	}
	l := deadletter.Letter{
		Token: s.token, Reason: s.reason, Table: s.key.Table, Key: []byte(s.key.Key), KeyKnown: true, Commit: s.at.Commit, Row: s.at.Row,
		CommitTime: began, Partition: -1, Attempts: s.attempts, Name: s.name, SystemID: s.system, Timeline: s.at.Timeline, Writer: s.writer,
		Record: &cdc.Record{Value: []byte("v")},
	}
	rec, err := l.Encode(topic)
	if err != nil {
		panic(err)
	}
	return rec
}

// model is what a topic says of one key, worked out anew from all records: first which letters count,
// then their order, then what became of each.
type model struct {
	order []string
	state map[string]deadletter.State
	at    map[string]*said
	tries map[string]int
	asked bool
}

func modelOf(topic []*said, name string, key Key) model {
	m := model{state: map[string]deadletter.State{}, at: map[string]*said{}, tries: map[string]int{}}
	holder := deadletter.Writer{}
	var letters []*said // the first of each event
	sorted := func() []*said {
		out := slices.Clone(letters)
		kind := func(s *said) string {
			if s.at.Commit == 0 {
				return "row"
			}
			return s.system
		}
		for from := 0; from < len(out); {
			to := from + 1
			for to < len(out) && kind(out[to]) == kind(out[from]) {
				to++
			}
			if out[from].at.Commit != 0 {
				slices.SortStableFunc(out[from:to], func(a, b *said) int {
					return cmp.Or(cmp.Compare(a.at.Timeline, b.at.Timeline), cmp.Compare(a.at.Commit, b.at.Commit), a.at.Row-b.at.Row)
				})
			}
			from = to
		}
		return out
	}
	open := func() (n int) {
		for _, s := range m.state {
			if s == deadletter.Open {
				n++
			}
		}
		return n
	}
	for _, s := range topic {
		if s.name != name {
			continue
		}
		if s.what == deadletter.Opened {
			if s.writer.Epoch > holder.Epoch {
				holder = s.writer
			}
			continue
		}
		if s.key != key {
			continue
		}
		state, seen := m.state[s.token]
		switch s.what {
		case deadletter.Asked:
			m.asked = m.asked || open() > 0
		case deadletter.Dropped:
			if seen && state == deadletter.Open {
				m.state[s.token] = deadletter.Dropped
			}
		case deadletter.Released:
			if !seen || s.writer != holder {
				continue
			}
			for _, before := range sorted() {
				if m.state[before.token] == deadletter.Open {
					m.state[before.token] = deadletter.Released
				}
				if before.token == s.token {
					break
				}
			}
		case deadletter.Open:
			switch {
			case s.writer != holder || seen && state != deadletter.Open:
			case seen:
				if s.attempts > m.tries[s.token] {
					m.tries[s.token], m.asked = s.attempts, false
				}
			default:
				if open() == 0 {
					m.asked = s.reason == deadletter.Behind
				}
				m.state[s.token], m.at[s.token], m.tries[s.token] = deadletter.Open, s, s.attempts
				letters = append(letters, s)
			}
		default:
		}
		m.asked = m.asked && open() > 0
	}
	for _, s := range sorted() {
		m.order = append(m.order, s.token)
	}
	return m
}

func (m *model) text() string {
	var b strings.Builder
	for _, token := range m.order {
		if m.state[token] == deadletter.Open {
			fmt.Fprintf(&b, "%s*%d ", token, m.tries[token])
		}
	}
	fmt.Fprintf(&b, "asked %t", m.asked)
	return b.String()
}

func textOf(l *Lot, key Key) string {
	var b strings.Builder
	for _, e := range l.Entries(key) {
		if e.State == deadletter.Open {
			fmt.Fprintf(&b, "%s*%d ", e.Token, e.Attempts)
		}
	}
	fmt.Fprintf(&b, "asked %t", l.Asked(key))
	return b.String()
}

// TestALotIsWhatTheTopicSays compares a Lot with the model, over random topics: with two relays, holders that come late, rows of the
// table, another system, letters that are written twice, and marks for everything, also for what is not there.
func TestALotIsWhatTheTopicSays(t *testing.T) {
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 1))
		keys := []Key{{"public.outbox", "a"}, {"public.outbox", ""}, {"public.other", "a"}}
		system, row := "7", map[Key]int{}
		lot := New("shop", true)
		var all []*said
		story := func() string {
			var b strings.Builder
			for i, s := range all {
				fmt.Fprintf(&b, "%d: %s %q %s %+v of %s by %+v, attempt %d, %s, %s\n", i, s.what, s.key, s.token, s.at, s.system, s.writer, s.attempts, s.reason, s.name)
			}
			return b.String()
		}
		place := cdc.Position(100)
		for range 60 {
			s := &said{key: keys[rng.IntN(len(keys))], name: "shop", system: system, attempts: 1, reason: deadletter.Behind}
			s.writer = deadletter.Writer{Epoch: uint64(1 + rng.IntN(4)), Holder: string("AB"[rng.IntN(2)])}
			if rng.IntN(4) > 0 {
				s.writer = lot.Opened()
			}
			if rng.IntN(8) == 0 {
				s.name = "other"
			}
			if known := lot.Entries(s.key); len(known) > 0 {
				s.token = known[rng.IntN(len(known))].Token
			}
			switch k := rng.IntN(20); {
			case k == 0:
				s.what, s.key = deadletter.Opened, Key{}
			case k < 3:
				s.what = deadletter.Asked
			case k < 5:
				s.what = deadletter.Released
			case k < 7:
				s.what = deadletter.Dropped
			default:
				s.what = deadletter.Open
				if rng.IntN(3) == 0 {
					s.reason = cdc.TooLarge
				}
				if rng.IntN(30) == 0 {
					system = "8"
				}
				if is := lot.Entry(s.token); is != nil && rng.IntN(3) == 0 { // once more
					s.at, s.system, s.attempts = is.Place, is.SystemID, is.Attempts+rng.IntN(2)
					break
				}
				row[s.key]++
				s.token = fmt.Sprintf("%s%s%d", s.key.Table[8:9], s.key.Key, row[s.key])
				if rng.IntN(5) > 0 {
					place += 10
					s.at = Place{1, place - cdc.Position(rng.IntN(4)*15), 1 + rng.IntN(3)}
				}
			}
			all = append(all, s)
			lot.Add(Read(stored(s.record(), len(all))))
			if rng.IntN(6) == 0 {
				before := place - cdc.Position(rng.IntN(60))
				lot.Forget(func(e *Entry) bool { return e.Commit < before })
			}
			lots, again := []*Lot{lot}, New("shop", false)
			if len(all)%20 == 0 {
				for i, s := range all {
					again.Add(Read(stored(s.record(), i+1)))
				}
				lots = append(lots, again)
			}
			events := 0
			for _, key := range keys {
				want := modelOf(all, "shop", key)
				for _, l := range lots {
					if got := textOf(l, key); got != want.text() {
						t.Fatalf("seed %d, key %q: %s\nwant %s\n%s", seed, key, got, want.text(), story())
					}
				}
				if len(lots) > 1 {
					judge(t, again, key, &want, story)
				}
				for _, state := range want.state {
					if state == deadletter.Open {
						events++
					}
				}
			}
			if got := lot.Counts(); got.Events != events || (got.Events == 0) != got.Oldest.IsZero() {
				t.Fatalf("seed %d: %+v, want %d events\n%s", seed, got, events, story())
			}
			if lot.Problem != nil || lot.Foreign > 0 {
				t.Fatal(lot.Problem, lot.Foreign)
			}
		}
	}
}

// judge compares what an event of key gets with the model: at each place, known or not.
func judge(t *testing.T, l *Lot, key Key, m *model, story func() string) {
	t.Helper()
	var first *said
	for _, token := range m.order {
		if m.state[token] == deadletter.Open {
			first = m.at[token]
			break
		}
	}
	for _, token := range m.order {
		if got := l.Judge(key, token, "7", m.at[token].at); got != Known {
			t.Fatalf("event %s: %d\n%s", token, got, story())
		}
	}
	for commit := cdc.Position(60); commit < 400; commit += 5 {
		for _, system := range []string{"7", "8"} {
			want := Park
			if first == nil || first.at.Commit != 0 && first.system == system && commit < first.at.Commit {
				want = Deliver
			}
			if got := l.Judge(key, "new", system, Place{1, commit, 9}); got != want {
				t.Fatalf("an event at %d of %s gets %d, want %d; first %+v\n%s", commit, system, got, want, first, story())
			}
		}
	}
}

func letter(key Key, token string, w deadletter.Writer, commit cdc.Position, reason cdc.Reason) *said {
	return &said{what: deadletter.Open, key: key, token: token, writer: w, at: Place{1, commit, 1}, system: "7", attempts: 1, reason: reason, name: "shop"}
}

// A key is parked from the moment that its letter is sent, and until all its letters are read back and closed.
func TestAKeyIsParkedBeforeItsLetterIsReadBack(t *testing.T) {
	key, a, b := Key{"t", "k"}, deadletter.Writer{Epoch: 1, Holder: "A"}, deadletter.Writer{Epoch: 2, Holder: "B"}
	l := New("shop", false)
	n := 0
	add := func(s *said) {
		n++
		l.Add(Read(stored(s.record(), n)))
	}
	is := func(want Verdict, commit cdc.Position) {
		t.Helper()
		if got := l.Judge(key, fmt.Sprintf("new%d", commit), "7", Place{1, commit, 1}); got != want {
			t.Errorf("an event at %d gets %d, want %d", commit, got, want)
		}
	}
	opened := func(w deadletter.Writer) *said {
		return &said{what: deadletter.Opened, writer: w, name: "shop"}
	}
	add(opened(a))
	l.Expect(key, "e10", a, Place{1, 10, 1})
	is(Deliver, 9)
	is(Park, 11)
	other := Key{"t", "other"}
	l.Expect(other, "o20", a, Place{1, 20, 1})
	l.Expect(other, "o15", a, Place{1, 15, 1}) // refused late
	if got := l.Judge(other, "o16", "7", Place{1, 16, 1}); got != Park {
		t.Errorf("an event behind the first one gets %d", got)
	}
	add(letter(other, "o20", a, 20, cdc.TooLarge))
	add(letter(other, "o15", a, 15, cdc.TooLarge))
	add(&said{what: deadletter.Released, key: other, token: "o20", writer: a, name: "shop"})
	if got := l.Judge(key, "e10", "7", Place{1, 10, 1}); got != Park {
		t.Errorf("an event whose letter was never read back gets %d", got)
	}
	l.Expect(key, "e20", a, Place{1, 20, 1})
	add(letter(key, "e10", a, 10, cdc.TooLarge))
	add(letter(key, "e10", a, 10, cdc.TooLarge)) // the brokers have it twice
	add(&said{what: deadletter.Released, key: key, token: "e10", writer: a, name: "shop"})
	is(Park, 30) // e20 is not read back
	if c := l.Counts(); c.Events != 1 || c.Keys != 1 {
		t.Errorf("%+v", c)
	}
	add(letter(key, "e20", a, 20, deadletter.Behind))
	if !l.Asked(key) {
		t.Error("what was parked during the release stays behind")
	}
	add(&said{what: deadletter.Released, key: key, token: "e20", writer: a, name: "shop"})
	is(Deliver, 30)
	l.Expect(key, "e40", a, Place{1, 40, 1})
	add(opened(b))
	add(letter(key, "e40", a, 40, cdc.TooLarge)) // too late
	is(Deliver, 50)
	l.Forget(func(*Entry) bool { return true })
	if !l.Empty() {
		t.Errorf("%+v", l.Keys())
	}
}

// A mark reaches the events before its own, also if its own was dropped meanwhile and everything closed is forgotten.
func TestAMarkOfADroppedEventClosesWhatWasBeforeIt(t *testing.T) {
	key, w := Key{"t", "k"}, deadletter.Writer{Epoch: 1, Holder: "A"}
	l := New("shop", false)
	for i, s := range []*said{
		{what: deadletter.Opened, writer: w, name: "shop"},
		letter(key, "a", w, 10, cdc.TooLarge), letter(key, "b", w, 20, deadletter.Behind),
		{what: deadletter.Dropped, key: key, token: "b", name: "shop"},
	} {
		l.Add(Read(stored(s.record(), i)))
	}
	l.Forget(func(*Entry) bool { return true })
	l.Add(Read(stored((&said{what: deadletter.Released, key: key, token: "b", writer: w, name: "shop"}).record(), 9)))
	if c := l.Counts(); c.Events != 0 {
		t.Errorf("%+v", c)
	}
}

// Next takes the first events of the keys that a person wants released, up to one that is not ready, and stays within its bounds.
func TestNextTakesTheFirstEventsInOrder(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := deadletter.Writer{Epoch: 1, Holder: "A"}
		l := New("shop", false)
		n := 0
		add := func(s *said) {
			n++
			l.Add(Read(stored(s.record(), n)))
		}
		add(&said{what: deadletter.Opened, writer: w, name: "shop"})
		for i := range 100 {
			key := Key{"t", string("abcde"[rng.IntN(5)])}
			add(letter(key, fmt.Sprint(i), w, cdc.Position(10*i-rng.IntN(30)+50), cdc.TooLarge))
		}
		for _, key := range l.Keys()[1:] {
			add(&said{what: deadletter.Asked, key: key, name: "shop"})
		}
		limit, busy, most, total := cdc.Position(100+rng.IntN(900)), l.Keys()[1], Bounds{1 + rng.IntN(100), 100 + rng.IntN(30_000)}, 0
		got := l.Next(func(k Key) bool { return k == busy }, func(e *Entry) bool { return e.Commit < limit }, most)
		bytes := 0
		for _, es := range got {
			for _, e := range es {
				total, bytes = total+1, bytes+e.Size
			}
		}
		if len(got) == 0 || total > most.Events+8 || bytes > most.Bytes+8*1000 {
			t.Fatalf("seed %d: %d events of %+v", seed, total, most)
		}
		for key, es := range got {
			if key == busy || key == l.Keys()[0] || len(es) == 0 || !slices.Equal(es, l.Entries(key)[:len(es)]) {
				t.Fatalf("seed %d: %q: %+v", seed, key, es)
			}
			if es[len(es)-1].Commit >= limit {
				t.Fatalf("seed %d: %q takes what is not ready", seed, key)
			}
		}
	}
}

func TestLimitsCountKeysAndEvents(t *testing.T) {
	w := deadletter.Writer{Epoch: 1, Holder: "A"}
	l, a, b := New("shop", false), Key{"t", "a"}, Key{"t", "b"}
	l.Add(Read(stored(OpenedMark(topic, "shop", w, began), 0)))
	l.Expect(a, "1", w, Place{1, 10, 1})
	l.Add(Read(stored(letter(a, "1", w, 10, cdc.TooLarge).record(), 1)))
	if l.Over(a, Limit{1, 2}) || !l.Over(b, Limit{1, 2}) || !l.Over(Key{}, Limit{1, 2}) || l.Over(b, Limit{2, 2}) || !l.Over(a, Limit{2, 1}) {
		t.Error("one event of one key")
	}
	l.Expect(a, "2", w, Place{1, 20, 1}) // counts already
	if !l.Over(a, Limit{1, 2}) {
		t.Error("two events")
	}
}

// The keys that wait longest come first. A key whose first event was dropped waits for the next one.
func TestTheOldestKeys(t *testing.T) {
	w := deadletter.Writer{Epoch: 1, Holder: "h"}
	l, offset := New("shop", false), int64(0)
	add := func(it Item) {
		it.offset = offset
		offset++
		l.Add(it)
	}
	at := time.Unix(1_700_000_000, 0)
	letter := func(key, token string, row int, minutes time.Duration) {
		add(Item{key: Key{"t", key}, Letter: &deadletter.Letter{
			Name: "shop", Token: token, Commit: 7, Row: row, CommitTime: at.Add(minutes * time.Minute), Attempts: 1, Writer: w, Reason: deadletter.Behind,
		}})
	}
	add(Item{Mark: &deadletter.Mark{Name: "shop", State: deadletter.Opened, Writer: w}})
	if l.Oldest(3) != nil {
		t.Error("nothing is parked")
	}
	for i, minutes := range []time.Duration{5, 1, 4, 2, 3} {
		letter(string(rune('a'+i)), string(rune('A'+i)), i+1, minutes)
	}
	letter("b", "B2", 9, 6)
	keys := func() (all string) {
		for _, p := range l.Oldest(3) {
			all += fmt.Sprint(p.Key.Key, p.Events, p.First.Token, " ")
		}
		return all
	}
	if got := keys(); got != "b2B d1D e1E " {
		t.Error(got)
	}
	for key, token := range map[string]string{"b": "B", "e": "E"} {
		add(Item{key: Key{"t", key}, Mark: &deadletter.Mark{Name: "shop", State: deadletter.Dropped, Token: token}})
	}
	if got := keys(); got != "d1D c1C a1A " {
		t.Error(got)
	}
	if all := l.Oldest(9); len(all) != 4 || all[3].First.Token != "B2" {
		t.Errorf("%+v", all)
	}
}
