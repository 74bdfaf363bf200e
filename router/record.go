package router

import (
	"fmt"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// fill makes the record of a row. old is the row's former primary key, nil where it was not changed.
func (r *Router) fill(p *plan, row *row, old []any, rec *cdc.Record) *Problem {
	// One buffer for everything: the texts, and what the converters added to them lately. Should it be too little, append moves on to
	// a new one and the old one stays valid for what is in it.
	id := row.at(&p.id)
	size := len(id) + len(row.at(&p.key)) + len(row.at(&p.payload))
	for i := range p.headers {
		size += len(row.at(&p.headers[i]))
	}
	buf := make([]byte, 0, size+p.slack)
	rec.Headers = make([]cdc.Header, 0, 1+len(p.headers)+len(r.context)+min(len(old), 1))

	buf, v, err := p.id.append(buf, "", id)
	if err != nil {
		rec.EventID = string(id)
		return p.id.bad(id, err)
	}
	switch {
	case len(id) == 0:
	case p.id.typ.Text && string(v) == string(id):
		rec.EventID = unsafe.String(&v[0], len(v)) // the record's bytes never change
	default:
		rec.EventID = string(id)
	}
	aggregate, problem := r.route(p, row, rec)
	if problem != nil {
		return problem
	}
	if old != nil {
		var h []byte
		if buf, h, err = p.oldKey.append(buf, rec.Topic, old); err != nil {
			return &Problem{Rule: ValueValid, Option: "source.publish", Message: "header " + oldKeyHeader + ": " + err.Error()}
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: oldKeyHeader, Value: h})
	}
	if r.cfg.ExtendedHeaders && r.context == nil {
		return &Problem{Rule: OptionValid, Option: "records.extended.headers.enabled", Message: "there is no run id yet for the header " + runIDHeader}
	}
	rec.Headers = append(append(rec.Headers, r.context...), cdc.Header{Key: "id", Value: v})

	key := row.at(&p.key)
	if buf, rec.Key, err = p.key.append(buf, rec.Topic, key); err != nil {
		return p.key.bad(key, err)
	}
	if buf, rec.Value, problem = r.payload(buf, p, row, rec.Topic, aggregate, rec.EventID); problem != nil {
		return problem
	}
	for i := range p.headers {
		h := &p.headers[i]
		raw := row.at(h)
		if buf, v, err = h.append(buf, rec.Topic, raw); err != nil {
			return h.bad(raw, err)
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: h.name, Value: v})
	}
	p.learn(len(buf) - size)
	if problem := p.place(row, rec); problem != nil {
		return problem
	}
	return row.problem
}

// maxSlack bounds what a buffer may have too much: it is not counted against any window.
const maxSlack = 4 << 10

// learn takes how much longer a record's bytes were than the texts that they were made of.
func (p *plan) learn(more int) {
	p.slack = min(max(more, p.slack-p.slack/8, 0), maxSlack)
}

// route sets the topic and returns the value that it comes from. A NULL gives none, also where the column has a default: the
// EventRouter reads it by Struct.getString, which knows no defaults.
func (r *Router) route(p *plan, row *row, rec *cdc.Record) (aggregate string, _ *Problem) {
	raw := row.at(&p.route)
	if raw == nil {
		return "", p.route.problem(ValueSet, nil, "column %s is NULL, and the topic comes from it", p.route.column)
	}
	if !p.route.typ.Text {
		v, err := p.route.typ.Parse(raw)
		text, ok := v.(string)
		switch {
		case err != nil:
			return "", p.route.bad(raw, err)
		case !ok:
			return "", p.route.problem(ValueSet, raw, "column %s is NULL for Debezium, and the topic comes from it", p.route.column)
		}
		raw = []byte(text)
	}
	topic, err := r.topics.of(raw)
	if err != nil {
		return "", p.route.bad(raw, err)
	}
	rec.Topic = topic
	return unsafe.String(unsafe.SliceData(raw), len(raw)), nil // until the event ends
}

// payload appends the record's value to buf.
func (r *Router) payload(buf []byte, p *plan, row *row, topic, aggregate, id string) (grown, out []byte, _ *Problem) {
	s := &p.payload
	raw := row.at(s)
	if s.typ.Text && raw != nil && r.expander == nil && p.envelope == nil {
		if r.cfg.Tombstone && blank(raw) {
			return buf, nil, nil
		}
		buf, out, err := s.append(buf, topic, raw)
		if err != nil {
			return buf, nil, s.bad(raw, err)
		}
		return buf, out, nil
	}
	v, err := s.value(raw)
	if err != nil {
		return buf, nil, s.bad(raw, err)
	}
	schema := s.typ.Schema
	if r.expander != nil {
		schema, v = r.expanded(p, schema, v, id)
	}
	if text, isText := v.(string); r.cfg.Tombstone && (v == nil || isText && blank(text)) {
		return buf, nil, nil
	}
	if p.envelope != nil {
		if schema == nil { // the document [], which has none
			schema = s.typ.Schema
		}
		return p.envelope.append(buf, topic, aggregate, row, schema, v)
	}
	if buf, out, err = convert(buf, s.conv, topic, schema, v); err != nil {
		return buf, nil, s.bad(raw, err)
	}
	return buf, out, nil
}

// expanded is the payload as table.expand.json.payload has it.
func (r *Router) expanded(p *plan, s *connect.Schema, v any, id string) (*connect.Schema, any) {
	if v == nil {
		return s, v
	}
	text, ok := v.(string)
	if !ok {
		r.notExpanded.add(fmt.Sprintf("event %q of %s: the payload is not a text", id, p.rel))
		return s, v
	}
	made, value, err := r.expander.Expand(text)
	if err != nil {
		r.notExpanded.add(fmt.Sprintf("event %q of %s: %s", id, p.rel, err))
		return s, v
	}
	return made, value
}

// place sets what is neither key nor value nor header.
func (p *plan) place(row *row, rec *cdc.Record) *Problem {
	if p.partition != nil {
		raw := row.at(p.partition)
		v, err := parse(p.partition.typ, raw)
		if err != nil {
			return p.partition.bad(raw, err)
		}
		if n, ok := v.(int64); ok {
			if n < 0 {
				return p.partition.problem(ValueValid, raw, "column %s has partition %d: it must be 0 or more", p.partition.column, n)
			}
			rec.Partition = int32(n)
		}
	}
	if p.stamp == nil {
		return nil
	}
	if raw := row.at(&p.stamp.source); raw != nil {
		t, err := p.stamp.at(raw)
		if err != nil {
			return p.stamp.bad(raw, err)
		}
		rec.Time = t
	}
	return nil
}

// blank is Java's String.trim().isEmpty(): nothing but characters up to the space.
func blank[T string | []byte](text T) bool {
	for i := range len(text) {
		if text[i] > ' ' {
			return false
		}
	}
	return true
}
