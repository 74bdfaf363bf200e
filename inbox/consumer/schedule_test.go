package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/walpost/walpost/inbox"
)

// Random messages, batches, failures and dead letters: messages of one key run one after another and
// in their order, no more runs than is allowed, and the position never passes an unfinished message.
func TestAScheduleKeepsTheOrderOfKeysAndCommitsAPrefix(t *testing.T) {
	for seed := range uint64(100) {
		if !simulate(t, seed) {
			return
		}
	}
}

func simulate(t *testing.T, seed uint64) (ok bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	s := schedule{limit: 1 + r.IntN(4), batch: 1 + r.IntN(4), byPartition: r.IntN(4) == 0, partitions: map[place]*partition{}}
	var parts []*partition
	for id := range int32(1 + r.IntN(3)) {
		parts = append(parts, newPartition(context.Background(), place{"t", id}))
	}
	fail := func(format string, args ...any) bool {
		t.Errorf("seed %d: "+format, append([]any{seed}, args...)...)
		return false
	}
	type id struct{ partition, offset int64 }
	finished := map[id]bool{}        // the naive model: which messages are done
	active := map[id]*item{}         // and which are in somebody's hands
	keys := map[string]map[id]bool{} // the unfinished messages of each key
	var works []*work
	var letters []*lane
	var waiting [][]*lane
	left := 60
	offsets := make([]int64, len(parts))
	keyOf := func(p *partition, it *item) string {
		switch {
		case s.byPartition:
			return fmt.Sprint(p.partition)
		case it.msg.Key == nil:
			return fmt.Sprint(p.partition, "#", it.offset)
		}
		return fmt.Sprint(p.partition, "/", string(it.msg.Key))
	}
	begin := func(p *partition, it *item, before map[string]int64) string {
		me := id{int64(p.partition), it.offset}
		key := keyOf(p, it)
		for other := range keys[key] {
			if other.offset < it.offset && (active[other] == nil || before[key] < other.offset) {
				return fmt.Sprintf("%v begins before %v is finished", me, other)
			}
		}
		if active[me] != nil || finished[me] {
			return fmt.Sprintf("%v begins twice", me)
		}
		return ""
	}
	for steps := 0; left > 0 || len(finished) < 60; steps++ {
		if steps > 10_000 {
			return fail("stuck: %d of 60 finished", len(finished))
		}
		switch n := r.IntN(6); {
		case n == 0 && left > 0:
			i := r.IntN(len(parts))
			it := &item{offset: offsets[i], size: 1}
			offsets[i] += 1 + r.Int64N(2) // compaction leaves gaps
			if r.IntN(8) > 0 {
				it.msg = inbox.Message{Key: []byte{byte('a' + r.IntN(3))}}
			}
			if r.IntN(10) == 0 {
				it.verdict = &verdict{}
			}
			left--
			key, me := keyOf(parts[i], it), id{int64(i), it.offset}
			if keys[key] == nil {
				keys[key] = map[id]bool{}
			}
			keys[key][me] = true
			s.add(parts[i], it)
		case n == 1:
			if w := s.start(); w != nil {
				last := map[string]int64{}
				if len(w.items) > s.batch || len(w.items) == 0 {
					return fail("a work of %d items", len(w.items))
				}
				for _, it := range w.items {
					if it.alone && len(w.items) > 1 || it.verdict != nil {
						return fail("offset %d is in a batch", it.offset)
					}
					key := keyOf(w.p, it)
					if _, same := last[key]; !same {
						last[key] = -1
					}
					if wrong := begin(w.p, it, last); wrong != "" {
						return fail("%s", wrong)
					}
					last[key] = it.offset
					active[id{int64(w.p.partition), it.offset}] = it
				}
				if works = append(works, w); len(works) > s.limit {
					return fail("%d works at the same time", len(works))
				}
			}
		case n == 2:
			if l := s.startLetter(); l != nil {
				if wrong := begin(l.p, l.items[0], nil); wrong != "" {
					return fail("letter: %s", wrong)
				}
				active[id{int64(l.p.partition), l.items[0].offset}] = l.items[0]
				letters = append(letters, l)
			}
		case n == 3 && len(works) > 0:
			i := r.IntN(len(works))
			w := works[i]
			works = append(works[:i], works[i+1:]...)
			s.running--
			for _, it := range w.items {
				me := id{int64(w.p.partition), it.offset}
				delete(active, me)
			}
			switch r.IntN(4) {
			case 0: // the first one dies, or all go on alone
				if len(w.items) == 1 {
					w.items[0].verdict = &verdict{}
				}
				for _, it := range w.items {
					it.alone = true
				}
				for _, l := range w.lanes {
					s.free(l)
				}
			case 1:
				waiting = append(waiting, w.lanes)
			default:
				for _, it := range w.items {
					me := id{int64(w.p.partition), it.offset}
					finished[me] = true
					delete(keys[keyOf(w.p, it)], me)
				}
				s.finish(w.lanes, w.items)
			}
			w.p.ended()
		case n == 4 && len(letters) > 0:
			l := letters[0]
			letters = letters[1:]
			me := id{int64(l.p.partition), l.items[0].offset}
			delete(active, me)
			if r.IntN(3) == 0 {
				waiting = append(waiting, []*lane{l})
			} else {
				finished[me] = true
				delete(keys[keyOf(l.p, l.items[0])], me)
				s.finish([]*lane{l}, l.items[:1])
			}
			l.p.ended()
		case n == 5 && len(waiting) > 0:
			for _, l := range waiting[0] {
				s.free(l)
			}
			waiting = waiting[1:]
		}
		for i, p := range parts {
			bytes := 0
			for _, it := range p.pending {
				if !it.done {
					bytes++
				}
			}
			if bytes != p.bytes {
				return fail("%d bytes are counted, %d are there", p.bytes, bytes)
			}
			for _, unfinished := range keys {
				for me := range unfinished {
					if me.partition == int64(i) && p.position.Offset > me.offset {
						return fail("position %d passes %v", p.position.Offset, me)
					}
				}
			}
		}
	}
	for i, p := range parts {
		if len(p.pending)+len(p.lanes)+p.bytes+p.running != 0 {
			return fail("partition %d keeps %d messages, %d lanes, %d bytes, %d runs", i, len(p.pending), len(p.lanes), p.bytes, p.running)
		}
	}
	return true
}
