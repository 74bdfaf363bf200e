package protocol

// A commitState is what a process knows of the transaction that it has asked the coordinator to commit.
type commitState uint8

const (
	idle    commitState = iota // none is under way
	asked                      // the answer is awaited
	unknown                    // nobody knows: the process must fence itself first
	settles                    // it has done that, and must read the checkpoint
)

// fence is InitProducerID: the transactional id belongs to one process from now on, and the transaction
// that was open is aborted. One that the coordinator has begun to commit is committed by now.
func (m *model) fence(s *state, me uint8) { s.producer, s.ending = me, txn{} }

// fenceAndRead leads from the slot to the first record.
func (m *model) fenceAndRead(s *state, i int, do doing) {
	if m.variant == ReadBeforeFence {
		do("fences the transactional id", func(t *state, p *proc) {
			m.fence(t, uint8(i+1))
			p.base = m.lib.read(t.topic).rec
			m.beginFirst(t, i)
		})
		return
	}
	do("reads the checkpoint again", func(t *state, p *proc) {
		m.takeOver(t, i)
		if p.phase == saving {
			m.beginFirst(t, i)
		}
	})
}

// beginFirst sends the record that a process writes when it has the slot, in a transaction of its own.
func (m *model) beginFirst(s *state, i int) {
	p := &s.procs[i]
	p.phase = saving
	if m.variant == TakeOverOutside {
		return
	}
	p.end = asked
	if s.producer == uint8(i+1) {
		s.ending = txn{asked: true, rec: p.save}
	}
}

// transact cuts transactions, and finds out what became of them.
func (m *model) transact(s *state, i int, do doing, fault doing) {
	p, me := &s.procs[i], uint8(i+1)
	sum := &m.cores.summaries[p.core]
	switch p.end {
	case idle:
		if !p.begun || p.phase == saving || p.phase == fencing {
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
			switch {
			case p.phase == saving:
				m.attemptFailed(t, i)
			case m.variant == UnknownIsAborted:
				p.end, p.save = idle, 0
			case m.variant == UnknownIsCommitted:
				m.committed(t, i)
			case m.variant == ReadUnsettled:
				p.end = settles
			default:
				p.end = unknown
			}
		})
	case unknown:
		do("fences itself", func(t *state, p *proc) { m.fence(t, me); p.end = settles })
	case settles:
		do("reads whether the transaction is committed", func(t *state, p *proc) {
			now := m.lib.read(t.topic)
			switch {
			case (m.mark(now.rec).holder != me || now.shared) && m.variant != SettleBlindly:
				m.quit(t, i, starting) // another process has the slot
			case p.save != 0 && now.rec == p.save:
				m.committed(t, i)
			default:
				p.end, p.save = idle, 0
			}
		})
	}
}

// committed is a transaction's good end.
func (m *model) committed(s *state, i int) {
	p := &s.procs[i]
	p.end = idle
	if p.phase == saving {
		m.install(s, i)
		return
	}
	for _, r := range m.cores.summaries[p.core].unacked {
		p.core = m.cores.after(p.core, input{kind: inAck, row: r}).next
	}
	if p.save != 0 {
		p.durable, p.save = p.save, 0
	}
}

// rejected is what becomes of a process that is not the producer any more. If the coordinator has only ended
// its transaction, it may go on.
func (m *model) rejected(s *state, i int, do doing) {
	do("is fenced and ends", func(t *state, _ *proc) {
		if int(t.faults) == m.Faults && t.fork == 0 {
			m.fail("a process is fenced, and nothing had happened")
		}
		m.quit(t, i, starting)
	})
	if s.producer == 0 && s.procs[i].phase != saving {
		do("learns that its transaction was aborted", func(_ *state, p *proc) { p.end = unknown })
	}
}
