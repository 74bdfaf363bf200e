package protocol

// check looks at a state by itself.
func (m *model) check(s *state) {
	newest := m.lib.read(s.topic).rec
	if s.slot != noSlot {
		for k := range uint8(keys) {
			if need := m.rows(k, s.slot); s.seen[k] < need {
				m.fail("lost: the slot is confirmed up to item %d, and row %d of key %c is not in Kafka", s.slot, s.seen[k]+1, 'a'+k)
			}
		}
		if newest == 0 && s.slot > 0 || newest != 0 && m.mark(newest).pos < s.slot {
			m.fail("the slot is confirmed up to item %d, and the newest checkpoint is at %d", s.slot, m.mark(newest).pos)
		}
	}
	for i := range s.procs {
		if is, was := m.mark(newest), m.mark(s.procs[i].durable); is.holder == was.holder && is.timeline == was.timeline && is.pos < was.pos {
			m.fail("the checkpoint goes back: its holder has saved item %d, and a start would find %d", was.pos, is.pos)
		}
	}
	for _, id := range s.topic {
		if id != 0 {
			m.checkRecord(s, m.mark(id))
		}
	}
	if m.ExactlyOnce && newest != 0 {
		m.checkTogether(s, m.mark(newest))
	}
}

// each calls f for each row of the present history.
func (m *model) each(s *state, f func(row)) {
	for i := range uint8(len(m.Items)) {
		for n := range m.Items[i] {
			f(newRow(born(s.found(), i+1), i+1, uint8(n)))
		}
	}
}

// checkRecord checks that what a record says is delivered is in Kafka.
func (m *model) checkRecord(s *state, r mark) {
	m.each(s, func(row row) {
		if r.covers(row) && row.born() <= r.timeline && s.seen[m.key(row)] < m.place(row) {
			m.fail("a checkpoint of epoch %d says that row %s is delivered, and it is not in Kafka", r.epoch, row.id())
		}
	})
}

// checkTogether checks that what a read_committed reader sees is what the checkpoint says, no more and no less.
func (m *model) checkTogether(s *state, r mark) {
	m.each(s, func(row row) {
		if !r.covers(row) && s.seen[m.key(row)] >= m.place(row) {
			m.fail("row %s is visible, and the checkpoint that came with it is not", row.id())
		}
	})
}

// finished reports whether nothing is left to do, or only for an operator.
func (m *model) finished(s *state) bool {
	for i := range s.procs {
		if s.procs[i].phase == refused {
			return true
		}
	}
	for k := range uint8(keys) {
		if s.seen[k] < m.rows(k, uint8(len(m.Items))) {
			return false
		}
	}
	return int(s.slot) == len(m.Items)
}
