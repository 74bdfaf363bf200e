package protocol

import "fmt"

// environment is what Postgres and Kafka do, and what can happen to them.
func (m *model) environment(s *state, to emit) {
	if s.holder > processes && m.variant != EternalWalsender {
		t := *s
		t.holder = 0
		to(action{what: "the server notices that the client is gone", who: -1}, &t)
	}
	for i, id := range s.late {
		if id != 0 {
			t := *s
			m.land(&t, i)
			to(action{what: "a late checkpoint record arrives", who: -1}, &t)
		}
	}
	for i := range s.dead {
		for k := range s.dead[i] {
			if q := &s.dead[i][k]; q[0] != 0 {
				t := *s
				m.append(&t, q[0].row())
				t.dead[i][k].pop()
				to(action{what: "a late record of a dead process arrives", who: -1}, &t)
			}
		}
	}
	if s.ending.asked {
		t := *s
		m.commit(&t)
		to(action{what: "the coordinator commits", who: -1}, &t)
	}
	if s.faults > 0 {
		m.disasters(s, to)
	}
	if s.fork == 0 && m.Failover {
		m.promote(s, to)
	}
}

func (m *model) disasters(s *state, to emit) {
	if s.holder != 0 && s.holder <= processes {
		t := *s
		t.holder = 0
		to(action{what: "the server ends the walsender, and the client has not noticed", who: -1, fault: true}, &t)
	}
	if s.slot != noSlot && (s.slot > 0 || s.holder != 0) {
		for back := range s.slot + 1 {
			t := *s
			t.slot, t.holder = back, 0
			to(action{what: fmt.Sprintf("the server crashes, with the slot at %d", back), who: -1, fault: true}, &t)
		}
	}
	if s.producer != 0 {
		t := *s
		t.producer, t.ending = 0, txn{}
		to(action{what: "the coordinator aborts the transaction by its timeout", who: -1, fault: true}, &t)
	}
}

// promote is a failover to a standby that lacks the newest items, or none, and may have no slot. It is not
// counted as one of the faults, but it is never needed for a finish either.
func (m *model) promote(s *state, to emit) {
	for kept := range uint8(len(m.Items)) + 1 {
		slots := []uint8{noSlot, min(s.slot, kept)}
		if slots[1] > 0 {
			slots = append(slots, 0)
		}
		for _, slot := range slots {
			t := *s
			t.fork, t.slot, t.holder, t.dirty = kept+1, slot, 0, true
			for k := range t.seen {
				t.seen[k] = min(t.seen[k], m.rows(uint8(k), kept))
			}
			to(action{what: fmt.Sprintf("a standby is promoted, with %d items and the slot at %d", kept, int8(slot)), who: -1, failover: true}, &t)
		}
	}
}

// land lets late write i arrive. A process's writes arrive in order or not at all.
func (m *model) land(s *state, i int) {
	id := s.late[i]
	m.store(s, id)
	holder := m.mark(id).holder
	n := 0
	for j, other := range s.late {
		if other != 0 && (j > i || m.mark(other).holder != holder) {
			s.late[n] = other
			n++
		}
	}
	clear(s.late[n:])
}

// store appends a record to the checkpoint topic.
func (m *model) store(s *state, id recID) {
	s.topic = m.lib.store(s.topic, id, m.variant == SameKey)
}

// append appends a row to its partition.
func (m *model) append(s *state, r row) {
	if s.gone(r) {
		return // nobody promised anything of it
	}
	k, n := m.key(r), m.place(r)
	switch seen := s.seen[k]; {
	case n == seen+1:
		s.seen[k]++
	case n > seen+1:
		m.fail("row %s of key %c overtakes row %d, which is not in Kafka", r.id(), 'a'+k, seen+1)
	case m.ExactlyOnce:
		m.fail("row %s is visible twice", r.id())
	case !s.dirty:
		m.fail("row %s is in Kafka twice, without a crash or a takeover", r.id())
	}
}

// commit makes a transaction visible.
func (m *model) commit(s *state) {
	for _, r := range s.ending.rows {
		if r != 0 {
			m.append(s, r)
		}
	}
	if id := s.ending.rec; id != 0 {
		if newest := m.lib.read(s.topic).rec; newest != 0 && m.mark(newest).epoch > m.mark(id).epoch {
			m.fail("records of epoch %d become visible behind those of its successor", m.mark(id).epoch)
		}
		m.store(s, id)
	}
	s.ending = txn{}
}
