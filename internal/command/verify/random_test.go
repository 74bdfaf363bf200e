package verify

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/internal/testenv/short"
)

var seeds = flag.Uint64("seeds", short.Raced[uint64](300, 100), "how many random relays TestNoRelayIsAccused tries")

// A log is what one relay has delivered, over crashes.
type log struct {
	rnd   *rand.Rand
	rows  []entry  // in commit order
	parts [2][]int // rows, in the order of the records
	start [2]int   // how many records retention has removed
	times []int64  // when the rows were committed
	polls bool     // the relay polls the table
}

// deliver delivers all rows. A crash loses the checkpoint of what was acknowledged lately, and each partition has got a part of what
// was in flight.
func (l *log) deliver() {
	checkpoint, newest := 0, [2]int{-1, -1}
	for crashes := l.rnd.IntN(5); ; crashes-- {
		reached := len(l.rows)
		if crashes > 0 {
			reached = min(reached, checkpoint+l.rnd.IntN(20))
		}
		whole := reached // all before it is acknowledged
		for p := range l.parts {
			until := reached
			if crashes > 0 {
				until = min(reached, checkpoint+l.rnd.IntN(20))
			}
			for i := checkpoint; i < until; i++ {
				if int(l.rows[i].partition) == p {
					l.parts[p] = append(l.parts[p], i)
					newest[p] = max(newest[p], i)
				}
			}
			whole = min(whole, until)
		}
		if crashes <= 0 {
			return
		}
		checkpoint += l.rnd.IntN(whole - checkpoint + 1)
	}
}

// deliverByKey delivers all rows as a relay that polls does: each key in its order, and the keys in any order. A crash repeats the newest
// rows of each key.
func (l *log) deliverByKey() {
	l.polls = true
	keys := map[[16]byte][]int{}
	for i := range l.rows {
		l.rows[i].rank, l.rows[i].flags = int64(i), l.rows[i].flags|ranked
		keys[l.rows[i].key] = append(keys[l.rows[i].key], i)
	}
	order := slices.SortedFunc(maps.Keys(keys), func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
	checkpoint := map[[16]byte]int{}
	for crashes := l.rnd.IntN(5); ; crashes-- {
		at, steps := maps.Clone(checkpoint), l.rnd.IntN(40)
		for open := order; len(open) > 0 && (crashes <= 0 || steps > 0); steps-- {
			n := l.rnd.IntN(len(open))
			key := open[n]
			if at[key] == len(keys[key]) {
				open = slices.Delete(slices.Clone(open), n, n+1)
				continue
			}
			p := l.rows[keys[key][at[key]]].partition
			l.parts[p] = append(l.parts[p], keys[key][at[key]])
			at[key]++
		}
		if crashes <= 0 {
			return
		}
		for _, key := range order {
			checkpoint[key] += l.rnd.IntN(at[key] - checkpoint[key] + 1)
		}
	}
}

// judge runs the judging part of verify over the log.
func (l *log) judge(t *testing.T) *Report {
	t.Helper()
	dir := t.TempDir()
	v := &verifier{Options: Options{Limit: 100, Progress: func(string, int64, int64) {}}, hash: newHasher()}
	v.byID, v.byKey, v.again = newSorter(dir, 4<<10), newSorter(dir, 4<<10), newSorter(dir, 4<<10)
	if l.polls {
		v.Polled = &Polled{}
	}
	v.before = func(string, string) Place { return Place{} }
	v.after = v.before
	v.report.Counts, v.report.Elsewhere = map[Kind]int64{}, map[string]int64{}
	v.tables = []*checkedTable{{Table: &table.Table{}, name: "public.outbox"}}
	topic := &topic{name: "topic", n: 2, parts: make([]part, 2)}
	v.topics = append(v.topics, topic)
	add := func(i int, e *entry) {
		if err := v.add(binary.BigEndian.AppendUint64(nil, uint64(i)), e); err != nil {
			t.Fatal(err)
		}
	}
	for i := range l.rows {
		e := l.rows[i]
		add(i, &e)
	}
	for p := range l.parts {
		topic.parts[p].oldest, topic.parts[p].cut = unknown, l.start[p] > 0
		for o, i := range l.parts[p] {
			if o < l.start[p] {
				continue
			}
			e := entry{kind: ofRecord, partition: int32(p), offset: int64(o), time: l.times[i] / 1000 * 1000, stamp: unknown, key: l.rows[i].key, value: uint64(i) + 1, whole: uint64(i) + 1}
			if topic.parts[p].oldest == unknown {
				topic.parts[p].oldest = e.time
			}
			add(i, &e)
		}
	}
	for _, step := range []func() error{func() error { return v.match(t.Context()) }, func() error { return v.judgeKeys(t.Context()) }, func() error { return v.judgeAgain(t.Context()) }} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return &v.report
}

// newLog makes rows whose transactions overlap: the order of their ids is not that of their commits, and the times of two commits
// can be in the wrong order if they are close together.
func newLog(seed uint64) *log {
	l := &log{rnd: rand.New(rand.NewPCG(seed, 0))}
	now, begun := int64(1_800_000_000_000_000), int64(0)
	for tx := uint32(1); len(l.rows) < 10+int(seed%60); tx++ {
		now += l.rnd.Int64N(2_000_000)
		time := now - l.rnd.Int64N(certain)
		begun += 10
		rank := begun - l.rnd.Int64N(30)*10 // it may have begun long ago
		for n := range 1 + l.rnd.IntN(4) {
			i := len(l.rows)
			e := entry{
				kind: ofRow, time: time, stamp: unknown, age: time, tx: tx, rank: rank*10 + int64(n), flags: asInserted | ranked, value: uint64(i) + 1,
				id: fmt.Append(nil, i), partition: int32(l.rnd.IntN(2)),
			}
			e.key[0], e.key[1] = byte(e.partition), byte(l.rnd.IntN(3))
			if l.rnd.IntN(4) == 0 { // an update has left the transaction of the update, which the server's times show
				e.tx, e.time = 1_000_000, now+3600_000_000
				e.flags &^= asInserted
				e.age = unknown
			}
			l.rows, l.times = append(l.rows, e), append(l.times, time)
		}
	}
	return l
}

// A relay that delivers in commit order, or polls and keeps the order of each key, and repeats after crashes what it must repeat, is never accused, whatever retention removes.
// A record that is lost is always found, unless retention may have removed it.
func TestNoRelayIsAccused(t *testing.T) {
	for seed := range short.Pick(2**seeds, 40) {
		l := newLog(seed)
		if seed%2 == 0 {
			l.deliver()
		} else {
			l.deliverByKey()
		}
		for _, trim := range []bool{false, true} {
			distinct, records := map[int]bool{}, 0
			for p := range l.parts {
				if n := len(l.parts[p]); trim && n > 0 {
					l.start[p] = l.rnd.IntN(n)
				}
				for _, i := range l.parts[p][l.start[p]:] {
					distinct[i] = true
					records++
				}
			}
			r := l.judge(t)
			if r.Differences() > 0 || r.Repeated+r.Counts[RepeatUnknown] != int64(records-len(distinct)) || !trim && r.CannotTell() != r.Counts[OrderUnknown] || l.polls && r.Counts[OrderUnknown] > 0 || int(r.Counts[Retention]) != len(l.rows)-len(distinct) {
				t.Fatalf("seed %d, trimmed %v: %d records of %d rows\n%v\n%+v", seed, l.start, records, len(distinct), l.parts, r)
			}
		}
		l.start = [2]int{}
		lost := l.rnd.IntN(len(l.rows))
		for p := range l.parts {
			l.parts[p] = slices.DeleteFunc(l.parts[p], func(i int) bool { return i == lost })
		}
		if r := l.judge(t); r.Counts[Missing] != 1 || r.Differences() != 1 || r.Findings[0].EventID != fmt.Sprint(lost) && r.Counts[OrderUnknown] == 0 {
			t.Fatalf("seed %d without record %d: %+v", seed, lost, r)
		}
	}
}

// If the writers of a key do not take turns, a relay that polls can repeat its rows in another order.
func TestRepeatsInAnotherOrderAreNotCertain(t *testing.T) {
	for sent, want := range map[string]map[Kind]int64{
		"0123 1234": {},
		"0123 2134": {RepeatUnknown: 3},
		"0123 2314": {RepeatUnknown: 3},
		"0123 214":  {Duplicate: 2},
		"0123 134":  {Duplicate: 2},
		"0123 12":   {RepeatUnknown: 2},
	} {
		l := &log{polls: true}
		for i := range 5 {
			l.rows = append(l.rows, entry{kind: ofRow, time: unknown, stamp: unknown, age: unknown, rank: int64(i), flags: ranked, value: uint64(i) + 1, id: fmt.Append(nil, i)})
			l.times = append(l.times, 0)
		}
		for _, d := range sent {
			if d != ' ' {
				l.parts[0] = append(l.parts[0], int(d-'0'))
			}
		}
		r := l.judge(t)
		for _, k := range []Kind{Duplicate, RepeatUnknown} {
			if r.Counts[k] != want[k] {
				t.Errorf("%s: %d of kind %s, must be %d\n%+v", sent, r.Counts[k], k, want[k], r)
			}
		}
	}
}
