package parking

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/testenv/short"
)

const topic = "parked"

var began = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// stored is a record as a consumer gets it.
func stored(rec *cdc.Record, offset int64) *kgo.Record {
	out := &kgo.Record{Key: rec.Key, Value: rec.Value, Offset: offset}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return out
}

// letterOf is the letter of an event.
func letterOf(key Key, token string, at cdc.Position, reason cdc.Reason, attempts int) *deadletter.Letter {
	return &deadletter.Letter{
		Token: token, Reason: reason, Table: key.Table, Key: []byte(key.Key), KeyKnown: true, ID: "id-" + token, Commit: at, Row: 1, CommitTime: began,
		Partition: -1, Attempts: attempts, Name: "shop", SystemID: "7", Timeline: 1, TableID: 9, Record: &cdc.Record{Value: []byte("v")},
	}
}

func encoded(l *deadletter.Letter) *cdc.Record {
	rec, err := l.Encode(topic)
	if err != nil {
		panic(err)
	}
	return rec
}

// A world is a topic that grows as a relay and its operators write it.
type world struct {
	backlog *Backlog // of the relay
	records []*kgo.Record
	place   cdc.Position
	n       int
	keys    []Key
	model   []*event // open, in the order of the topic
}

// An event is what the model knows of a parked one.
type event struct {
	token    string
	key      Key
	at       cdc.Position
	attempts int
	offset   int
	reason   cdc.Reason
	drop     bool
}

func newWorld() *world {
	return &world{backlog: New("shop"), place: 100, keys: []Key{{"public.outbox", "a"}, {"public.outbox", ""}, {"public.outbox", "c"}}}
}

func (w *world) land(rec *cdc.Record) {
	w.records = append(w.records, stored(rec, int64(len(w.records))))
	w.backlog.Add(Read(w.records[len(w.records)-1]))
}

// line is the model's events of a key, in the order of the stream.
func (w *world) line(key Key) (line []*event) {
	for _, e := range w.model {
		if e.key == key {
			line = append(line, e)
		}
	}
	slices.SortStableFunc(line, func(a, b *event) int { return int(a.at) - int(b.at) })
	return line
}

func (w *world) close(which ...*event) {
	w.model = slices.DeleteFunc(w.model, func(e *event) bool { return slices.Contains(which, e) })
}

// step writes one more record.
func (w *world) step(rng *rand.Rand, requested map[Key]int) {
	key := w.keys[rng.IntN(len(w.keys))]
	line := w.line(key)
	entries := w.backlog.Entries(key)
	offset := len(w.records)
	switch k := rng.IntN(20); {
	case k < 9 || len(line) == 0:
		w.n++
		w.place += 10
		e := &event{token: fmt.Sprint("t", w.n), key: key, at: w.place - []cdc.Position{0, 15, 33}[rng.IntN(3)], attempts: 1, offset: offset, reason: deadletter.Behind}
		if rng.IntN(3) == 0 || len(line) == 0 {
			e.reason = cdc.TooLarge
		}
		w.model = append(w.model, e)
		w.land(encoded(letterOf(key, e.token, e.at, e.reason, 1)))
	case k < 11: // a release fails
		e := line[rng.IntN(len(line))]
		e.attempts++
		e.drop = false
		e.offset, e.reason = offset, cdc.Unroutable
		w.land(encoded(letterOf(key, e.token, e.at, e.reason, e.attempts)))
	case k < 14:
		requested[key] = offset
		w.land(ReleaseRequest(topic, "shop", entries[len(entries)-1], began))
	case k < 16:
		i := rng.IntN(len(line))
		line[i].drop = true
		w.land(DropRequest(topic, "shop", entries[i], "why", began))
	case k < 17:
		i := rng.IntN(len(line))
		w.close(line[i])
		w.land(DroppedMark(topic, "shop", entries[i], began))
		w.backlog.Forget(func(*Entry) bool { return rng.IntN(2) == 0 })
	case k < 19:
		var done []*event
		var delivered []*Entry
		for i := range line { // the others go to a topic that takes nothing
			if rng.IntN(4) > 0 || i == len(line)-1 {
				done, delivered = append(done, line[i]), append(delivered, entries[i])
			}
		}
		w.close(done...)
		w.land(ReleasedMark(topic, "shop", delivered, began))
	default: // of another relay
		other := letterOf(key, fmt.Sprint("o", w.n), w.place, cdc.TooLarge, 1)
		other.Name = "other"
		w.land(encoded(other))
	}
}

// want is what the model says of a key.
func (w *world) want(key Key, requested map[Key]int) string {
	var b strings.Builder
	line := w.line(key)
	for _, e := range line {
		fmt.Fprintf(&b, "%s*%d@%d drop %t, ", e.token, e.attempts, e.offset, e.drop)
	}
	asked, ok := requested[key]
	fmt.Fprintf(&b, "releases %t", len(line) > 0 && (line[0].reason == deadletter.Behind || ok && line[0].offset < asked))
	return b.String()
}

func textOf(l *Backlog, key Key) string {
	var b strings.Builder
	for _, e := range l.Entries(key) {
		fmt.Fprintf(&b, "%s*%d@%d drop %t, ", e.Token, e.Attempts, e.Offset, e.Drop != 0)
	}
	fmt.Fprintf(&b, "releases %t", l.Releases(key))
	return b.String()
}

// A Backlog is what the topic says, whether it was read from the beginning or from the anchor of a
// checkpoint, and also if some records are added twice.
func TestABacklogIsWhatTheTopicSays(t *testing.T) {
	for seed := range uint64(short.Pick(short.Raced(400, 130), 20)) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w, requested := newWorld(), map[Key]int{}
		anchor := int64(0)
		for n := range 150 {
			w.step(rng, requested)
			at := w.backlog.Anchor(int64(len(w.records)))
			if at < anchor {
				t.Fatalf("seed %d: the anchor goes back from %d to %d", seed, anchor, at)
			}
			anchor = at
			backlogs := map[string]*Backlog{"of the relay": w.backlog}
			if n%15 == 0 {
				again, whole := New("shop"), History("shop", func(*Entry) {})
				for _, rec := range w.records {
					if rec.Offset >= anchor {
						again.Add(Read(rec))
					}
					whole.Add(Read(rec))
				}
				backlogs["from the anchor"], backlogs["of a command"] = again, whole
			}
			for what, backlog := range backlogs {
				for _, key := range w.keys {
					if got, want := textOf(backlog, key), w.want(key, requested); got != want {
						t.Fatalf("seed %d, record %d, the backlog %s of %s:\n%s\nwant %s", seed, n, what, key, got, want)
					}
				}
				if got := backlog.Counts().Events; got != len(w.model) || backlog.Problem != nil || backlog.Foreign > 0 {
					t.Fatalf("seed %d: %d events, want %d; %v", seed, got, len(w.model), backlog.Problem)
				}
			}
		}
	}
}

// An event of a parked key is parked unless it is before all that is parked. One that is parked already, or was dropped, is known.
func TestJudge(t *testing.T) {
	l, key := New("shop"), Key{"public.outbox", "k"}
	is := func(want Verdict, token, system string, at cdc.Position) {
		t.Helper()
		if got := l.Judge(key, token, system, Position{1, at, 1}); got != want {
			t.Errorf("event %s at %d of %s gets %d, want %d", token, at, system, got, want)
		}
	}
	is(Deliver, "e10", "7", 10)
	l.Expect(letterOf(key, "e10", 10, cdc.TooLarge, 1)) // its letter is not in the topic yet
	is(Known, "e10", "7", 10)
	is(Deliver, "e9", "7", 9)
	is(Park, "e11", "7", 11)
	is(Park, "x", "8", 5)
	if got := l.Judge(key, "row", "7", Position{}); got != Park {
		t.Errorf("a row of the table gets %d", got)
	}
	if got := l.Judge(Key{"public.outbox", "other"}, "e12", "7", Position{1, 12, 1}); got != Deliver {
		t.Errorf("another key gets %d", got)
	}
	l.Add(Written(encoded(letterOf(key, "e10", 10, cdc.TooLarge, 1)), 0))
	l.Expect(letterOf(key, "e5", 5, cdc.TooLarge, 1)) // refused late
	is(Park, "e7", "7", 7)
	l.Add(Written(encoded(letterOf(key, "e5", 5, cdc.TooLarge, 1)), 1))
	l.Add(Written(DroppedMark(topic, "shop", l.Entry("e5"), began), 2))
	is(Known, "e5", "7", 5) // a crash repeats it
	is(Deliver, "e7", "7", 7)
	if at := l.Anchor(3); at != 0 {
		t.Errorf("anchor %d", at)
	}
	l.Add(Written(ReleasedMark(topic, "shop", []*Entry{l.Entry("e10")}, began), 3))
	is(Deliver, "e11", "7", 11)
	if at := l.Anchor(4); at != 1 { // of the dropped event
		t.Errorf("anchor %d", at)
	}
	l.Forget(func(*Entry) bool { return true })
	if at := l.Anchor(4); at != 4 || !l.Empty() {
		t.Errorf("anchor %d", at)
	}
}

// A table that is renamed while a key is parked keeps its keys, also for who reads the topic from a place behind the old name. A
// table that takes the place of another one has its keys.
func TestARenamedTableKeepsItsKeys(t *testing.T) {
	l := New("shop")
	l.Add(Written(encoded(letterOf(Key{"public.outbox", "k"}, "e1", 10, cdc.TooLarge, 1)), 0))
	if got := l.Table("7", 9, "public.renamed"); got != "public.outbox" {
		t.Errorf("the renamed table is %s", got)
	}
	if got := l.Table("7", 10, "public.outbox"); got != "public.outbox" {
		t.Errorf("its successor is %s", got)
	}
	if got := l.Table("8", 9, "public.customers"); got != "public.customers" {
		t.Errorf("a table of another server is %s", got)
	}
	later := letterOf(Key{"public.renamed", "k"}, "e2", 20, deadletter.Behind, 1)
	l.Add(Written(encoded(later), 1))
	if got := len(l.Entries(Key{"public.outbox", "k"})); got != 2 {
		t.Errorf("%d events of the key", got)
	}
	behind := New("shop")
	behind.Add(Written(encoded(later), 1))
	if got := behind.Judge(Key{behind.Table("7", 9, "public.renamed"), "k"}, "e3", "7", Position{1, 30, 1}); got != Park {
		t.Errorf("behind the old name: %d", got)
	}
	behind.Add(Written(ReleaseRequest(topic, "shop", l.Entry("e2"), began), 2)) // whoever asks knows the old name
	if !behind.Releases(Key{"public.renamed", "k"}) {
		t.Error("a request under the old name is lost")
	}
}

// What is closed costs no memory, whatever stays open before it.
func TestClosedEventsAreForgotten(t *testing.T) {
	l := New("shop")
	key := func(i int) Key { return Key{"public.outbox", fmt.Sprint(i)} }
	offset := int64(0)
	add := func(rec *cdc.Record) {
		l.Add(Written(rec, offset))
		offset++
	}
	add(encoded(letterOf(key(-1), "old", 10, cdc.TooLarge, 1)))
	most := 0
	for i := range 20_000 {
		token := fmt.Sprint("t", i)
		add(encoded(letterOf(key(i), token, cdc.Position(100+i), cdc.TooLarge, 1)))
		switch e := l.Entry(token); i % 2 {
		case 0:
			add(ReleasedMark(topic, "shop", []*Entry{e}, began))
		default:
			add(DropRequest(topic, "shop", e, "why", began))
			add(DroppedMark(topic, "shop", l.ToDrop(func(Key) bool { return false }, 1)[0], began))
			l.Forget(func(*Entry) bool { return true })
		}
		l.Next(func(Key) bool { return false }, func(*Entry) bool { return true }, Bounds{100, 1 << 20})
		most = max(most, len(l.lines)+len(l.tokens)+len(l.queue)+len(l.drops)+len(l.gone)+len(l.holds)+len(l.tables))
	}
	if most > 1100 || l.Anchor(offset) != 0 {
		t.Errorf("%d things are remembered; anchor %d", most, l.Anchor(offset))
	}
}

// Next takes the first events of each key that may go, up to one that may not, and stays within its bounds.
func TestNextTakesTheFirstEventsInOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w, requested := newWorld(), map[Key]int{}
		for range 100 {
			w.step(rng, requested)
		}
		limit, busy, most := w.place-cdc.Position(rng.IntN(500)), w.keys[rng.IntN(3)], Bounds{1 + rng.IntN(20), 1 + rng.IntN(10_000)}
		taken := 0
		for key, es := range w.backlog.Next(func(k Key) bool { return k == busy }, func(e *Entry) bool { return e.Commit < limit }, most) {
			taken += len(es)
			if key == busy || len(es) == 0 || !slices.Equal(es, w.backlog.Entries(key)[:len(es)]) {
				t.Fatalf("seed %d: %s: %+v", seed, key, es)
			}
			for _, e := range es {
				if e.Commit >= limit || e.Drop != 0 || e.Reason != deadletter.Behind && e.Offset > int64(requested[key]) {
					t.Fatalf("seed %d: %+v may not go", seed, e)
				}
			}
		}
		if taken > most.Events {
			t.Fatalf("seed %d: %d events of %+v", seed, taken, most)
		}
	}
}

// A drop is carried out once, and not while its key is busy.
func TestADropIsCarriedOutOnce(t *testing.T) {
	l, key := New("shop"), Key{"public.outbox", "k"}
	l.Add(Written(encoded(letterOf(key, "e1", 10, cdc.TooLarge, 1)), 0))
	l.Add(Written(DropRequest(topic, "shop", l.Entry("e1"), "why", began), 1))
	l.Add(Written(DropRequest(topic, "shop", l.Entry("e1"), "again", began), 2))
	if got := l.ToDrop(func(Key) bool { return true }, 9); len(got) > 0 {
		t.Error("a busy key")
	}
	got := l.ToDrop(func(Key) bool { return false }, 9)
	if len(got) != 1 || got[0].Why != "why" {
		t.Fatalf("%+v", got)
	}
	l.Add(Written(DroppedMark(topic, "shop", got[0], began), 3))
	if got := l.ToDrop(func(Key) bool { return false }, 9); len(got) > 0 || len(l.drops) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestLimitsCountKeysAndEvents(t *testing.T) {
	l, a, b := New("shop"), Key{"t", "a"}, Key{"t", "b"}
	l.Expect(letterOf(a, "1", 10, cdc.TooLarge, 1))
	if l.Exceeds(Limit{1, 1}) || !l.Exceeds(Limit{1, 0}) || !l.Exceeds(Limit{0, 1}) {
		t.Error("one event of one key")
	}
	l.Expect(letterOf(b, "2", 20, cdc.TooLarge, 1)) // counts before it is written
	if !l.Exceeds(Limit{1, 2}) || !l.Exceeds(Limit{2, 1}) || l.Exceeds(Limit{2, 2}) {
		t.Error("two events of two keys")
	}
}

// The keys that wait longest come first. A key whose first event was dropped waits for the next one.
func TestTheOldestKeys(t *testing.T) {
	l, offset := New("shop"), int64(0)
	add := func(rec *cdc.Record) {
		l.Add(Written(rec, offset))
		offset++
	}
	letter := func(key, token string, at cdc.Position, minutes time.Duration) {
		is := letterOf(Key{"t", key}, token, at, deadletter.Behind, 1)
		is.CommitTime = began.Add(minutes * time.Minute)
		add(encoded(is))
	}
	if l.Oldest(3) != nil || !Since(nil).IsZero() {
		t.Error("nothing is parked")
	}
	for i, minutes := range []time.Duration{5, 1, 4, 2, 3} {
		letter(string(rune('a'+i)), string(rune('A'+i)), cdc.Position(10+i), minutes)
	}
	letter("b", "B2", 90, 6)
	keys := func() (all string) {
		for _, p := range l.Oldest(3) {
			all += fmt.Sprint(p.Key.Key, p.Events, p.First.Token, " ")
		}
		return all
	}
	if got := keys(); got != "b2B d1D e1E " || !Since(l.Oldest(1)).Equal(began.Add(time.Minute)) {
		t.Error(got)
	}
	for _, token := range []string{"B", "E"} {
		add(DroppedMark(topic, "shop", l.Entry(token), began))
	}
	if got := keys(); got != "d1D c1C a1A " {
		t.Error(got)
	}
	if all := l.Oldest(9); len(all) != 4 || all[3].First.Token != "B2" {
		t.Errorf("%+v", all)
	}
}

// BenchmarkNext shows that 100,000 parked keys that nobody wants released cost nothing at each tick, and that those whose topic takes
// nothing cost no more than a few.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		for _, asked := range []bool{false, true} {
			b.Run(fmt.Sprintf("keys=%d/asked=%t", n, asked), func(b *testing.B) {
				l := New("shop")
				for i := range n {
					token := fmt.Sprint("t", i)
					l.Add(Written(encoded(letterOf(Key{"t", fmt.Sprint(i)}, token, cdc.Position(100+i), cdc.TooLarge, 1)), int64(i)))
				}
				for i := range n {
					if asked {
						l.Add(Written(ReleaseRequest(topic, "shop", l.Entry(fmt.Sprint("t", i)), began), int64(n+i)))
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					l.Next(func(Key) bool { return true }, func(*Entry) bool { return true }, Bounds{1000, 8 << 20})
					l.Anchor(int64(2 * n))
				}
			})
		}
	}
}
