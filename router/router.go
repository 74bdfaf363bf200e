// Package router makes records of outbox rows, as Debezium's Outbox EventRouter and Kafka Connect's converters do: topic by aggregate type,
// key by aggregate id, the payload as value, an id header, further columns as headers, partition or parts of the value.
//
// It is pure: no I/O, no clock, no goroutines; the same row gives the same record, byte for byte. The rules and their sources are
// Debezium 3.6's EventRouterDelegate and Postgres connector, and Kafka Connect's converters. What differs on purpose:
//   - the default timestamp is the commit time and not a clock; a timestamptz can be the timestamp;
//   - the run id of the extended headers is kept over restarts;
//   - the schema of an envelope is named after the row's own aggregate type, not after the first one since the start;
//   - columns whose names differ by case only are columns;
//   - what Debezium stops at with the first record is refused at the start, and an expanded payload never stops it.
package router

import (
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// A Router routes rows by one configuration. It must be used by one goroutine at a time, except Needs, which may be called from any.
type Router struct {
	cfg           Config
	placements    []placement
	ignoreMissing bool
	fatalUpdates  bool
	schemaNames   string
	fieldNames    connect.NameAdjustment
	topics        *topics
	convs         converters
	context       []cdc.Header      // before "id" of every record; with extended headers
	expander      *connect.Expander // nil: payloads stay as they are

	updates, notExpanded remark

	plans    map[*cdc.Relation]*plan // nil values: not our table
	last     *cdc.Relation
	lastPlan *plan
}

// New returns a Router. The error is a *ConfigError with every option that is wrong.
func New(cfg Config) (*Router, error) {
	placements, topics, wrong := cfg.compile()
	if len(wrong) > 0 {
		return nil, &ConfigError{Problems: wrong}
	}
	r := &Router{
		cfg: cfg, placements: placements, topics: topics, ignoreMissing: lower(cfg.AdditionalMissing) == "ignore", fatalUpdates: lower(cfg.InvalidOperation) == "fatal",
		schemaNames: lower(cfg.SchemaNames), fieldNames: adjustment(cfg.FieldNames), convs: cfg.converters(), plans: map[*cdc.Relation]*plan{},
	}
	if cfg.ExpandJSON {
		o := connect.ExpandOptions{Payload: cfg.Payload, FieldNames: adjustment(cfg.JSONFieldNames), Text: cfg.Value.text()}
		if lower(cfg.JSONNull) == "optional_bytes" {
			o.Null = connect.OptionalBytes
		}
		if lower(cfg.JSONEmptyArray) == "optional_string" {
			o.EmptyArray = connect.OptionalString
		}
		r.expander = connect.NewExpander(o)
	}
	return r, nil
}

// rowError is the error of a row with this event id, which it also leaves in rec.
func rowError(ev *cdc.Event, rec *cdc.Record, id string, problems ...Problem) *RowError {
	rec.EventID = id
	return &RowError{EventID: strings.Clone(id), Table: ev.Row.Relation.String(), LSN: ev.Pos, Problems: problems}
}

// Route fills rec from ev and says whether the event gives a record at all: inserts do, and updates that change the primary key where
// Config.Updates is set. Other updates follow table.op.invalid.behavior (see Remarks), deletes are ignored, as the EventRouter does.
// rec owns its bytes afterwards: they share one new buffer. The error is a *RowError; rec.EventID is set even then where the row has one.
func (r *Router) Route(ev *cdc.Event, rec *cdc.Record) (bool, error) {
	if ev.Kind != cdc.Insert && ev.Kind != cdc.Update {
		return false, nil
	}
	p := r.plan(ev.Row.Relation)
	if p == nil {
		return false, nil
	}
	if ev.Kind == cdc.Update {
		return r.update(p, ev, rec)
	}
	return r.insert(p, ev, &row{values: ev.Row.Values, relation: p.rel}, nil, rec)
}

// insert routes the new row of ev.
func (r *Router) insert(p *plan, ev *cdc.Event, row *row, old []any, rec *cdc.Record) (bool, error) {
	*rec = cdc.Record{Partition: -1, Time: ev.Time.Truncate(time.Millisecond), Committed: ev.Time}
	if len(p.problems) > 0 {
		return false, rowError(ev, rec, eventID(p, ev), p.problems...)
	}
	if problem := r.fill(p, row, old, rec); problem != nil {
		return false, rowError(ev, rec, rec.EventID, *problem)
	}
	return true, nil
}
