package router

import (
	"errors"
	"fmt"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// An envelope is the value if a placement is "envelope": a Struct of the payload and of those
// columns.
//
// The name of its schema contains the aggregate type of the row. In Debezium it contains the
// aggregate type of the first row since its start, because Debezium keeps one schema for each
// schema (or version) of the payload. Here the same row must give the same bytes after every start.
type envelope struct {
	before, after string // the parts of the schema's name around the aggregate type
	payload       *column
	fields        []column // the fields after the payload, in the order of the placements
	version       *column  // nil if the schema has no version
	conv          connect.Converter
	schemas       map[envelopeKey]*connect.Schema // converters remember schemas by their pointers
}

type envelopeKey struct {
	aggregate string
	version   int32
	payload   *connect.Schema
}

// maxSchemas bounds the remembered schemas. Aggregate types are few in practice, but a hostile one
// per row must not make the memory grow.
const maxSchemas = 1024

func (p *planner) envelope(conv connect.Converter, payload column) *envelope {
	name := p.schemaNames.AdjustSchema(p.qualified() + ".Value")
	dot := strings.LastIndexByte(name, '.')
	e := &envelope{before: name[:dot+1], after: name[dot:], payload: &payload, conv: conv, schemas: map[envelopeKey]*connect.Schema{}}
	names := map[string]bool{"payload": true}
	for _, pl := range p.placements {
		if pl.place != inEnvelope || p.missing(pl.column) {
			continue
		}
		c, ok := p.find(optionPlacement, pl.column)
		if c.field = pl.alias; names[c.field] {
			p.fail(OptionValid, &c, "Cannot create field because of field name duplication %s", c.field)
			ok = false
		}
		if names[c.field] = true; ok {
			e.fields = append(e.fields, c)
		}
	}
	if p.cfg.SchemaVersion != "" {
		if c, ok := p.typed(optionVersion, p.cfg.SchemaVersion, connect.Int32); ok {
			e.version = &c
		}
	}
	if payload.typ != nil && len(p.problems) == 0 {
		if err := probe(conv, "value", e.schema("", 0, payload.typ.Schema), true); err != nil {
			p.fail(ColumnType, &column{option: optionPlacement}, "the value is an envelope: %s", err)
		}
	}
	return e
}

// indexes are the columns that the envelope reads, except for the payload.
func (e *envelope) indexes() (all []int) {
	for i := range e.fields {
		all = append(all, e.fields[i].index)
	}
	if e.version != nil {
		all = append(all, e.version.index)
	}
	return all
}

// schema is the envelope's schema for one schema of the payload. Schemas of expanded payloads are
// not remembered: there can be a new one for each row.
func (e *envelope) schema(aggregate string, version int32, payload *connect.Schema) *connect.Schema {
	key := envelopeKey{aggregate, version, payload}
	if s, ok := e.schemas[key]; ok {
		return s
	}
	s := &connect.Schema{Type: connect.Struct, Name: e.before + aggregate + e.after, Version: version}
	s.Fields = append(s.Fields, connect.Field{Name: "payload", Schema: payload})
	for i := range e.fields {
		s.Fields = append(s.Fields, connect.Field{Name: e.fields[i].field, Schema: e.fields[i].typ.Schema})
	}
	if s.Over(payload).Passing() {
		return s
	}
	if len(e.schemas) >= maxSchemas {
		clear(e.schemas)
	}
	key.aggregate = strings.Clone(aggregate)
	e.schemas[key] = s
	return s
}

// append appends the envelope's bytes to buf. payload is the schema of v.
func (e *envelope) append(buf []byte, topic, aggregate string, row *row, payload *connect.Schema, v any) (grown, out []byte, _ *Problem) {
	version := int32(0)
	if e.version != nil {
		if raw := row.text(e.version); raw != nil {
			n, err := e.version.parse(raw)
			if err != nil {
				return buf, nil, e.version.bad(raw, err)
			}
			if version = int32(n.(int64)); version == 0 {
				return buf, nil, e.version.bad(raw, errVersion)
			}
		}
	}
	s := e.schema(aggregate, version, payload)
	values := make([]any, 1, len(s.Fields))
	values[0] = v
	if err := required("payload", payload, v); err != nil {
		return buf, nil, e.payload.bad(row.text(e.payload), err)
	}
	for i := range e.fields {
		f := &e.fields[i]
		raw := row.text(f)
		v, err := f.value(raw)
		if err == nil {
			err = required(f.field, f.typ.Schema, v)
		}
		if err != nil {
			return buf, nil, f.bad(raw, err)
		}
		values = append(values, v)
	}
	buf, out, err := convert(buf, e.conv, topic, s, values)
	if err != nil {
		return buf, nil, &Problem{Rule: ValueValid, Option: optionPlacement, Message: "the envelope: " + err.Error()}
	}
	return buf, out, nil
}

var errVersion = errors.New("a schema of version 0 cannot be written")

// required is the check of Connect's Struct.put.
func required(field string, s *connect.Schema, v any) error {
	if v == nil && !s.Optional {
		return fmt.Errorf("Invalid value: null used for required field: %q, schema type: %s", field, s.Type) //nolint:staticcheck // Kafka Connect's words
	}
	return nil
}
