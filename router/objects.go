package router

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// memberType is the type of the headers in an object.
var memberType = &pgvalue.Type{Schema: &connect.Schema{Type: connect.String, Optional: true}, Text: true}

// maxMembers bounds the room for headers of objects in a record, because no window counts it.
const maxMembers = 16

// maxNames bounds the room for names that is kept for the next record.
const maxNames = 64

// A headerName is what is known of a header's name while the objects of a record are read.
type headerName struct {
	by    *column // the object that has the name; nil if it is none of them
	empty int     // 1 + the index of the header, which the next object fills; 0 if none does
}

// object returns the column that the placement headers names.
func (p *planner) object(name string, conv connect.Converter) (column, bool) {
	c, ok := p.find(optionPlacement, name)
	c.conv, c.typ = conv, memberType
	if ok {
		of := &p.rel.Columns[c.index]
		switch cmp.Or(of.BaseType, of.TypeOID) {
		case oidJSON, oidJSONB, oidText, oidVarchar, oidBPChar:
		default:
			p.fail(ColumnType, &c, "column %s is a %s, and a JSON object of headers needs a column of the type jsonb, json or text", c.name, of.TypeName)
			ok = false
		}
	}
	return c, ok
}

// objectsHeaders adds the fields of JSON objects as headers, in the order in which Postgres prints
// them. rec has the record's other headers, those of p.headers from index placed on. They take
// precedence unless their column is NULL, and so does an object over the next ones.
func (r *Router) objectsHeaders(buf []byte, p *plan, row *row, rec *cdc.Record, placed int) ([]byte, *Problem) {
	for i, h := range rec.Headers {
		if _, twice := r.names[h.Key]; twice {
			continue
		}
		var n headerName
		if i >= placed && row.text(&p.headers[i-placed]) == nil {
			n.empty = 1 + i
		}
		r.names[h.Key] = n
	}
	var problem *Problem
	for i := 0; i < len(p.objects) && problem == nil; i++ {
		buf, problem = r.objectHeaders(buf, &p.objects[i], row, rec)
	}
	if len(r.names) > maxNames {
		r.names = map[string]headerName{}
	}
	clear(r.names) // some share bytes of the event
	return buf, problem
}

// objectHeaders adds the headers of one object.
func (r *Router) objectHeaders(buf []byte, c *column, row *row, rec *cdc.Record) ([]byte, *Problem) {
	raw, sent := row.sent(c)
	object := bytes.Trim(raw, jsonSpace)
	switch {
	case !sent:
		return buf, c.notSent()
	case raw == nil, string(object) == "null":
		return buf, nil
	case len(object) == 0, object[0] != '{', !json.Valid(object): // a column of text can have anything
		return buf, c.problem(ValueValid, raw, "column %s is not a JSON object", c.name)
	}
	var problem *Problem
	fields := 0
	eachField(object, func(quoted, value []byte) {
		if fields++; problem != nil {
			return
		}
		text, err := unquote(quoted)
		if err != nil {
			problem = c.problem(ValueValid, raw, "column %s: the name %.*s %s", c.name, maxValue, quoted, err)
			return
		}
		key := unsafe.String(unsafe.SliceData(text), len(text)) // until objectsHeaders ends
		was, known := r.names[key]
		r.names[key] = headerName{by: c}
		switch {
		case fields > outboxtable.MaxHeaders:
			problem = c.problem(ValueValid, raw, "column %s has more than %d headers", c.name, outboxtable.MaxHeaders)
			return
		case was.by == c:
			problem = c.problem(ValueValid, raw, "column %s has the header %q twice", c.name, key)
			return
		case slices.Contains(r.dropped, key):
			return
		case known && was.empty == 0, !known && r.reserves(key):
			r.leftOut.add(fmt.Sprintf("event %q of %s: %q in column %s", rec.EventID, row.relation, key, c.name))
			return
		}
		switch {
		case string(value) == "null":
			value = nil
		case value[0] == '"':
			if value, err = unquote(value); err != nil {
				problem = c.bad(raw, fmt.Errorf("header %q %w", key, err))
				return
			}
		}
		var out []byte
		if buf, out, problem = c.append(buf, rec.Topic, value); problem != nil {
			return
		}
		if known {
			rec.Headers[was.empty-1].Value = out
			return
		}
		at := len(buf)
		buf = append(buf, text...)
		key = unsafe.String(unsafe.SliceData(buf[at:]), len(text)) // the bytes of a record never change
		rec.Headers = append(rec.Headers, cdc.Header{Key: key, Value: out})
	})
	return buf, problem
}

// reserves reports whether no object gives the header with this name, because walpost adds it behind
// the router, or records.headers inserts it.
func (r *Router) reserves(key string) bool {
	return outboxtable.ReservedHeader(key) || slices.ContainsFunc(r.fixed.last, func(h cdc.Header) bool { return h.Key == key })
}
