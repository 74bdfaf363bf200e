package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/lib/attempts"
)

// A schedule decides which messages are handled next, and which offsets may be committed. It starts
// no goroutine, knows no clock and has no lock: its owner calls it from one goroutine at a time.
type schedule struct {
	limit       int // works at the same time
	batch       int // messages of one work
	byPartition bool

	running    int
	partitions map[place]*partition
	ready      []*partition // each has at least one ready lane
	letters    []*lane      // the first message of each becomes a dead letter
}

type place struct {
	topic     string
	partition int32
}

// A partition is what this member knows of a partition between its assignment and its revocation.
type partition struct {
	place
	ctx    context.Context // of the handlers
	cancel context.CancelFunc

	lanes   map[string]*lane
	ready   []*lane
	pending []*item // in the order of the log; the first one is not finished
	bytes   int     // of the messages that are not finished

	next      int64           // offset after the newest message that was received; -1 for none
	position  kgo.EpochOffset // all messages before it are finished; Offset is -1 until one is
	committed int64           // offset of the last commit; -1 for none
	end       int64           // offset of the end of the log; -1 if it is not known

	running int
	closing bool          // nothing more is started
	idle    chan struct{} // closed when closing is set and nothing runs
	paused  bool
}

// A lane has the unfinished messages of one key, in their order. It is busy while its first message
// is ready, is handled, or waits for another attempt.
type lane struct {
	p     *partition
	key   string
	items []*item
	busy  bool
}

// An item is one message on its way.
type item struct {
	msg      inbox.Message
	epoch    int32
	offset   int64
	size     int
	received time.Time
	ctx      context.Context // of the record; may be nil

	failures attempts.Failures
	alone    bool
	done     bool
	verdict  *verdict // not nil: the message becomes a dead letter
}

// A work is what one call of the handler gets: the first messages of some lanes of a partition.
type work struct {
	p     *partition
	lanes []*lane
	items []*item
}

func newPartition(ctx context.Context, at place) *partition {
	p := &partition{
		place: at, lanes: map[string]*lane{}, next: -1, position: kgo.EpochOffset{Epoch: -1, Offset: -1}, committed: -1, end: -1,
		idle: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// add appends the next message of a partition.
func (s *schedule) add(p *partition, it *item) {
	p.pending = append(p.pending, it)
	p.bytes += it.size
	key := string(it.msg.Key)
	if s.byPartition {
		key = ""
	}
	l := p.lanes[key]
	switch {
	case it.msg.Key == nil && !s.byPartition:
		l = &lane{p: p} // it has no order with other messages
	case l == nil:
		l = &lane{p: p, key: key}
		p.lanes[key] = l
	}
	l.items = append(l.items, it)
	if !l.busy {
		s.free(l)
	}
}

// free says that nothing hinders the first message of a lane any longer.
func (s *schedule) free(l *lane) {
	p := l.p
	l.busy = len(l.items) > 0
	switch {
	case !l.busy:
		if p.lanes[l.key] == l {
			delete(p.lanes, l.key)
		}
	case p.closing:
	case l.items[0].verdict != nil:
		s.letters = append(s.letters, l)
	default:
		if p.ready = append(p.ready, l); len(p.ready) == 1 {
			s.ready = append(s.ready, p)
		}
	}
}

// start returns the next work, or nil if there is none or enough is running. Partitions take turns.
func (s *schedule) start() *work {
	for s.running < s.limit && len(s.ready) > 0 {
		p := s.ready[0]
		s.ready = s.ready[1:]
		if p.closing {
			continue
		}
		w := p.take(s.batch)
		if len(p.ready) > 0 {
			s.ready = append(s.ready, p)
		}
		s.running++
		p.running++
		return w
	}
	return nil
}

// take cuts a work from the ready lanes. A message that must be alone comes alone.
func (p *partition) take(room int) *work {
	w := &work{p: p}
	for len(p.ready) > 0 && room > 0 {
		l := p.ready[0]
		n := 0
		for n < min(len(l.items), room) && !l.items[n].alone && l.items[n].verdict == nil {
			n++
		}
		if n == 0 {
			if len(w.items) > 0 {
				break
			}
			n, room = 1, 1
		}
		p.ready = p.ready[1:]
		w.lanes, w.items, room = append(w.lanes, l), append(w.items, l.items[:n]...), room-n
	}
	return w
}

// startLetter returns the next lane whose first message becomes a dead letter, or nil.
func (s *schedule) startLetter() *lane {
	for len(s.letters) > 0 {
		l := s.letters[0]
		s.letters = s.letters[1:]
		if !l.p.closing {
			l.p.running++
			return l
		}
	}
	return nil
}

// finish says that the first messages of these lanes are done for good.
func (s *schedule) finish(lanes []*lane, items []*item) {
	p := lanes[0].p
	for _, it := range items {
		it.done = true
		it.msg, it.ctx = inbox.Message{}, nil
		p.bytes -= it.size
	}
	for _, l := range lanes {
		n := 0
		for n < len(l.items) && l.items[n].done {
			n++
		}
		l.items = l.items[n:]
		s.free(l)
	}
	n := 0
	for n < len(p.pending) && p.pending[n].done {
		p.position = kgo.EpochOffset{Epoch: p.pending[n].epoch, Offset: p.pending[n].offset + 1}
		n++
	}
	p.pending = p.pending[n:]
}

// uncommitted reports whether a message is handled, or in a handler, and is not committed.
func (p *partition) uncommitted() bool {
	return p.running > 0 || p.position.Offset > p.committed || slices.ContainsFunc(p.pending, func(it *item) bool { return it.done })
}

// ended says that a work or a letter of a partition does not run any longer.
func (p *partition) ended() {
	p.running--
	if p.closing && p.running == 0 {
		close(p.idle)
	}
}

// closeDown makes sure that nothing more of the partition is started.
func (p *partition) closeDown() {
	if !p.closing {
		p.closing, p.ready = true, nil
		if p.running == 0 {
			close(p.idle)
		}
	}
}
