package protocol

import (
	"fmt"
	"strings"
)

// A Bound says how large the world is that an exploration visits in full.
type Bound struct {
	ExactlyOnce bool
	// Items is the workload: each item is a transaction, with the key of each of its rows, or "" for WAL
	// that has nothing for us. Key a and key b are in different partitions.
	Items    []string
	Window   int  // delivery.window.events
	Faults   int  // in one story, of any kinds in any order
	Failover bool // and a promotion at any time
}

func (b Bound) String() string {
	mode := "at_least_once"
	if b.ExactlyOnce {
		mode = "exactly_once"
	}
	faults := fmt.Sprintf("%d faults", b.Faults)
	if b.Failover {
		faults += " and a failover"
	}
	return fmt.Sprintf("%s, transactions %q, window %d, %s", mode, b.Items, b.Window, faults)
}

// A model is the protocol, or one of its broken variants, in a world of some size.
type model struct {
	Bound
	variant Variant
	lib     *library
	cores   *cores
	broken  string // the violation that was found
}

// New returns the model of a variant.
func New(b Bound, v Variant) *model {
	m := &model{Bound: b, variant: v, lib: newLibrary()}
	m.cores = newCores(m)
	return m
}

func (m *model) initial() state { return state{faults: uint8(m.Faults)} }

func (m *model) fail(format string, a ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, a...)
	}
}

func (m *model) mark(id recID) mark { return m.lib.marks[id] }

// An action is a step. Faults are bounded; everything else may happen at any time.
type action struct {
	what            string
	who             int // a process, or -1
	fault, failover bool
	swapped         bool // the processes have changed their places; see normalize
}

// told is the action in a story, in which process i has the letter names[i].
func (a action) told(names string) string {
	if a.who < 0 {
		return a.what
	}
	return fmt.Sprintf("%c %s", names[a.who], a.what)
}

type emit func(action, *state)

// next calls to for each step that s allows.
func (m *model) next(s *state, to emit) {
	step := func(a action, t *state) {
		if a.fault {
			t.faults--
		}
		a.swapped = m.normalize(t)
		to(a, t)
	}
	m.environment(s, step)
	for i := range s.procs {
		m.process(s, i, step)
	}
}

// rows is how many rows of a key the first items have.
func (m *model) rows(key, items uint8) (n uint8) {
	for _, item := range m.Items[:items] {
		n += uint8(strings.Count(item, string('a'+key)))
	}
	return n
}

func (m *model) key(r row) uint8 { return m.Items[r.item()-1][r.n()] - 'a' }

// place is the place of a row among all rows of its key, from 1.
func (m *model) place(r row) uint8 {
	item := m.Items[r.item()-1]
	return m.rows(m.key(r), r.item()-1) + uint8(strings.Count(item[:r.n()+1], item[r.n():r.n()+1]))
}

// born is the timeline that an item was written on, in the history of a session.
func born(f found, item uint8) uint8 {
	if f.timeline == 2 && item > f.kept {
		return 2
	}
	return 1
}

// found is what the server says of itself.
func (s *state) found() found {
	if s.fork == 0 {
		return found{timeline: 1, slot: s.slot}
	}
	return found{2, s.fork - 1, s.slot}
}

// gone reports whether a row's commit was lost in a failover.
func (s *state) gone(r row) bool { return s.fork != 0 && r.born() == 1 && r.item() > s.fork-1 }
