package protocol

// A commitState is what a process knows of the transaction that it has asked the coordinator to commit.
type commitState uint8

const (
	idle  commitState = iota // none is under way
	asked                    // the answer is awaited
)

// fence is InitProducerID: the transactional id belongs to one process from now on, and the transaction
// that was open is aborted. One that the coordinator has begun to commit is committed by now.
func (m *model) fence(s *state, me uint8) { s.producer, s.ending = me, txn{} }

// fences is the step between the slot and the second read. Until then, what was sent before may still be committed. Afterwards it may be
// another process's to deliver, until the checkpoint has been read.
func (m *model) fences(s *state, i int, do doing) {
	do("fences the transactional id", func(t *state, p *proc) {
		if m.variant != ReadUnsettled || !p.begun {
			m.fence(t, uint8(i+1))
		}
		p.end = idle
		p.base = m.lib.read(t.topic).rec
		if m.variant == ReadBeforeFence {
			p.phase = saving
			return
		}
		p.phase, p.frozen, p.save = reading, p.begun && m.variant != KeepList, 0
	})
}

// transact cuts transactions, and finds out what became of them.
func (m *model) transact(s *state, i int, do doing, fault doing) {
	p, me := &s.procs[i], uint8(i+1)
	sum := &m.cores.summaries[p.core]
	switch p.end {
	case idle:
		if !p.begun || p.phase == saving || p.phase == reading {
			return
		}
		if id, ahead := m.draft(p); !p.frozen && (ahead || sum.inFlight > 0) && p.save == 0 {
			do("commits a transaction", func(t *state, p *proc) {
				if m.variant != CheckpointOutside {
					p.save = id
				}
				p.end = asked
				if t.producer == me {
					t.ending = txn{asked: true, rec: p.save}
					copy(t.ending.rows[:], sum.unacked)
				}
			})
		}
		if sum.inFlight > 0 && s.producer != me {
			m.rejected(s, i, do)
		}
	case asked:
		switch {
		case s.producer != me:
			m.rejected(s, i, do)
		case !s.ending.asked:
			do("the transaction is committed", func(t *state, _ *proc) { m.committed(t, i) })
		}
		fault("nobody knows whether the transaction is committed", func(t *state, p *proc) {
			switch m.variant {
			case UnknownIsAborted:
				p.end, p.save = idle, 0
			case UnknownIsCommitted:
				m.committed(t, i)
			default:
				m.renew(t, i)
			}
		})
	}
}

// renew ends the session of a process that can't commit any more. What became of its transaction is found out with the slot, behind a fence.
func (m *model) renew(s *state, i int) {
	p := &s.procs[i]
	if p.phase == draining {
		m.quit(s, i, starting)
		return
	}
	m.free(s, uint8(i+1))
	m.disconnect(p)
	p.end, p.save, p.frozen = idle, 0, true
}

// committed is a transaction's good end.
func (m *model) committed(s *state, i int) {
	p := &s.procs[i]
	p.end = idle
	for _, r := range m.cores.summaries[p.core].unacked {
		p.core = m.cores.after(p.core, input{kind: inAck, row: r}).next
	}
	if p.save != 0 {
		p.durable, p.save = p.save, 0
	}
}

// rejected is what becomes of a process that is not the producer any more.
func (m *model) rejected(s *state, i int, do doing) {
	do("is fenced and ends", func(t *state, _ *proc) {
		if int(t.faults) == m.Faults && t.fork == 0 {
			m.fail("a process is fenced, and nothing had happened")
		}
		m.quit(t, i, starting)
	})
	do("learns that its transaction was aborted", func(t *state, _ *proc) { m.renew(t, i) })
}
