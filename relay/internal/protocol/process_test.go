package protocol

import "slices"

// process is what process i can do, and what can happen to it.
func (m *model) process(s *state, i int, to emit) {
	p, me := &s.procs[i], uint8(i+1)
	do := func(what string, f func(t *state, p *proc)) {
		t := *s
		f(&t, &t.procs[i])
		to(action{what: what, who: i}, &t)
	}
	fault := func(what string, f func(t *state, p *proc)) {
		if s.faults > 0 {
			t := *s
			f(&t, &t.procs[i])
			to(action{what: what, who: i, fault: true}, &t)
		}
	}
	switch p.phase {
	case refused:
		return
	case starting:
		do("reads the checkpoint", func(t *state, p *proc) {
			p.phase, p.rec = waiting, m.lib.read(t.topic).rec
			if m.variant == FenceStandby {
				m.fence(t, me)
			}
		})
		if s.topic[0] != 0 && m.variant == BelieveEmpty { // otherwise an empty answer is an error, and the attempt begins anew
			fault("reads the checkpoint, and gets an empty answer", func(_ *state, p *proc) { p.phase, p.rec = waiting, 0 })
		}
	case waiting:
		m.wait(s, i, do)
	case fencing:
		m.fences(s, i, do)
	case reading:
		do("reads the checkpoint again", func(t *state, _ *proc) { m.takeOver(t, i) })
	case saving:
		do("its first record is durable", func(t *state, p *proc) { m.store(t, p.save); m.obsolete(t, me); m.install(t, i) })
		fault("nobody knows whether its first record is durable", func(t *state, _ *proc) { m.attemptFailed(t, i) })
	case streaming, draining:
		m.stream(s, i, do)
		if p.phase == streaming {
			fault("is asked to stop", func(_ *state, p *proc) { p.phase = draining })
		}
	}
	if m.ExactlyOnce {
		m.transact(s, i, do, fault)
	}
	if p.begun && p.phase != saving && (!m.ExactlyOnce || m.variant == CheckpointOutside) {
		m.checkpoint(s, i, do, fault)
	}
	for k := range p.q {
		m.deliver(p, k, do)
	}
	if p.open && s.holder != me {
		do("notices that the session is lost", func(t *state, p *proc) {
			switch p.phase {
			case saving:
				m.attemptFailed(t, i)
			case draining:
				p.open, p.cursor = false, cursor{}
			default:
				m.disconnect(p)
			}
		})
	}
	fault("is killed", func(t *state, _ *proc) { t.dirty = true; m.end(t, i, starting) })
}

// disconnect leaves a process without a session. What is in flight stays in flight.
func (m *model) disconnect(p *proc) {
	p.phase, p.open, p.cursor, p.found, p.own, p.rec, p.base = starting, false, cursor{}, found{}, false, 0, 0
}

// end ends a process. What it has sent may still arrive, and the server may think that it is still there.
func (m *model) end(s *state, i int, to phase) {
	me, ghost := uint8(i+1), uint8(15)
	rename := func(id *recID) {
		if r := m.mark(*id); *id != 0 && r.holder == me {
			r.holder = ghost
			*id = m.lib.id(r)
		}
	}
	p := &s.procs[i]
	if m.plain(p) {
		m.delay(s, p.save)
	}
	if p.q != (queues{}) {
		for k := range p.q {
			for p.q[k][0]&appended != 0 {
				p.q[k].pop()
			}
			for n := range p.q[k] {
				p.q[k][n] &^= former
			}
		}
	}
	if p.q != (queues{}) {
		n := 0
		for s.dead[n] != (queues{}) {
			n++
		}
		s.dead[n] = p.q
	}
	*p = proc{phase: to}
	if s.holder == me {
		s.holder = ghost
	}
	if s.producer == me {
		s.producer = ghost
	}
	for n := range s.topic {
		rename(&s.topic[n])
	}
	for n := range s.late {
		rename(&s.late[n])
	}
	rename(&s.ending.rec)
	for n := range s.procs {
		rename(&s.procs[n].rec)
		rename(&s.procs[n].base)
	}
}

// quit is an end that closes the session.
func (m *model) quit(s *state, i int, to phase) {
	m.free(s, uint8(i+1))
	m.end(s, i, to)
}

// plain reports whether the record that a process writes is in no transaction.
func (m *model) plain(p *proc) bool {
	return !m.ExactlyOnce || p.phase == saving || m.variant == CheckpointOutside
}

// free gives the slot back, if the process has it.
func (m *model) free(s *state, me uint8) {
	if s.holder == me {
		s.holder = 0
	}
}

// delay leaves a write on its way: it may still arrive.
func (m *model) delay(s *state, id recID) {
	if id == 0 {
		return
	}
	for i := range s.late {
		if s.late[i] == 0 {
			s.late[i] = id
			return
		}
	}
	panic("protocol: too many late writes")
}

// obsolete forgets the earlier writes of a process: once a later one has arrived, they never do.
func (m *model) obsolete(s *state, me uint8) {
	n := 0
	for _, id := range s.late {
		if id != 0 && m.mark(id).holder != me {
			s.late[n] = id
			n++
		}
	}
	clear(s.late[n:])
}

type doing func(what string, f func(*state, *proc))

// wait is opener.try up to the moment when the process has the slot.
func (m *model) wait(s *state, i int, do doing) {
	p := &s.procs[i]
	v := verdict{}
	if p.rec != old {
		v = m.lib.judge(p.rec, s.found())
	}
	if p.rec == old || v.refused != "" {
		do("looks at the slot", func(t *state, p *proc) {
			if p.rec != m.lib.read(t.topic).rec && m.variant != NoReread {
				m.disconnect(p) // another process moved the checkpoint
				return
			}
			m.refuse(t, i, p.rec)
		})
	}
	if v.refused != "" || s.holder != 0 {
		return
	}
	do("takes the slot", func(t *state, p *proc) {
		p.found, p.open = t.found(), true
		at := max(v.start, t.slot)
		if m.variant == StartAtSlot {
			at = t.slot
		}
		p.cursor = cursor{item: at + 1}
		t.holder = uint8(i + 1)
		p.base = m.lib.read(t.topic).rec
		switch {
		case !m.ExactlyOnce:
			p.phase = reading
		case m.variant == ReadBeforeFence:
			m.takeOver(t, i)
			if p.phase == saving {
				p.phase = fencing
			}
		default:
			p.phase = fencing
		}
	})
}

// refuse ends a process because events may be missing. In this world only a failover is a reason.
func (m *model) refuse(s *state, i int, rec recID) {
	r := m.mark(rec)
	if kept := s.fork - 1; s.fork == 0 || s.slot != noSlot && (rec == 0 || r.timeline == 2 || max(r.pos, r.item) <= kept) {
		m.fail("an honest start is refused: %s", m.lib.judge(rec, s.found()).refused)
	}
	m.quit(s, i, refused)
}

// takeOver is opener.takeOver up to the write.
func (m *model) takeOver(s *state, i int) {
	p, me := &s.procs[i], uint8(i+1)
	now := m.lib.read(s.topic)
	held, rec := now.rec, p.rec
	p.own = held != 0 && m.mark(held).holder == me && !now.shared
	switch {
	case m.variant == NoReread || m.variant == BelieveEmpty && rec == 0:
		held = rec
	case p.own && (m.progress(rec, held) || m.variant == LateIsProgress):
		rec = held
	case rec != held:
		m.free(s, me)
		m.disconnect(p)
		return
	}
	v := m.lib.judge(rec, p.found)
	if v.refused != "" {
		m.refuse(s, i, rec)
		return
	}
	if m.variant == StartAtSlot {
		v.start = p.found.slot
	}
	f := following{holder: me, at: v.start, found: p.found, base: rec, held: held}
	p.save = m.lib.take(f)
	p.found.slot = 0 // nobody asks for it any more
	if m.variant == StartAtSlot {
		r := m.mark(p.save)
		r.place = place{pos: v.start}
		p.save = m.lib.id(r)
	}
	p.phase = saving
	s.dirty = s.dirty || p.begun && !p.own // another process had the slot, or had begun to take it
	for n := range s.procs {               // a process that lost its session may have delivered more than it has saved
		s.dirty = s.dirty || n != i && (s.procs[n].begun || s.procs[n].phase == saving)
	}
}

// progress reports whether a process's own record says how far it has come since it read another one: both have the same key. A first record
// that it had given up, and that has arrived since, doesn't say that. Others may have read the checkpoint before.
func (m *model) progress(read, now recID) bool {
	return read > old && m.mark(read).epoch == m.mark(now).epoch && m.mark(read).holder == m.mark(now).holder
}

// sameHistory is Identity.SameHistory of the former session and this one.
func (m *model) sameHistory(p *proc) bool { return m.mark(p.durable).timeline == p.found.timeline }

// attempted is connector.attempted.
func (m *model) attempted(p *proc) {
	if epoch := m.mark(p.save).epoch; p.begun && epoch > p.epoch && m.variant != KeepEpoch {
		p.epoch = epoch
		p.contested = p.contested || !p.own
		p.frozen = p.frozen || !p.own || !m.sameHistory(p)
	}
}

// attemptFailed gives up a session whose first record may be durable or not.
func (m *model) attemptFailed(s *state, i int) {
	p := &s.procs[i]
	m.attempted(p)
	m.delay(s, p.save)
	p.save = 0
	m.free(s, uint8(i+1))
	m.disconnect(p)
}

// install is connector.install, and streaming.resume.
func (m *model) install(s *state, i int) {
	p := &s.procs[i]
	m.attempted(p)
	resume := p.begun && !m.ExactlyOnce && m.sameHistory(p) && (p.own && !p.contested || m.variant == IgnoreOthers)
	p.durable, p.epoch, p.save = p.save, m.mark(p.save).epoch, 0
	in := input{kind: inReconnect}
	if !resume {
		in = input{kind: inStart, at: m.mark(p.durable).place}
		if m.variant == IgnoreNext {
			in.at = place{pos: in.at.pos}
		}
		for k := range p.q {
			for n := range p.q[k] {
				if p.q[k][n] != 0 {
					p.q[k][n] |= former
				}
			}
		}
	}
	p.core = m.cores.after(p.core, in).next
	p.phase, p.begun, p.contested, p.frozen, p.rec, p.own = streaming, true, false, false, 0, false
}

// stream reads, and confirms. What a server has sent before the session ended may be read afterwards.
func (m *model) stream(s *state, i int, do doing) {
	p := &s.procs[i]
	if p.phase == streaming && p.open && int(p.cursor.item) <= len(m.Items) && m.room(p) {
		do("reads", func(_ *state, p *proc) { m.read(p) })
	}
	pos := m.mark(p.durable).pos
	if m.variant == ConfirmEarly {
		pos = m.cores.summaries[p.core].safe
	}
	if p.open && s.holder == uint8(i+1) && pos > s.slot {
		do("confirms", func(t *state, _ *proc) { t.slot = pos })
	}
	if p.phase == draining && m.settled(p) {
		do("ends", func(t *state, _ *proc) { m.quit(t, i, starting) })
	}
}

// room reports whether the process may read on: loop.full. While a transaction is being committed, the
// model reads nothing.
func (m *model) room(p *proc) bool {
	for k := range p.q {
		if p.q[k].full() {
			return false
		}
	}
	return p.end == idle && m.cores.summaries[p.core].inFlight < m.Window
}

// read takes the next event. A Begin comes with the first row.
func (m *model) read(p *proc) {
	item, n := p.cursor.item, p.cursor.event
	rows := uint8(len(m.Items[item-1]))
	feed := func(in input) row {
		e := m.cores.after(p.core, in)
		if e.err != "" {
			m.fail("item %d, event %d: %s", item, n, e.err)
		}
		p.core = e.next
		return e.send
	}
	switch {
	case rows == 0:
		feed(input{kind: inIdle, item: item})
	case n == rows:
		feed(input{kind: inCommit, item: item})
	default:
		if n == 0 {
			feed(input{kind: inBegin, item: item})
		}
		if r := feed(input{kind: inRow, row: newRow(born(p.found, item), item, n)}); r != 0 {
			m.send(p, r)
		}
	}
	if p.cursor.event++; n == rows {
		p.cursor = cursor{item: item + 1}
	}
}

// send hands a row to the sink. In exactly_once it belongs to the transaction that is open.
func (m *model) send(p *proc, r row) {
	if p.base != 0 && m.mark(p.base).covers(r) && m.mark(p.base).timeline >= r.born() {
		m.fail("row %s is sent again, and the checkpoint said that it is delivered when the slot was taken", r.id())
	}
	if !m.ExactlyOnce {
		p.q[m.key(r)].push(entry(r))
	}
}

// deliver is the sink and the broker. A batch carries its number, so a second copy of it changes nothing:
// a lost answer is an answer that takes its time.
func (m *model) deliver(p *proc, k int, do doing) {
	q := &p.q[k]
	for n, e := range q {
		if e != 0 && e&appended == 0 {
			do("a record is appended", func(t *state, p *proc) {
				m.append(t, e.row())
				p.q[k][n] |= appended
			})
			break
		}
	}
	if e := q[0]; e&appended != 0 {
		do("a record is acknowledged", func(_ *state, p *proc) {
			p.q[k].pop()
			if e&former == 0 {
				p.core = m.cores.after(p.core, input{kind: inAck, row: e.row()}).next
			}
		})
		if m.variant == NoSequence {
			do("a record is sent again, as its answer was lost", func(t *state, _ *proc) { m.append(t, e.row()) })
		}
	}
}

// draft is the record that the process would write now, and whether it says more than the durable one.
func (m *model) draft(p *proc) (recID, bool) {
	sum := m.cores.summaries[p.core]
	at := sum.draft
	switch {
	case m.ExactlyOnce && m.variant != CheckpointOutside || m.variant == CheckpointEarly:
		at = sum.all
	case p.phase == draining:
		at = sum.last
	}
	was := m.mark(p.durable)
	now := mark{epoch: p.epoch, holder: was.holder, timeline: was.timeline, place: at}
	return m.lib.id(now), at.pos > was.pos || at.item != 0 && at != was.place
}

// checkpoint is the checkpointer.
func (m *model) checkpoint(s *state, i int, do doing, fault doing) {
	p := &s.procs[i]
	if p.save == 0 && !p.frozen {
		if id, ahead := m.draft(p); ahead {
			do("writes a checkpoint", func(_ *state, p *proc) {
				if u := m.cores.summaries[p.core].unacked; m.variant != CheckpointEarly && slices.ContainsFunc(u, m.mark(id).covers) {
					m.fail("the checkpoint covers a row that is not acknowledged")
				}
				p.save = id
			})
		}
	}
	if p.save != 0 && p.end == idle {
		do("the checkpoint is durable", func(t *state, p *proc) {
			m.store(t, p.save)
			m.obsolete(t, uint8(i+1))
			if m.mark(p.save).epoch == p.epoch {
				p.durable = p.save
			}
			p.save = 0
		})
		fault("nobody knows whether the checkpoint is durable", func(t *state, p *proc) { m.delay(t, p.save); p.save = 0 })
	}
}

// settled reports whether a process that drains may end.
func (m *model) settled(p *proc) bool {
	if p.save != 0 || p.end != idle || m.cores.summaries[p.core].inFlight > 0 {
		return false
	}
	_, ahead := m.draft(p)
	return p.frozen || !ahead
}
