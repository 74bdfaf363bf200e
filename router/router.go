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
	"fmt"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
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

// New returns a Router, or an error about configuration that names every option that is wrong.
func New(cfg Config) (*Router, error) {
	if err := cfg.err(); err != nil {
		return nil, err
	}
	r := &Router{
		cfg: cfg, ignoreMissing: lower(cfg.AdditionalMissing) == "ignore", fatalUpdates: lower(cfg.InvalidOperation) == "fatal",
		schemaNames: lower(cfg.SchemaNames), fieldNames: adjustment(cfg.FieldNames), convs: cfg.converters(), plans: map[*cdc.Relation]*plan{},
	}
	var err error
	if r.placements, err = parsePlacements(cfg.AdditionalPlacement); err != nil {
		return nil, fault.Config(err, "")
	}
	r.topics, _ = newTopics(cfg.TopicRegex, cfg.TopicReplacement) // cfg.err() has compiled both
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

// A RowError says why a row cannot be routed. It needs a person: the row, or the configuration, must be changed.
type RowError struct {
	EventID string
	Table   string
	LSN     cdc.Position // of the row; for finding it in the WAL, not for resuming; 0 where it was read from the table
	Err     error
}

func (e *RowError) Error() string {
	if e.LSN == 0 {
		return fmt.Sprintf("event %q, read from the table %s, cannot be routed: %s", e.EventID, e.Table, e.Err)
	}
	return fmt.Sprintf("event %q of %s at %s cannot be routed: %s", e.EventID, e.Table, e.LSN, e.Err)
}

// Unwrap returns the reason.
func (e *RowError) Unwrap() error { return e.Err }

// NeedsPerson is true: nothing that walpost could do would route this row.
func (e *RowError) NeedsPerson() bool { return true }

func (r *Router) rowError(ev *cdc.Event, id string, err error) *RowError {
	return &RowError{EventID: strings.Clone(id), Table: ev.Row.Relation.String(), LSN: ev.Pos, Err: err}
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
	err := p.err
	if err == nil {
		err = r.fill(p, row, old, rec)
	}
	if err != nil {
		return false, r.rowError(ev, rec.EventID, err)
	}
	return true, nil
}
