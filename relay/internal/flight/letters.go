package flight

import "github.com/walpost/walpost/cdc"

// Letters are the letters of parked events of a flight that are not both acknowledged and read back. Until then no position passes the
// event of a letter: the letter may turn out to be void, because another process holds the slot.
type Letters struct {
	tokens  map[place]string
	waiting map[string]*letter // by token
}

// A place is that of an event in what is read now.
type place struct {
	commit cdc.Position
	row    uint32
}

type letter struct {
	place
	ticket      cdc.Ticket
	acked, back bool
}

// Len is how many letters are waited for.
func (l *Letters) Len() int { return len(l.waiting) }

// Expect adds the letter of event number row of the transaction at commit, which was sent.
func (l *Letters) Expect(token string, commit cdc.Position, row int) {
	if l.waiting == nil {
		l.tokens, l.waiting = map[place]string{}, map[string]*letter{}
	}
	at := place{commit, uint32(row)}
	l.tokens[at], l.waiting[token] = token, &letter{place: at}
}

// Acked notes that a record of the topic of parked events was acknowledged. known says that it is a letter that is waited for, and
// whole that the letter was read back before.
func (l *Letters) Acked(t cdc.Ticket) (known, whole bool) {
	token, known := l.tokens[place{t.Commit, t.Row}]
	if !known {
		return false, false
	}
	w := l.waiting[token]
	w.acked, w.ticket = true, t
	return true, l.whole(token, w)
}

// Back notes that a letter was read back. whole says that it is waited for and was acknowledged before, with ticket.
func (l *Letters) Back(token string) (ticket cdc.Ticket, whole bool) {
	w := l.waiting[token]
	if w == nil {
		return ticket, false
	}
	w.back = true
	return w.ticket, l.whole(token, w)
}

func (l *Letters) whole(token string, w *letter) bool {
	if !w.acked || !w.back {
		return false
	}
	delete(l.waiting, token)
	delete(l.tokens, w.place)
	return true
}
