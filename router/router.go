// Package router turns the rows of an outbox table into Kafka records, as Debezium's Outbox
// EventRouter and Kafka Connect's converters do. The aggregate type gives the topic, the aggregate
// id the key and the payload the value. Further columns become headers, the partition or fields of
// the value.
//
// The package is pure: it has no I/O, no clock and no goroutines. With one run id, the same row
// always gives the same record, byte for byte. The rules come from Debezium 3.6 (EventRouterDelegate and the
// Postgres connector) and from Kafka Connect's converters. These differences are deliberate:
//   - The default timestamp is the commit time. Debezium reads a clock.
//   - The column of the timestamp may be a timestamptz.
//   - The run id in the extended headers survives restarts.
//   - The schema of an envelope has the name of the row's own aggregate type. Debezium uses the
//     first aggregate type since its start.
//   - Two columns may have names that differ only in case.
//   - A configuration that stops Debezium at the first record is an error at the start.
//   - A payload that cannot be expanded stays as it is.
//
// To follow one event, start at Route and read record, which calls the other steps in order. The
// files are in the same order: plan.go says which columns the options name, and then come topic.go,
// value.go, headers.go, placement.go (the partition) and timestamp.go.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package router

import (
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// A Router routes rows by one configuration. It must be used by one goroutine at a time, except for
// Needs, which any goroutine may call at any time.
type Router struct {
	cfg           Config
	placements    []placement
	ignoreMissing bool
	fatalUpdates  bool
	schemaNames   connect.NameAdjustment
	fieldNames    connect.NameAdjustment
	topics        *topics
	instead       string // where rows go that give no topic; "": nowhere
	convs         converters
	fixed         fixed
	dropped       []string          // the names of headers that records.headers drops
	expander      *connect.Expander // nil if payloads stay as they are
	cloud         *cloud            // nil if records are no CloudEvents

	registry *awaited

	names map[string]headerName // of headers, while objects are read

	updates, notExpanded, leftOut, absent, untraced remark
	messages                                        messages
	debezium                                        *debeziumMessages // nil if messages are routed like rows

	plans    map[*cdc.Relation]*plan // nil values are relations of other tables
	last     *cdc.Relation
	lastPlan *plan // the plan of last
}

// New returns a Router, or every option that is wrong, as conf.Problems.
func New(cfg Config) (*Router, error) {
	placements, topics, wrong := cfg.compile()
	if len(wrong) > 0 {
		return nil, wrong
	}
	r := &Router{
		cfg: cfg, placements: placements, topics: topics,
		ignoreMissing: lower(cfg.AdditionalMissing) == "ignore", fatalUpdates: lower(cfg.InvalidOperation) == "fatal",
		schemaNames: adjustment(cfg.SchemaNames), fieldNames: adjustment(cfg.FieldNames),
		plans: map[*cdc.Relation]*plan{}, names: map[string]headerName{},
	}
	r.registry = &awaited{Registry: cfg.Registry}
	r.convs, r.cloud = cfg.converters(r.registry), cfg.cloud()
	if cfg.ExpandJSON {
		r.expander = connect.NewExpander(connect.ExpandOptions{
			Payload: cfg.Payload, FieldNames: adjustment(cfg.JSONFieldNames), Text: cfg.Value.text(),
			NullBytes: lower(cfg.JSONNull) == "optional_bytes", EmptyStrings: lower(cfg.JSONEmptyArray) == "optional_string",
		})
	}
	for _, s := range cfg.Headers {
		r.dropped = append(r.dropped, s.Drop...)
	}
	if cfg.DebeziumMessages {
		r.debezium = r.newDebeziumMessages()
	}
	r.SetRunID(newRunID())
	return r, nil
}

// SendInstead has rows whose only fault is that they give no valid topic go to this one.
func (r *Router) SendInstead(topic string) { r.instead = topic }

// Route fills rec from ev and reports whether the event gives a record. An insert gives one. An
// update gives one if it changes the primary key and Config.Updates is set. Other updates follow
// table.op.invalid.behavior (see Remarks), and deletes give none, as in the EventRouter. A message
// gives one as an insert does.
//
// The record owns its bytes, which share one new buffer. The error is a *RowError. Even then
// rec.EventID, rec.Topic and rec.Key are set as far as they could be found: the topic unless it is
// "", and the key if the error's KeyFound is true. If Config.Registry has no id for a schema of the
// record, the error is the registry's, and the same event can be routed later. A value above
// ClaimCheck.Over is replaced by its claim, and rec.Claim has it.
func (r *Router) Route(ev *cdc.Event, rec *cdc.Record) (bool, error) {
	ok, err := r.route(ev, rec)
	if missing := r.registry.err; missing != nil {
		r.registry.err = nil
		return false, missing
	}
	if ok && err == nil {
		r.cfg.ClaimCheck.claim(rec)
	}
	return ok, err
}

func (r *Router) route(ev *cdc.Event, rec *cdc.Record) (bool, error) {
	var unreadable *Problem
	switch ev.Kind {
	case cdc.Message:
		if r.debezium != nil {
			err := r.debezium.route(r, ev, rec)
			return err == nil, err
		}
		ev, unreadable = r.messages.expand(r, ev)
	case cdc.Insert, cdc.Update:
	default:
		return false, nil
	}
	p := r.plan(ev.Row.Relation)
	if p == nil {
		return false, nil
	}
	p = r.disproved(p, ev.Row.Values)
	*rec = cdc.Record{Partition: -1, Time: ev.Time.Truncate(time.Millisecond), Committed: ev.Time}
	row := row{values: ev.Row.Values, relation: p.rel}
	var oldKey []any
	if ev.Kind == cdc.Update {
		row.old, row.unavailable, row.binary = &ev.Old, r.cfg.UnavailableValue, lower(r.cfg.Binary)
		var problem *Problem
		if oldKey, problem = r.changedKey(p, ev); problem != nil {
			return false, p.refuse(ev, &row, rec, p.eventID(ev), *problem)
		}
		if oldKey == nil {
			return false, nil
		}
	}
	if unreadable != nil {
		e := p.refuse(ev, &row, rec, p.eventID(ev), *unreadable)
		if !r.messages.has(&p.key) { // a field that is missing is not null
			rec.Key, e.keyFound = nil, false
		}
		return false, e
	}
	if len(p.problems) > 0 {
		return false, p.refuse(ev, &row, rec, p.eventID(ev), p.problems...)
	}
	if problem := r.record(p, &row, oldKey, rec); problem != nil {
		return false, p.refuse(ev, &row, rec, rec.EventID, *problem)
	}
	if len(p.absent) > 0 {
		r.absent.add(fmt.Sprintf("event %q of %s: no column %s", rec.EventID, p.rel, strings.Join(p.absent, ", ")))
	}
	return true, nil
}

// changedKey returns the old primary key of an update that gives a record. It returns nil for an
// update that gives none, and counts that update.
func (r *Router) changedKey(p *plan, ev *cdc.Event) ([]any, *Problem) {
	if r.cfg.Updates {
		if old, problem := p.oldKey.changed(ev); old != nil || problem != nil {
			return old, problem
		}
	}
	if r.fatalUpdates {
		return nil, &Problem{
			Rule: UpdateFatal, Option: "router.table.op.invalid.behavior",
			Message: "the row was updated, and updates are fatal: write outbox rows only once, or set the option to warn",
		}
	}
	r.updates.add(fmt.Sprintf("event %q of %s", p.eventID(ev), p.rel))
	return nil, nil
}

// record makes the record of a row, step by step. oldKey is nil unless the row's primary key was
// changed.
func (r *Router) record(p *plan, row *row, oldKey []any, rec *cdc.Record) *Problem {
	// One buffer holds all bytes of the record. Its capacity is the length of the columns' texts
	// plus what converters added to them lately. If it is too small, append continues in a new
	// buffer. The old buffer stays valid for the bytes that it has.
	id := row.text(&p.id)
	size := p.size(row)
	buf := make([]byte, 0, size+p.slack)
	rec.Headers = make([]cdc.Header, 0, 1+len(p.headers)+p.members+len(r.fixed.context)+len(r.fixed.last)+min(len(oldKey), 1)+p.more)

	buf, idHeader, problem := p.id.append(buf, "", id)
	rec.EventID = p.id.shared(id, idHeader)
	if problem != nil {
		return problem
	}
	aggregate, problem := r.topic(p, row, rec)
	switch {
	case problem != nil && r.instead == "":
		return problem
	case problem != nil:
		rec.Topic = r.instead
	}
	if buf, problem = r.headersBeforeID(buf, p, row, oldKey, rec); problem != nil {
		return problem
	}
	rec.Headers = append(rec.Headers, cdc.Header{Key: "id", Value: idHeader})
	if buf, rec.Key, problem = p.key.append(buf, rec.Topic, row.text(&p.key)); problem != nil {
		return problem
	}
	if r.cloud != nil && r.cloud.structured {
		r.cloud.value, rec.Value, problem = r.value(r.cloud.value[:0], p, row, aggregate, rec)
	} else {
		buf, rec.Value, problem = r.value(buf, p, row, aggregate, rec)
	}
	if problem != nil {
		return problem
	}
	if buf, problem = r.headersAfterID(buf, p, row, rec); problem != nil {
		return problem
	}
	if problem = p.setPartition(row, rec); problem != nil {
		return problem
	}
	if problem = p.setTime(row, rec); problem != nil {
		return problem
	}
	if r.cloud != nil {
		if buf, problem = r.cloud.event(buf, p, row, rec); problem != nil {
			return problem
		}
	}
	p.learn(len(buf) - size)
	return row.problem
}

// shared returns the text of a column as a string. It shares the bytes of what a converter made of
// the text if both are equal: the bytes of a record never change.
func (c *column) shared(raw, converted []byte) string {
	if len(raw) > 0 && c.typ.Text && string(converted) == string(raw) {
		return unsafe.String(&converted[0], len(converted))
	}
	return string(raw)
}

// refuse is the error of a row with this event id. It leaves in rec the event id and, if it can be
// found, the key.
func (p *plan) refuse(ev *cdc.Event, row *row, rec *cdc.Record, id string, problems ...Problem) *RowError {
	e := &RowError{EventID: strings.Clone(id), Table: p.rel.String(), LSN: ev.LSN, Problems: problems}
	rec.EventID, rec.Key = id, nil
	if p.key.index < 0 || p.key.index >= len(row.values) || p.key.typ == nil {
		return e
	}
	row.problem = nil
	_, key, problem := p.key.append([]byte{}, rec.Topic, row.text(&p.key)) // not nil: an empty key is not a null one
	if e.keyFound = problem == nil && row.problem == nil; e.keyFound {
		rec.Key = key
	}
	return e
}
