package protocol

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/relay/internal/flight"
)

// A coreID stands for what a process remembers of its stream: the real flight.Progress and flight.Flight,
// with its checkpoint.Tracker, in one of their states. The model runs the real code once for each pair of
// a state and an input, and looks the result up afterwards.
type coreID uint16

// A core is the real code.
type core struct {
	start    place
	progress flight.Progress
	flight   flight.Flight
	sent     []sending // in order
}

type sending struct {
	row    row
	ticket cdc.Ticket
	acked  bool
}

// An input is what happens to a core.
type input struct {
	kind inputKind
	row  row   // of inRow and inAck
	item uint8 // of inBegin, inCommit and inIdle
	at   place // of inStart
}

type inputKind uint8

const (
	inStart     inputKind = iota // newStreaming
	inReconnect                  // another session on the same history
	inBegin
	inRow
	inCommit
	inIdle
	inAck
)

// An effect is what a core makes of an input.
type effect struct {
	next coreID
	send row // to deliver; 0 for none
	err  string
}

// A summary is what the model asks of a core.
type summary struct {
	safe     uint8 // Tracker.Safe
	inFlight int
	unacked  []row
	// What a checkpoint says: of what is acknowledged; at the end of a run; and as if all were acknowledged.
	draft, last, all place
}

// cores has one entry for each distinct core: how it came about, and what it says.
type cores struct {
	m         *model
	ids       map[string]coreID
	histories [][]input
	summaries []summary
	effects   map[coreInput]effect
}

type coreInput struct {
	id coreID
	in input
}

func newCores(m *model) *cores {
	return &cores{m: m, ids: map[string]coreID{}, histories: [][]input{nil}, summaries: []summary{{}}, effects: map[coreInput]effect{}}
}

// after gives the effect of an input. A core of 0 has received nothing.
func (c *cores) after(id coreID, in input) effect {
	at := coreInput{id, in}
	if e, ok := c.effects[at]; ok {
		return e
	}
	var history []input
	if in.kind != inStart {
		history = c.histories[id]
	}
	history = append(slices.Clone(history), in)
	var e effect
	core := c.replay(history, &e)
	key := dump(core)
	next, ok := c.ids[key]
	if !ok {
		next = coreID(len(c.histories))
		if int(next) != len(c.histories) {
			panic("protocol: too many cores")
		}
		c.ids[key] = next
		c.histories = append(c.histories, history)
		c.summaries = append(c.summaries, c.summarize(core, history))
	}
	e.next = next
	c.effects[at] = e
	return e
}

func (c *cores) replay(history []input, last *effect) (r *core) {
	r = new(core)
	defer func() {
		if p := recover(); p != nil {
			last.err = fmt.Sprintf("panic: %v after %+v", p, history)
		}
	}()
	for _, in := range history {
		*last = effect{}
		if err := r.apply(c.m, in, last); err != nil {
			last.err = err.Error()
		}
	}
	return r
}

// apply does what relay/stream.go does.
func (r *core) apply(m *model, in input, e *effect) error {
	switch in.kind {
	case inStart:
		r.start = in.at
		next := in.at.next()
		r.flight = r.flight.Next(lsn(in.at.pos))
		r.flight.Resume(next)
		r.progress = flight.Resume(lsn(in.at.pos), next)
	case inReconnect:
		r.progress.Reconnected()
	case inBegin:
		fresh, err := r.progress.Begin(begin(in.item))
		if fresh {
			r.flight.Tracker.Begin(time.Time{})
		}
		return err
	case inRow:
		mine, err := r.progress.Event()
		if err != nil || !mine {
			return err
		}
		if next := r.progress.Part(1); next != nil {
			r.flight.Part(next)
		}
		send, err := r.progress.Record(in.row.id())
		if m.variant == LSNDedupe && in.row.lsn() <= lsn(r.start.pos) {
			send = false
		}
		if err != nil || !send {
			return err
		}
		for _, s := range slices.Backward(r.sent) {
			if m.key(s.row) == m.key(in.row) {
				if m.place(in.row) != m.place(s.row)+1 {
					return fmt.Errorf("row %s is sent behind row %s of its key", in.row.id(), s.row.id())
				}
				break
			}
		}
		ticket := r.flight.Tracker.Add(1)
		r.flight.Count(&ticket, r.progress.Open)
		r.sent = append(r.sent, sending{row: in.row, ticket: ticket})
		e.send = in.row
	case inCommit:
		fresh, err := r.progress.Commit()
		if err == nil && fresh {
			err = r.flight.Tracker.Commit(lsn(in.item))
		}
		return err
	case inIdle:
		if r.progress.Between() {
			r.flight.Tracker.Idle(lsn(in.item))
		}
	case inAck:
		for i := range r.sent {
			if s := &r.sent[i]; s.row == in.row && !s.acked {
				s.acked = true
				r.flight.Ack(s.ticket)
				break
			}
		}
	}
	return nil
}

func (c *cores) summarize(r *core, history []input) (s summary) {
	s.inFlight = r.flight.InFlight()
	s.safe = index(r.flight.Tracker.Safe())
	history = slices.Clone(history)
	for i := range r.sent {
		if !r.sent[i].acked {
			s.unacked = append(s.unacked, r.sent[i].row)
			history = append(history, input{kind: inAck, row: r.sent[i].row})
		}
	}
	s.draft, s.last = r.describe(false), r.describe(true)
	s.all = c.replay(history, new(effect)).describe(true)
	return s
}

// describe does what streaming.describe does.
func (r *core) describe(last bool) place {
	next, _ := r.flight.Delivered()
	if left := r.progress.Left(); last && r.flight.InFlight() == 0 && left != nil {
		next = left
	}
	p := place{pos: index(r.flight.Tracker.Safe())}
	if next != nil {
		p.item, p.rows, p.born = index(next.Commit+commitLength), uint8(next.Rows), next.LastEventID[0]-'0'
	}
	return p
}

// dump is everything that a value holds, unexported fields included.
func dump(v any) string {
	var b strings.Builder
	write(&b, reflect.ValueOf(v))
	return b.String()
}

func write(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteByte('-')
			return
		}
		write(b, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			write(b, v.Field(i))
		}
	case reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			write(b, v.Index(i))
		}
		b.WriteByte(']')
	case reflect.String:
		b.WriteString(strconv.Quote(v.String()))
	case reflect.Bool:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int64:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		b.WriteString(strconv.FormatUint(v.Uint(), 10))
	default:
		panic(fmt.Sprintf("protocol: dump of a %s", v.Type()))
	}
	b.WriteByte(' ')
}
