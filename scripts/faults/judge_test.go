package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/ledger"
)

// A fake is a relay without servers. It delivers 120 rows, one or three to a transaction, is killed after row 60 and goes on
// at its checkpoint. bug is what is wrong with it, "" for nothing.
type fake struct {
	j    *Judge
	bug  string
	now  time.Time
	ids  map[int]string
	safe uint64 // the highest confirmed position
}

const fakeRows, fakeWindow, killedAt, savedAt = 120, 20, 60, 51

func (f *fake) key(i int) string { return fmt.Sprintf("key-%d", i%7) }

// behind is a position behind the commit of row i: three rows share one.
func (f *fake) behind(i int) uint64 { return uint64(1000 + 10*(i/3)) }

func (f *fake) write() {
	for i := range fakeRows {
		f.ids[i] = fmt.Sprintf("id-%d", i)
		f.j.Commit(f.ids[i], f.key(i), int64(i/7+1))
		f.j.Wrote(map[string]int64{f.key(i): int64(i/7 + 1)}, f.behind(i))
	}
}

func (f *fake) produce(id, key string, partition int32, headers ...string) {
	f.now = f.now.Add(200 * time.Millisecond)
	r := ledger.Record{Topic: "order", Partition: partition, ID: id, Key: key, Bytes: [][]byte{[]byte(key), []byte("value of " + id)}}
	for _, h := range headers {
		r.Bytes = append(r.Bytes, []byte(h))
	}
	f.j.Observe(r, f.now, f.now)
}

// send delivers row i. again is after the crash.
func (f *fake) send(i int, again bool) {
	partition, headers := int32(i%7%3), []string{"id", "type"}
	switch {
	case f.bug == "skips a row" && i == 30,
		f.bug == "swallows an error" && i >= 30 && i < 33,
		f.bug == "takes a row's position for its transaction's" && again && i == 61: // the one that was in flight
		return
	case f.bug == "swaps two rows of a key" && (i == 30 || i == 37): // the partition stays
		i = 67 - i
	case f.bug == "forgets a header when it delivers again" && again:
		headers = headers[:1]
	case f.bug == "has another partitioner after a restart" && again:
		partition = (partition + 1) % 3
	case f.bug == "has a random partitioner for a row" && i == 30:
		partition = (partition + 1) % 3
	}
	f.produce(f.ids[i], f.key(i), partition, headers...)
}

// confirm tells the slot, and the sampler sees it.
func (f *fake) confirm(lsn uint64) {
	f.now = f.now.Add(time.Millisecond)
	if f.safe = max(f.safe, lsn); f.bug == "confirms an older position" {
		f.safe = lsn
	}
	f.j.Confirmed(f.now, f.safe, 1)
}

func (f *fake) run(from, to int, again bool) {
	for i := from; i < to; i++ {
		switch {
		case f.bug == "confirms too early" && i == 33:
			f.confirm(f.behind(i + 6))
		case f.bug == "confirms what it has read" && i%3 == 0:
			f.confirm(f.behind(i))
		}
		if f.bug == "delivers what was rolled back" && i == 30 {
			f.produce("rolled back", f.key(i), 0)
		}
		f.send(i, again)
		if i%3 == 2 && f.bug != "confirms what it has read" {
			f.confirm(f.behind(i))
		}
		if f.bug == "confirms an older position" && i == 40 {
			f.confirm(f.behind(i - 10))
		}
		if f.bug == "sends an old event alone" && i == 50 {
			f.send(20, again)
			f.send(41, again)
		}
	}
}

func (f *fake) life() {
	f.write()
	f.run(0, killedAt, false)
	f.j.Crash(f.now)
	f.now = f.now.Add(2 * slack)
	switch from := savedAt; {
	case f.bug == "begins again at the very start":
		f.run(0, fakeRows, true)
	case f.bug == "re-sends without a crash":
		f.run(killedAt, fakeRows, true)
		f.j.crashes = nil
		f.run(fakeRows-3, fakeRows, true)
	case f.j.ExactlyOnce && f.bug == "re-sends after an abort":
		f.run(from, fakeRows, true)
	case f.j.ExactlyOnce:
		f.run(killedAt, fakeRows, true)
	case f.bug == "replays with holes":
		f.send(savedAt, true)
		f.send(savedAt+6, true)
		f.run(killedAt, fakeRows, true)
	default:
		f.run(from, fakeRows, true)
	}
}

func judged(bug string, exactlyOnce bool) Verdict {
	f := &fake{j: NewJudge(fakeWindow, exactlyOnce), bug: bug, now: time.UnixMilli(1_000_000_000_000), ids: map[int]string{}}
	f.life()
	return f.j.Judge()
}

func TestAGoodRelayIsFoundGood(t *testing.T) {
	for _, once := range []bool{false, true} {
		if v := judged("", once); len(v.Broken) > 0 || v.Committed != fakeRows {
			t.Errorf("exactly once %t: %s", once, &v)
		}
	}
}

func TestEachBrokenRelayIsFound(t *testing.T) {
	for _, c := range []struct {
		bug, rule string
		once      bool
	}{
		{"skips a row", "lost", false},
		{"swallows an error", "lost", false},
		{"takes a row's position for its transaction's", "lost", true},
		{"confirms too early", "early", false},
		{"confirms what it has read", "early", false},
		{"confirms an older position", "backwards", false},
		{"swaps two rows of a key", "order", false},
		{"forgets a header when it delivers again", "identical", false},
		{"has another partitioner after a restart", "identical", false},
		{"has a random partitioner for a row", "partition", false},
		{"delivers what was rolled back", "invented", false},
		{"sends an old event alone", "replay", false},
		{"replays with holes", "replay", false},
		{"begins again at the very start", "duplicates", false},
		{"re-sends without a crash", "duplicates", false},
		{"re-sends after an abort", "duplicates", true},
	} {
		v := judged(c.bug, c.once)
		if !v.breaks(c.rule) {
			t.Errorf("a relay that %s should break %q: %s", c.bug, c.rule, &v)
		}
	}
}

// What a killed process had on the wire comes into the re-run of its successor, which repeats it.
func TestWhatWasOnTheWireMayComeLate(t *testing.T) {
	for _, c := range []struct {
		order string
		good  bool
	}{
		{"abcd" + "abEcdEf", true},
		{"abcd" + "aDbcdEe", true},
		{"abcd" + "abEcdf", false},
		{"abcd" + "abEf", false},
		{"abcd" + "adef", false},
	} {
		j := NewJudge(fakeWindow, false)
		f := &fake{j: j, now: time.UnixMilli(1_000_000_000_000)}
		for i, id := range strings.Split("abcdef", "") {
			j.Commit(id, "key", int64(i+1))
		}
		for i, id := range strings.Split(strings.ToLower(c.order), "") {
			if i == 4 {
				j.Crash(f.now)
			}
			f.produce(id, "key", 0)
		}
		if v := j.Judge(); v.breaks("replay") == c.good {
			t.Errorf("%s: %s", c.order, &v)
		}
	}
}

// A dead letter stands for its row, and only for that one.
func TestALetterStandsForItsRow(t *testing.T) {
	f := &fake{j: NewJudge(fakeWindow, false), bug: "skips a row", now: time.UnixMilli(1_000_000_000_000), ids: map[int]string{}}
	f.life()
	f.j.Letter("id-30")
	if v := f.j.Judge(); v.Lost > 0 || strings.Contains(v.String(), "lost") {
		t.Errorf("with a letter: %s", &v)
	}
	f.j.Commit("id-999", "key-9", 1)
	if v := f.j.Judge(); v.Lost != 1 {
		t.Errorf("with a letter of another row: %s", &v)
	}
}

// A judge that has forgotten holds nothing against the new events, and an old one that arrives again is no one's.
func TestWhatIsForgottenMayNotComeAgain(t *testing.T) {
	f := &fake{j: NewJudge(fakeWindow, false), now: time.UnixMilli(1_000_000_000_000), ids: map[int]string{}}
	f.life()
	f.j.Forget()
	f.j.Commit("new", "key-0", 1)
	f.produce("new", "key-0", 0)
	if v := f.j.Judge(); len(v.Broken) > 0 || v.Committed != 1 || v.Duplicates != 0 {
		t.Errorf("the next events: %s", &v)
	}
	f.produce("id-30", "key-2", 2)
	if v := f.j.Judge(); !v.breaks("invented") {
		t.Errorf("an old event again: %s", &v)
	}
}
