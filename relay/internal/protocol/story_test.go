package protocol

import (
	"fmt"
	"strings"
)

// describe is one line about a state, in which process i has the letter names[i].
func (m *model) describe(s *state, names string) string {
	who := func(p uint8) string {
		switch {
		case p == 0:
			return "nobody"
		case p <= processes:
			return names[p-1 : p]
		}
		return "a dead process"
	}
	rec := func(id recID) string {
		if id == 0 || id == old {
			return "-"
		}
		r := m.mark(id)
		text := fmt.Sprintf("epoch %d of %s at %d", r.epoch, who(r.holder), r.pos)
		if r.item != 0 {
			text += fmt.Sprintf(" and %d rows", r.rows)
		}
		return text
	}
	var b strings.Builder
	fmt.Fprintf(&b, "slot at %d held by %s; in Kafka %d of a, %d of b; checkpoint", int8(s.slot), who(s.holder), s.seen[0], s.seen[1])
	for i, id := range s.topic {
		if id != 0 || i == 0 {
			b.WriteString(" " + rec(id))
		}
	}
	for _, id := range s.late {
		if id != 0 {
			b.WriteString(", late " + rec(id))
		}
	}
	if m.ExactlyOnce {
		fmt.Fprintf(&b, "; producer %s", who(s.producer))
		if s.ending.asked {
			fmt.Fprintf(&b, ", ending %s", rec(s.ending.rec))
		}
	}
	for i := range names {
		name := byte('A' + i)
		p := &s.procs[strings.IndexByte(names, name)]
		fmt.Fprintf(&b, "; %c %s", name, phases[p.phase])
		if p.durable != 0 {
			fmt.Fprintf(&b, ", durable %s", rec(p.durable))
		}
		if n := m.cores.summaries[p.core].inFlight; n > 0 {
			fmt.Fprintf(&b, ", %d in flight", n)
		}
		if p.save != 0 {
			fmt.Fprintf(&b, ", saves %s", rec(p.save))
		}
	}
	return b.String()
}
