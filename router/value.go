package router

import (
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// value appends the record's value to buf. The value is the payload or an envelope around it.
func (r *Router) value(buf []byte, p *plan, row *row, aggregate string, rec *cdc.Record) (grown, out []byte, _ *Problem) {
	c := &p.payload
	raw := row.text(c)
	if c.typ.Text && raw != nil && r.expander == nil && p.envelope == nil { // the fast path: no value is made
		if r.cfg.Tombstone && connect.Blank(raw) {
			return buf, nil, nil
		}
		if problem := r.validate(c, row, raw, rec.Topic); problem != nil {
			return buf, nil, problem
		}
		return c.append(buf, rec.Topic, raw)
	}
	v, err := c.value(raw)
	if err != nil {
		return buf, nil, c.bad(raw, err)
	}
	schema := c.typ.Schema
	document := v
	if r.expander != nil {
		schema, v = r.expanded(p, schema, v, rec.EventID)
	}
	if text, isText := v.(string); r.cfg.Tombstone && (v == nil || isText && connect.Blank(text)) {
		return buf, nil, nil
	}
	if problem := r.validate(c, row, document, rec.Topic); problem != nil {
		return buf, nil, problem
	}
	if p.envelope != nil {
		if schema == nil { // the document [] has no schema
			schema = c.typ.Schema
		}
		return p.envelope.append(buf, rec.Topic, aggregate, row, schema, v)
	}
	if buf, out, err = convert(buf, c.conv, rec.Topic, schema, v); err != nil {
		return buf, nil, c.bad(raw, err)
	}
	return buf, out, nil
}

// validate checks a payload if records.validate is set. A NULL has nothing to check. A placeholder says nothing of the payload.
func (r *Router) validate(c *column, row *row, document any, topic string) *Problem {
	if !r.cfg.Validates() || document == nil {
		return nil
	}
	raw, sent := row.sent(c)
	if !sent {
		return c.notSent()
	}
	var text []byte
	switch v := document.(type) {
	case []byte:
		text = v
	case string:
		text = []byte(v)
	default:
		text = raw
	}
	path, why, err := r.cfg.Validator.Validate(topic+"-value", text)
	if err != nil {
		r.registry.err = err
		return c.bad(raw, err)
	}
	if why == "" {
		return nil
	}
	problem := c.problem(PayloadFits, raw, "column %s %s", c.name, why)
	problem.Option, problem.Path = "records.validate", path
	return problem
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
