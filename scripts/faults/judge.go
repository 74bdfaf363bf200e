package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/ledger"
)

// A Judge decides whether one run kept the promises. It compares what the writers committed, what an independent
// consumer received, and which positions the slot confirmed. It shares no code with a relay.
//
// The ledger finds lost, invented, reordered, moved and changed events and replays with holes. The judge adds what needs
// time and positions: how far the slot may be, and how many duplicates a crash may cause.
type Judge struct {
	Window      int  // most events in flight; a crash may repeat as many, and what came within slack before it
	ExactlyOnce bool // no duplicates at all: the records are from a read_committed consumer
	Moves       bool // the scenario changes the number of partitions, after which keys are elsewhere
	FromTable   bool // rows are read from the table, too: these may come again alone and with one header more
	Late        bool // a frozen relay may send what it had before its successor's records, once more

	ledger *ledger.Ledger

	mu       sync.Mutex
	ends     map[string][]end // of each key, ascending
	txs      int
	rows     map[string]keyed     // by event id
	appended map[string]time.Time // of first occurrences, on topics with the broker's time
	letters  map[string]bool      // ids of dead letters
	arrivals []time.Time
	samples  []sample
	crashes  []time.Time
	saves    []time.Time // when checkpoints were written, ascending
}

type (
	// An end is a position that lies behind the commit of a key's events up to number n.
	end struct {
		n   int64
		lsn uint64
		tx  int
	}
	keyed struct {
		key string
		n   int64
	}
	sample struct {
		at        time.Time // when the answer had come
		confirmed uint64
		slot      int // counts slots and servers that were made anew: their positions may be lower
	}
)

// An event that was acknowledged within slack before a crash may lack a checkpoint, or one that arrived after the newest checkpoint
// if that is older. The consumer may be late by some of the other.
const (
	slack = 5 * time.Second
	late  = time.Second
)

// NewJudge returns a judge of a relay with so many events in flight.
func NewJudge(window int, exactlyOnce bool) *Judge {
	l := ledger.New()
	l.Wire = !exactlyOnce // exactly_once fences it
	return &Judge{
		Window: window, ExactlyOnce: exactlyOnce, ledger: l, ends: map[string][]end{}, rows: map[string]keyed{},
		appended: map[string]time.Time{}, letters: map[string]bool{},
	}
}

// Wrote enters the highest number of each key in a transaction, and a position behind its commit.
func (j *Judge) Wrote(numbers map[string]int64, behind uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.txs++
	for key, n := range numbers {
		j.ends[key] = append(j.ends[key], end{n, behind, j.txs})
	}
}

// Commit enters an event that the table has: number n of its key, from 1 without gaps.
func (j *Judge) Commit(id, key string, n int64) {
	j.ledger.Commit(id, key, n)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rows[id] = keyed{key, n}
}

// Observe enters the next record of a partition. appended is the broker's time of the record, or zero if the topic has the
// producer's.
func (j *Judge) Observe(r ledger.Record, now, appended time.Time) {
	j.ledger.Observe(r)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.arrivals = append(j.arrivals, now)
	if _, again := j.appended[r.ID]; !again && !appended.IsZero() {
		j.appended[r.ID] = appended
	}
}

// Letter enters a dead letter.
func (j *Judge) Letter(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.letters[id] = true
}

// Confirmed enters a sample of the slot's confirmed position.
func (j *Judge) Confirmed(at time.Time, lsn uint64, slot int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.samples = append(j.samples, sample{at, lsn, slot})
}

// Saved notes that a checkpoint was written.
func (j *Judge) Saved(at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.saves = append(j.saves, at)
}

// Crash notes that a relay was killed, or taken its slot.
func (j *Judge) Crash(at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.crashes = append(j.crashes, at)
}

// Arrived is the number of records so far.
func (j *Judge) Arrived() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.arrivals)
}

// Missing is how many committed events have neither arrived nor become a dead letter.
func (j *Judge) Missing() int { return max(0, j.ledger.Missing()-j.buried()) }

// buried is how many committed events have a letter and no record.
func (j *Judge) buried() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id := range j.letters {
		if _, ok := j.rows[id]; ok && j.ledger.Seen(id) == 0 {
			n++
		}
	}
	return n
}

// Forget removes what was entered so far. An event of before that arrives again counts as invented.
func (j *Judge) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ledger.Reset()
	j.ends, j.rows, j.appended, j.letters = map[string][]end{}, map[string]keyed{}, map[string]time.Time{}, map[string]bool{}
	j.arrivals, j.samples, j.crashes, j.saves = nil, nil, nil, nil
}

// A Verdict is what a judge found. Broken has each broken promise once, with its first examples.
type Verdict struct {
	Committed, Lost, Reordered, Duplicates int
	Late                                   int // written into a successor's re-run: allowed
	Broken                                 []Breach
}

// A Breach is a promise that was broken. Rule is its short name.
type Breach struct{ Rule, What string }

func (v *Verdict) breaks(rules ...string) bool {
	return slices.ContainsFunc(v.Broken, func(b Breach) bool { return slices.Contains(rules, b.Rule) })
}

func (v *Verdict) String() string {
	if len(v.Broken) == 0 {
		return fmt.Sprintf("kept: %d committed, %d duplicates", v.Committed, v.Duplicates)
	}
	var b strings.Builder
	for _, br := range v.Broken {
		fmt.Fprintf(&b, "%s: %s\n", br.Rule, br.What)
	}
	return strings.TrimSpace(b.String())
}

// Judge compares everything that was entered.
func (j *Judge) Judge() Verdict {
	rep := j.ledger.Check()
	buried := j.buried()
	v := Verdict{Committed: rep.Committed, Lost: max(0, rep.Lost-buried), Reordered: rep.Disordered, Duplicates: rep.Duplicates, Late: rep.Late}
	broken := func(rule string, n int, what string) {
		if n > 0 {
			v.Broken = append(v.Broken, Breach{rule, fmt.Sprintf("%d events %s; %s", n, what, strings.Join(rep.Examples, "; "))})
		}
	}
	broken("lost", v.Lost, "are committed and neither arrived nor have a dead letter")
	broken("invented", rep.Invented, "arrived and were never committed")
	broken("order", rep.Disordered, "came before an earlier one of their key")
	if !j.FromTable && !j.Late && !j.Moves {
		broken("replay", rep.Scattered, "came again alone, not as part of a contiguous run")
	}
	if !j.FromTable && !j.Moves {
		broken("identical", rep.Changed, "came again with other bytes or on another partition")
	}
	if !j.Moves {
		broken("partition", rep.Moved, "have a key that is on two partitions")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if most := j.mayRepeat(); rep.Duplicates > most && !j.FromTable {
		broken("duplicates", rep.Duplicates, fmt.Sprintf("came again, and after %d crashes %d may", len(j.crashes), most))
	}
	v.Broken = append(v.Broken, j.positions()...)
	return v
}

// mayRepeat is how many duplicates the crashes explain: none without a crash.
func (j *Judge) mayRepeat() (most int) {
	if j.ExactlyOnce {
		return 0
	}
	for _, at := range j.crashes {
		most += j.Window
		from := at.Add(-slack)
		if i, _ := slices.BinarySearchFunc(j.saves, at, time.Time.Compare); i > 0 && j.saves[i-1].Add(-late).Before(from) {
			from = j.saves[i-1].Add(-late)
		}
		for _, a := range j.arrivals {
			if a.After(from) && a.Before(at.Add(late)) {
				most++
			}
		}
	}
	return most
}

// end is what is known of the transaction of an event. The answer to its commit may have been lost.
func (j *Judge) end(k keyed) (e end, ok bool) {
	ends := j.ends[k.key]
	i, _ := slices.BinarySearchFunc(ends, k.n, func(e end, n int64) int { return cmp.Compare(e.n, n) })
	if i == len(ends) {
		return end{}, false
	}
	return ends[i], true
}

// Torn is how many crashes came when a part of a transaction was in Kafka.
func (j *Judge) Torn() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	type span struct{ first, last time.Time }
	spans := map[int]span{}
	for id, at := range j.appended {
		k := j.rows[id]
		e, ok := j.end(k)
		if !ok {
			continue
		}
		s, ok := spans[e.tx]
		if !ok {
			s = span{at, at}
		}
		if at.Before(s.first) {
			s.first = at
		}
		if at.After(s.last) {
			s.last = at
		}
		spans[e.tx] = s
	}
	for _, crash := range j.crashes {
		for _, s := range spans {
			if s.first.Before(crash) && s.last.After(crash) {
				n++
				break
			}
		}
	}
	return n
}

// positions judges the samples: a confirmed position never goes back, and what lies before it is in Kafka.
func (j *Judge) positions() (all []Breach) {
	type row struct {
		lsn uint64
		at  time.Time
		id  string
	}
	var rows []row // of which both the end and the broker's time are known, or that are lost
	for id, k := range j.rows {
		e, ok := j.end(k)
		if !ok || j.letters[id] {
			continue
		}
		if at, ok := j.appended[id]; ok {
			rows = append(rows, row{e.lsn, at, id})
		} else if j.ledger.Seen(id) == 0 {
			rows = append(rows, row{e.lsn, time.UnixMilli(math.MaxInt32 * 1000), id})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.lsn, b.lsn) })
	for i := 1; i < len(rows); i++ { // each has the latest time of those up to it
		if rows[i].at.Before(rows[i-1].at) {
			rows[i].at, rows[i].id = rows[i-1].at, rows[i-1].id
		}
	}
	early, back := 0, 0
	for i, s := range j.samples {
		if i > 0 && s.slot == j.samples[i-1].slot && s.confirmed < j.samples[i-1].confirmed {
			if back++; back == 1 {
				all = append(all, Breach{"backwards", fmt.Sprintf("the slot went from %X back to %X", j.samples[i-1].confirmed, s.confirmed)})
			}
		}
		n, _ := slices.BinarySearchFunc(rows, s.confirmed+1, func(r row, lsn uint64) int { return cmp.Compare(r.lsn, lsn) })
		if n == 0 || !rows[n-1].at.Truncate(time.Millisecond).After(s.at) {
			continue
		}
		if early++; early == 1 {
			all = append(all, Breach{"early", fmt.Sprintf("the slot confirmed %X %s before event %s was in Kafka", s.confirmed, rows[n-1].at.Sub(s.at).Round(time.Millisecond), rows[n-1].id)})
		}
	}
	return all
}
