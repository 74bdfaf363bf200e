package protocol

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// A Result is what an exploration has found.
type Result struct {
	States, Depth int // distinct states; steps of the longest of the shortest paths
	Time          time.Duration
	Broken        string // the first violation, with the shortest story that leads to it; "" for none
}

func (r Result) String() string {
	return fmt.Sprintf("%d states, depth %d, %.1f s", r.States, r.Depth, r.Time.Seconds())
}

// An explorer visits every state that a model can reach, breadth first. So the story of a violation is
// one of the shortest. States are compared in full: the hash only finds the place in the table.
type explorer struct {
	m       *model
	chunks  [][]state // all of chunk states, so that nothing is copied when there are more
	parents []uint32  // of the state that each was first reached from
	table   []uint32  // number of a state + 1, by hash, open addressing; len is a power of two
	seed    maphash.Seed

	edges []uint32 // the states that each state leads to without a fault, one state after the other
	ends  []int    // where the edges of each state end
}

const chunk = 1 << 14

func (e *explorer) len() int           { return len(e.parents) }
func (e *explorer) state(i int) *state { return &e.chunks[i/chunk][i%chunk] }

// Explore visits all states of m, and stops at the first violation. It panics if there are more than
// limit states.
func Explore(m *model, limit int) (r Result) {
	began := time.Now()
	e := &explorer{m: m, seed: maphash.MakeSeed(), table: make([]uint32, 1<<16)}
	first := m.initial()
	e.add(&first, 0)
	level := 1 // the first state that is one step deeper
	told := false
	for i := 0; i < e.len(); i++ {
		if i == level {
			r.Depth++
			level = e.len()
		}
		s := *e.state(i)
		m.next(&s, func(a action, t *state) {
			if told {
				return
			}
			j, isNew := e.add(t, i)
			if isNew {
				m.check(e.state(j))
			}
			if !a.fault && !a.failover {
				e.edges = append(e.edges, uint32(j))
			}
			if m.broken != "" {
				told = true
				m.broken += "\n" + e.story(i, &a, t)
			}
		})
		e.ends = append(e.ends, len(e.edges))
		if m.broken != "" {
			break
		}
		if e.len() > limit {
			panic(fmt.Sprintf("protocol: more than %d states", limit))
		}
	}
	if m.broken == "" {
		e.finishes()
	}
	r.States, r.Time, r.Broken = e.len(), time.Since(began), m.broken
	return r
}

// add returns the number of a state, and whether it is new.
func (e *explorer) add(s *state, parent int) (int, bool) {
	if e.len()*2 > len(e.table) {
		e.grow()
	}
	at := e.place(s)
	if n := e.table[at]; n != 0 {
		return int(n - 1), false
	}
	if e.len()%chunk == 0 {
		e.chunks = append(e.chunks, make([]state, chunk))
	}
	e.parents = append(e.parents, uint32(parent))
	*e.state(e.len() - 1) = *s
	e.table[at] = uint32(e.len())
	return e.len() - 1, true
}

// place is where s is in the table, or where it belongs.
func (e *explorer) place(s *state) uint64 {
	mask := uint64(len(e.table) - 1)
	at := maphash.Comparable(e.seed, *s) & mask
	for e.table[at] != 0 && *e.state(int(e.table[at] - 1)) != *s {
		at = (at + 1) & mask
	}
	return at
}

func (e *explorer) grow() {
	e.table = make([]uint32, 2*len(e.table))
	for i := range e.len() {
		e.table[e.place(e.state(i))] = uint32(i + 1)
	}
}

// finishes checks that a finish can be reached from each state without a further fault.
func (e *explorer) finishes() {
	// The edges backwards: from[starts[j]:starts[j+1]] are the states that lead to state j.
	starts := make([]int, e.len()+2)
	for _, j := range e.edges {
		starts[j+2]++
	}
	for j := range e.len() {
		starts[j+2] += starts[j+1]
	}
	from := make([]uint32, len(e.edges))
	begin := 0
	for i, end := range e.ends {
		for _, j := range e.edges[begin:end] {
			from[starts[j+1]] = uint32(i)
			starts[j+1]++
		}
		begin = end
	}
	can := make([]bool, e.len())
	var queue []uint32
	for i := range e.len() {
		if e.m.finished(e.state(i)) {
			can[i] = true
			queue = append(queue, uint32(i))
		}
	}
	for len(queue) > 0 {
		j := queue[0]
		queue = queue[1:]
		for _, i := range from[starts[j]:starts[j+1]] {
			if !can[i] {
				can[i] = true
				queue = append(queue, i)
			}
		}
	}
	for i := range can {
		if !can[i] {
			e.m.broken = "no finish can be reached any more\n" + e.story(i, nil, nil)
			return
		}
	}
}

// story is how state i was reached, and perhaps one action more, one line for each step.
func (e *explorer) story(i int, last *action, to *state) string {
	var path []int
	for ; i != 0; i = int(e.parents[i]) {
		path = append(path, i)
	}
	broken := e.m.broken
	defer func() { e.m.broken = broken }()
	var b strings.Builder
	names := "AB"
	tell := func(a *action, s *state) {
		told := a.told(names)
		if a.swapped {
			names = names[1:] + names[:1]
		}
		fmt.Fprintf(&b, "* %s\n    %s\n", told, e.m.describe(s, names))
	}
	at := 0
	for _, child := range slices.Backward(path) {
		s, found := *e.state(at), false
		e.m.next(&s, func(a action, t *state) {
			if !found && *t == *e.state(child) {
				found = true
				tell(&a, t)
			}
		})
		at = child
	}
	if last != nil {
		tell(last, to)
	}
	return b.String()
}
