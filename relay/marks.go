package relay

import (
	"time"

	"github.com/walpost/walpost/cdc"
)

const (
	genShift = 48 // of a ticket's Tx: above it the generation of the tracker, below it the tracker's own number
	maxTx    = 1<<genShift - 1
)

// A mark remembers where a transaction that is not safe yet began, to say what comes again.
type mark struct {
	tx    uint64
	begin cdc.Position
	sent  uint64 // records sent before it
}

// marks are the transactions that are not safe yet and gave at least one record, oldest first.
type marks struct {
	all  []mark
	head int
	sent uint64 // records in all
}

func (m *marks) len() int { return len(m.all) - m.head }

// add counts a record of transaction tx.
func (m *marks) add(tx uint64, begin cdc.Position) {
	if n := len(m.all); n == m.head || m.all[n-1].tx != tx {
		m.all = append(m.all, mark{tx: tx, begin: begin, sent: m.sent})
	}
	m.sent++
}

// drop forgets what is safe: safe is the end of a transaction, or a position between two.
func (m *marks) drop(safe cdc.Position) {
	for m.head < len(m.all) && m.all[m.head].begin < safe {
		m.head++
	}
	if m.head > len(m.all)/2 {
		n := copy(m.all, m.all[m.head:])
		m.all, m.head = m.all[:n], 0
	}
}

// safe is how many of the records sent are of transactions that are safe.
func (m *marks) safe() uint64 {
	if m.len() == 0 {
		return m.sent
	}
	return m.all[m.head].sent
}

// An edge makes few log lines of a repeated fault: when it begins, every minute while it lasts, when it is over.
type edge struct {
	since, logged time.Time
	times         int
}

func (e *edge) fault(now time.Time, log func(times int, since time.Duration)) {
	if e.times++; e.times == 1 {
		e.since = now
	} else if now.Sub(e.logged) < time.Minute {
		return
	}
	e.logged = now
	log(e.times, now.Sub(e.since))
}

func (e *edge) over(now time.Time, log func(times int, since time.Duration)) {
	if e.times > 0 {
		log(e.times, now.Sub(e.since))
		*e = edge{}
	}
}
