package router

import (
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// value returns the record's value: the payload or an envelope around it.
func (r *Router) value(p *plan, row *row, aggregate string, rec *cdc.Record) ([]byte, *Problem) {
	c := &p.payload
	raw := row.text(c)
	v, err := c.value(raw)
	if err != nil {
		return nil, c.bad(raw, err)
	}
	schema := c.typ.Schema
	if r.expander != nil {
		schema, v = r.expanded(p, schema, v, rec.EventID)
	}
	if text, isText := v.(string); r.cfg.Tombstone && (v == nil || isText && connect.Blank(text)) {
		return nil, nil
	}
	if p.envelope != nil {
		if schema == nil { // the document [] has no schema
			schema = c.typ.Schema
		}
		return p.envelope.convert(row, rec.Topic, aggregate, schema, v)
	}
	out, err := row.convert(c.conv, rec.Topic, schema, v)
	if err != nil {
		return nil, c.bad(raw, err)
	}
	return out, nil
}

// expanded is the payload with table.expand.json.payload. A payload that cannot be expanded stays
// as it is.
func (r *Router) expanded(p *plan, s *connect.Schema, v any, id string) (*connect.Schema, any) {
	if v == nil {
		return s, v
	}
	text, ok := v.(string)
	if !ok {
		r.notExpanded.add(fmt.Sprintf("event %q of %s: the payload is not text", id, p.rel))
		return s, v
	}
	schema, value, err := r.expander.Expand(text)
	if err != nil {
		r.notExpanded.add(fmt.Sprintf("event %q of %s: %s", id, p.rel, err))
		return s, v
	}
	return schema, value
}
