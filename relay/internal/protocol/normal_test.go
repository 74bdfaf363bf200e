package protocol

import (
	"cmp"
	"slices"
)

// normalize gives equal states the same form. The processes are interchangeable, and so are the numbers of
// the dead, and epochs count only against the newest one.
func (m *model) normalize(s *state) (swapped bool) {
	var names [16]uint8
	if cmp.Or(cmp.Compare(s.procs[0].phase, s.procs[1].phase), cmp.Compare(s.procs[0].core, s.procs[1].core),
		cmp.Compare(m.mark(s.procs[0].durable).epoch, m.mark(s.procs[1].durable).epoch),
		cmp.Compare(s.procs[0].save, s.procs[1].save), cmp.Compare(s.procs[0].cursor.event, s.procs[1].cursor.event)) > 0 {
		s.procs[0], s.procs[1] = s.procs[1], s.procs[0]
		names[1], names[2] = 2, 1
		swapped = true
	} else {
		names[1], names[2] = 1, 2
	}
	fresh := uint8(3)
	who := func(p *uint8) {
		if *p != 0 && names[*p] == 0 {
			names[*p] = fresh
			fresh++
		}
		*p = names[*p]
	}
	newest := m.mark(s.topic[0]).epoch
	rec := func(id *recID) {
		if *id == 0 || *id == old {
			return
		}
		r := m.mark(*id)
		who(&r.holder)
		if newest > 0 {
			r.epoch = relative(r.epoch, newest)
		}
		*id = m.lib.id(r)
	}
	who(&s.holder)
	for i := range s.topic {
		rec(&s.topic[i])
	}
	slices.SortFunc(s.topic[:], func(a, b recID) int { // 0 comes last
		return cmp.Compare(a-1, b-1)
	})
	n := 0
	for _, id := range s.late {
		if id != 0 && m.mark(id).epoch >= newest { // an older one changes nothing that counts
			s.late[n] = id
			n++
		}
	}
	clear(s.late[n:])
	for i := range s.late[:n] {
		rec(&s.late[i])
	}
	who(&s.producer)
	rec(&s.ending.rec)
	last := m.lib.read(s.topic).rec
	for i := range s.procs {
		p := &s.procs[i]
		if p.phase == waiting || p.phase == fencing || p.phase == reading {
			me := uint8(i + 1)
			if m.mark(last).holder != me && !slices.ContainsFunc(s.late[:], func(id recID) bool { return m.mark(id).holder == me }) {
				// What was read before the slot was taken only counts if it is still the newest.
				m.forget(p, last)
			}
			if p.phase != waiting && s.holder == me {
				p.found = s.found()
			}
		}
		rec(&p.rec)
		rec(&p.base)
		rec(&p.durable)
		rec(&p.save)
		if newest > 0 && p.epoch > 0 {
			p.epoch = relative(p.epoch, newest)
		}
	}
	for i := range s.procs {
		m.settleQueues(s, i)
	}
	m.settleDead(s)
	slices.SortFunc(s.dead[:], func(a, b queues) int {
		for k := range a {
			if c := slices.Compare(b[k][:], a[k][:]); c != 0 {
				return c
			}
		}
		return 0
	})
	return swapped
}

// forget makes all records that have become old while a process waits the same one.
func (m *model) forget(p *proc, newest recID) {
	if p.rec != newest && m.variant != NoReread && m.variant != BelieveEmpty {
		p.rec = old
	}
}

// settleQueues takes the steps of the sink that make no difference any more: to append a row again that the
// partition has, if that is no violation, and to acknowledge a row that an earlier flight has sent.
func (m *model) settleQueues(s *state, i int) {
	for k := range s.procs[i].q {
		q := &s.procs[i].q[k]
		for n, e := range q {
			if e != 0 && e&appended == 0 {
				if !m.noMatter(s, e.row()) {
					break
				}
				q[n] |= appended
			}
		}
		for q[0]&(appended|former) == appended|former {
			q.pop()
		}
	}
}

// settleDead does so for the dead.
func (m *model) settleDead(s *state) {
	for i := range s.dead {
		for k := range s.dead[i] {
			for q := &s.dead[i][k]; q[0] != 0 && m.noMatter(s, q[0].row()); {
				q.pop()
			}
		}
	}
}

func (m *model) noMatter(s *state, r row) bool {
	return s.gone(r) || s.dirty && m.place(r) <= s.seen[m.key(r)]
}

// relative is an epoch as it counts against the newest one of the topic, which is 2 then. What is older is
// all the same: its records are never read again.
func relative(epoch, newest uint8) uint8 { return max(epoch+2, newest+1) - newest }
