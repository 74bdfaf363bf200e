package router

import (
	"fmt"
	"unsafe"

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

// convert returns the bytes that the converter makes of the row's value, or nil if Kafka gets a null. They are
// in the row's buffer.
func (c *column) convert(r *row, topic string) ([]byte, *Problem) {
	raw := r.text(c)
	v, err := c.value(raw)
	if err != nil {
		return nil, c.bad(raw, err)
	}
	out, err := r.convert(c.conv, topic, c.typ.Schema, v)
	if err != nil {
		return nil, c.bad(raw, err)
	}
	return out, nil
}

// value is what Connect's Struct.get returns for the column. A nil text is NULL: then the column's default counts.
func (c *column) value(raw []byte) (any, error) {
	v, err := c.parse(raw)
	if v == nil && err == nil && c.typ.Schema.HasDefault {
		v = c.typ.Schema.Default
	}
	return v, err
}

// parse is what Connect's Struct.getWithoutDefault returns for the column. A text shares the bytes of raw, so it is
// valid until the event ends.
func (c *column) parse(raw []byte) (any, error) {
	switch {
	case raw == nil:
		return nil, nil
	case c.typ.Text:
		return unsafe.String(unsafe.SliceData(raw), len(raw)), nil
	}
	return c.typ.Parse(raw)
}

// probe returns why a converter cannot write values with this schema, in Kafka Connect's own words.
// It has the converter write a null, which every schema allows here, so that an error is about the
// schema.
func probe(conv connect.Converter, name string, s *connect.Schema) error {
	optional := *s
	optional.Optional = true
	_, _, err := conv.Append(nil, name, &optional, nil)
	return err
}
