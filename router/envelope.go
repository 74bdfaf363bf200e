package router

import (
	"errors"
	"fmt"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// An envelope is the value where a placement is "envelope": a Struct of the payload and of those columns.
//
// Its schema has the row's aggregate type in its name. Debezium's has, too, but it keeps one schema for each payload schema (or version):
// all aggregate types have the name of the one that came first since its start. Here the same row must give the same bytes after every
// start, so each has its own.
type envelope struct {
	before, after string   // of the schema's name: the aggregate type stands between
	fields        []source // behind the payload, in the order of the placements
	payload       *source
	version       *source // nil: none
	conv          connect.TextConverter
	schemas       map[envelopeKey]*connect.Schema
}

type envelopeKey struct {
	aggregate string
	version   int32
	payload   *connect.Schema
}

// maxSchemas bounds what is remembered of schemas: aggregate types are few in practice, and hostile ones must not grow memory.
const maxSchemas = 1024

func (p *planner) envelope(conv connect.TextConverter, payload source) *envelope {
	name := adjustSchema(p.schemaNames, p.qualified()+".Value")
	dot := strings.LastIndexByte(name, '.')
	e := &envelope{before: name[:dot+1], after: name[dot:], payload: &payload, conv: conv, schemas: map[envelopeKey]*connect.Schema{}}
	names := map[string]bool{"payload": true}
	for _, pl := range p.placements {
		if pl.place != inEnvelope || p.missing(pl.column) {
			continue
		}
		s, ok := p.column(optionPlacement, pl.column)
		if s.name = pl.alias; names[s.name] {
			p.fail(OptionValid, &s, "Cannot create field because of field name duplication %s", s.name)
			ok = false
		}
		if names[s.name] = true; ok {
			e.fields = append(e.fields, s)
		}
	}
	if p.cfg.SchemaVersion != "" {
		if s, ok := p.typed(optionVersion, p.cfg.SchemaVersion, connect.Int32); ok {
			e.version = &s
		}
	}
	if payload.typ != nil && len(p.problems) == 0 {
		if err := probe(conv, "value", e.schema("", 0, payload.typ.Schema)); err != nil {
			p.fail(ColumnType, &source{option: optionPlacement}, "the value is an envelope: %s", err)
		}
	}
	return e
}

func (e *envelope) indexes() (all []int) {
	for i := range e.fields {
		all = append(all, e.fields[i].index)
	}
	if e.version != nil {
		all = append(all, e.version.index)
	}
	return all
}

// schema is the envelope's schema for one payload schema. Converters remember schemas by their pointers.
func (e *envelope) schema(aggregate string, version int32, payload *connect.Schema) *connect.Schema {
	key := envelopeKey{aggregate, version, payload}
	if s, ok := e.schemas[key]; ok { // never one of an expanded payload
		return s
	}
	s := &connect.Schema{Type: connect.Struct, Name: e.before + aggregate + e.after, Version: version}
	s.Fields = append(s.Fields, connect.Field{Name: "payload", Schema: payload})
	for i := range e.fields {
		s.Fields = append(s.Fields, connect.Field{Name: e.fields[i].name, Schema: e.fields[i].typ.Schema})
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

// append appends the envelope's bytes to buf.
func (e *envelope) append(buf []byte, topic, aggregate string, row *row, payload *connect.Schema, v any) (grown, out []byte, _ *Problem) {
	version := int32(0)
	if e.version != nil {
		if raw := row.at(e.version); raw != nil {
			n, err := parse(e.version.typ, raw)
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
		return buf, nil, e.payload.bad(row.at(e.payload), err)
	}
	for i := range e.fields {
		f := &e.fields[i]
		raw := row.at(f)
		v, err := f.value(raw)
		if err == nil {
			err = required(f.name, f.typ.Schema, v)
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

// required is what Struct.put wants of a value.
func required(field string, s *connect.Schema, v any) error {
	if v == nil && !s.Optional {
		return fmt.Errorf("Invalid value: null used for required field: %q, schema type: %s", field, s.Type) //nolint:staticcheck // Kafka Connect's words
	}
	return nil
}
