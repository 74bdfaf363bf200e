// Package router makes records of outbox rows, as Debezium's Outbox EventRouter does: topic by aggregate type, key by aggregate id,
// the payload as value, an id header, further columns as headers or partition.
//
// It is pure: no I/O, no clock, no goroutines; the same row gives the same record, byte for byte. The rules and their sources are
// Debezium 3.6's EventRouterDelegate and Kafka Connect's StringConverter and SimpleHeaderConverter. What differs on purpose:
// the default timestamp is the commit time and not a clock; a timestamptz can be the timestamp; a NULL is a NULL, also where the column
// has a default (a configuration that converts Debezium's needs the default there: cdc.Column carries it).
package router

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A Router routes rows by one configuration. It must be used by one goroutine at a time, except Needs, which may be called from any.
type Router struct {
	cfg           Config
	placements    []placement
	ignoreMissing bool
	fatalUpdates  bool
	topics        *topics

	plans    map[*cdc.Relation]*plan // nil values: not our table
	last     *cdc.Relation
	lastPlan *plan
}

// New returns a Router, or an error about configuration that names every option that is wrong.
func New(cfg Config) (*Router, error) {
	if err := cfg.err(); err != nil {
		return nil, err
	}
	r := &Router{
		cfg: cfg, ignoreMissing: strings.EqualFold(cfg.AdditionalMissing, "ignore"),
		fatalUpdates: strings.EqualFold(cfg.InvalidOperation, "fatal"), plans: map[*cdc.Relation]*plan{},
	}
	var err error
	if r.placements, err = parsePlacements(cfg.AdditionalPlacement); err != nil {
		return nil, fault.Config(err, "")
	}
	if r.topics, err = newTopics(cfg.TopicRegex, cfg.TopicReplacement); err != nil {
		return nil, fault.Config(err, "")
	}
	return r, nil
}

// A RowError says why a row cannot be routed. It needs a person: the row, or the configuration, must be changed.
type RowError struct {
	EventID string
	Table   string
	LSN     cdc.Position // of the row; for finding it in the WAL, not for resuming
	Err     error
}

func (e *RowError) Error() string {
	return fmt.Sprintf("event %q of %s at %s cannot be routed: %s", e.EventID, e.Table, e.LSN, e.Err)
}

// Unwrap returns the reason.
func (e *RowError) Unwrap() error { return e.Err }

// NeedsPerson is true: nothing that walpost could do would route this row.
func (e *RowError) NeedsPerson() bool { return true }

// Route fills rec from ev and says whether the event gives a record at all: inserts do; updates and deletes of an outbox row
// are ignored, as the EventRouter does, unless table.op.invalid.behavior makes an update fatal. rec owns its bytes afterwards:
// they share one new buffer. The error is a *RowError; rec.EventID is set even then where the row has one.
func (r *Router) Route(ev *cdc.Event, rec *cdc.Record) (bool, error) {
	switch ev.Kind {
	case cdc.Insert:
	case cdc.Update:
		if r.fatalUpdates && r.plan(ev.Row.Relation) != nil {
			return false, &RowError{Table: ev.Row.Relation.String(), LSN: ev.Pos, Err: fault.Person(
				fmt.Errorf("the row was updated, and router.table.op.invalid.behavior is fatal"), "write outbox rows once, or set it to warn")}
		}
		return false, nil
	default:
		return false, nil
	}
	p := r.plan(ev.Row.Relation)
	if p == nil {
		return false, nil
	}
	if err := r.fill(p, ev, rec); err != nil {
		return false, &RowError{EventID: rec.EventID, Table: ev.Row.Relation.String(), LSN: ev.Pos, Err: err}
	}
	return true, nil
}

func (r *Router) fill(p *plan, ev *cdc.Event, rec *cdc.Record) (err error) {
	*rec = cdc.Record{Partition: -1, Time: ev.Time.Truncate(time.Millisecond), Committed: ev.Time}
	if p.err != nil {
		return p.err
	}
	vals := ev.Row.Values
	// One buffer for everything; 40 bytes a column are room for what a conversion may add. Should it be too little,
	// append moves on to a new one and the old one stays valid for what is in it.
	size := len(vals[p.id.index].Bytes) + len(vals[p.key.index].Bytes) + len(vals[p.payload.index].Bytes)
	for i := range p.headers {
		size += len(vals[p.headers[i].index].Bytes)*3/2 + 40
	}
	if !p.id.asIs || !p.key.asIs || !p.payload.asIs {
		size += 120
	}
	buf := make([]byte, 0, size)
	rec.Headers = make([]cdc.Header, 1+len(p.headers))

	var id []byte
	if buf, id, err = p.id.append(buf, vals[p.id.index]); err != nil {
		return fmt.Errorf("column %s: %w", p.id.name, err)
	}
	rec.Headers[0] = cdc.Header{Key: "id", Value: id}
	if len(id) > 0 {
		rec.EventID = unsafe.String(&id[0], len(id)) // the record's bytes never change
	}
	if vals[p.route.index].Bytes == nil {
		return fmt.Errorf("column %s is NULL, and the topic comes from it", p.route.name)
	}
	if rec.Topic, err = r.topics.of(vals[p.route.index].Bytes); err != nil {
		return fmt.Errorf("column %s: %w", p.route.name, err)
	}
	if buf, rec.Key, err = p.key.append(buf, vals[p.key.index]); err != nil {
		return fmt.Errorf("column %s: %w", p.key.name, err)
	}
	payload := vals[p.payload.index]
	if r.cfg.Tombstone && blank(payload.Bytes) {
		payload.Bytes = nil
	}
	if buf, rec.Value, err = p.payload.append(buf, payload); err != nil {
		return fmt.Errorf("column %s: %w", p.payload.name, err)
	}
	for i := range p.headers {
		h := &p.headers[i]
		var v []byte
		if buf, v, err = h.append(buf, vals[h.index]); err != nil {
			return fmt.Errorf("header %s: %w", h.name, err)
		}
		rec.Headers[1+i] = cdc.Header{Key: h.name, Value: v}
	}
	if p.partition >= 0 && vals[p.partition].Bytes != nil {
		n, err := strconv.ParseInt(string(vals[p.partition].Bytes), 10, 32)
		if err != nil || n < 0 {
			return fmt.Errorf("partition %q: it must be 0 or more", vals[p.partition].Bytes)
		}
		rec.Partition = int32(n)
	}
	if p.timestamp.index >= 0 && vals[p.timestamp.index].Bytes != nil {
		us, err := micros(vals[p.timestamp.index].Bytes)
		if err != nil {
			return fmt.Errorf("timestamp: %w", err)
		}
		if us < 0 {
			return fmt.Errorf("timestamp %s: Kafka has none before 1970", vals[p.timestamp.index].Bytes)
		}
		rec.Time = time.UnixMilli(us / 1000).UTC()
	}
	return nil
}

// blank is Java's String.trim().isEmpty(): nothing but characters up to the space. NULL is blank too.
func blank(b []byte) bool {
	for _, c := range b {
		if c > ' ' {
			return false
		}
	}
	return true
}
