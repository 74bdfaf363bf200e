package router

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// memberType is the type of the headers in an object.
var memberType = &pgvalue.Type{Schema: &connect.Schema{Type: connect.String, Optional: true}, Text: true}

// maxMembers bounds the room for headers of objects in a record, because no window counts it.
const maxMembers = 16

// reservedPrefix begins the names of the headers that walpost itself adds, such as walpost.origin.
const reservedPrefix = "walpost."

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

// objectHeaders adds the fields of a JSON object as headers, in the order in which Postgres prints
// them. rec has the record's other headers, those of p.headers from index placed on. They take
// precedence unless their column is NULL.
func (r *Router) objectHeaders(buf []byte, p *plan, c *column, row *row, rec *cdc.Record, placed int) ([]byte, *Problem) {
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
	own := len(rec.Headers)
	eachField(object, func(quoted, value []byte) {
		if problem != nil {
			return
		}
		name, err := unquote(quoted)
		if err != nil {
			problem = c.problem(ValueValid, raw, "column %s: the name %.*s %s", c.name, maxValue, quoted, err)
			return
		}
		i := slices.IndexFunc(rec.Headers, func(h cdc.Header) bool { return h.Key == string(name) })
		empty := i >= placed && i < placed+len(p.headers) && row.text(&p.headers[i-placed]) == nil
		switch {
		case i >= own:
			problem = c.problem(ValueValid, raw, "column %s has the header %q twice", c.name, name)
			return
		case i >= 0 && !empty, i < 0 && r.reserves(name):
			return
		}
		switch {
		case string(value) == "null":
			value = nil
		case value[0] == '"':
			if value, err = unquote(value); err != nil {
				problem = c.bad(raw, fmt.Errorf("header %q %w", name, err))
				return
			}
		}
		var out []byte
		if buf, out, problem = c.append(buf, rec.Topic, value); problem != nil {
			return
		}
		if i >= 0 {
			rec.Headers[i].Value = out
			return
		}
		at := len(buf)
		buf = append(buf, name...)
		key := unsafe.String(unsafe.SliceData(buf[at:]), len(name)) // the bytes of a record never change
		rec.Headers = append(rec.Headers, cdc.Header{Key: key, Value: out})
	})
	return buf, problem
}

// reserves reports whether no object gives the header with this name: records.headers inserts or drops
// it, or walpost adds it behind the router.
func (r *Router) reserves(name []byte) bool {
	return strings.HasPrefix(string(name), reservedPrefix) || slices.Contains(r.dropped, string(name)) ||
		slices.ContainsFunc(r.fixed.last, func(h cdc.Header) bool { return h.Key == string(name) })
}
