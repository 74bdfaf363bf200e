package router

import (
	"fmt"

	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// A column is one column of the table as a value of Kafka Connect, with the converter that writes
// it.
type column struct {
	index  int    // in the relation
	name   string // in the table
	field  string // the name of the header, or of the field of the envelope
	option string // the option that names the column
	typ    *pgvalue.Type
	conv   connect.Converter
}

// problem is a problem of the column. raw is the text of its value, or nil if the value does not
// matter.
func (c *column) problem(rule Rule, raw []byte, format string, args ...any) *Problem {
	return &Problem{
		Rule: rule, Option: c.option, Column: c.name,
		Value: fmt.Sprintf("%.*s", maxValue, raw), Message: fmt.Sprintf(format, args...),
	}
}

// bad is the problem of a value that cannot become what the option makes of it.
func (c *column) bad(raw []byte, err error) *Problem {
	return c.problem(ValueValid, raw, "column %s: %s", c.name, err)
}

// append appends to buf the bytes that the converter makes of a text, and returns them, too. out is
// nil if Kafka gets a null. A nil text is NULL: then the column's default counts, as in Connect's
// Struct.get.
func (c *column) append(buf []byte, topic string, raw []byte) (grown, out []byte, _ *Problem) {
	var err error
	if c.typ.Text && raw != nil {
		at := len(buf)
		var null bool
		buf, null, err = c.conv.AppendText(buf, topic, c.typ.Schema, raw)
		buf, out, err = cut(buf, at, null, err)
	} else {
		var v any
		if v, err = c.value(raw); err == nil {
			buf, out, err = convert(buf, c.conv, topic, c.typ.Schema, v)
		}
	}
	if err != nil {
		return buf, nil, c.bad(raw, err)
	}
	return buf, out, nil
}

// value is what Connect's Struct.get returns for the column.
func (c *column) value(raw []byte) (any, error) {
	v, err := c.parse(raw)
	if v == nil && err == nil && c.typ.Schema.HasDefault {
		v = c.typ.Schema.Default
	}
	return v, err
}

// parse is what Connect's Struct.getWithoutDefault returns for the column.
func (c *column) parse(raw []byte) (any, error) {
	if raw == nil {
		return nil, nil
	}
	return c.typ.Parse(raw)
}

// convert appends to buf the bytes that a converter makes of a value, and returns them, too.
func convert(buf []byte, conv connect.Converter, topic string, s *connect.Schema, v any) (grown, out []byte, err error) {
	at := len(buf)
	buf, null, err := conv.Append(buf, topic, s, v)
	return cut(buf, at, null, err)
}

// cut returns what was appended to buf behind the offset at.
func cut(buf []byte, at int, null bool, err error) (grown, out []byte, _ error) {
	if err != nil || null {
		return buf[:at], nil, err
	}
	return buf, buf[at:len(buf):len(buf)], nil
}

// probe returns why a converter cannot write values with this schema, in Kafka Connect's own words.
// It has the converter write a null, which every schema allows here, so that an error is about the
// schema. A converter with a registry checks the schema itself, because nothing may be registered here. last is false
// if the values may still get another schema.
func probe(conv connect.Converter, name string, s *connect.Schema, last bool) error {
	if c, ok := conv.(interface {
		Check(s *connect.Schema, subject bool) error
	}); ok {
		return c.Check(s, last)
	}
	optional := *s
	optional.Optional = true
	_, _, err := conv.Append(nil, name, &optional, nil)
	return err
}
