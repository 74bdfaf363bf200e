package router

import (
	"fmt"

	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// A source is one column, as a value of Kafka Connect, and the converter that makes bytes of it.
type source struct {
	index  int
	name   string // of the header or field, or of the column
	typ    *pgvalue.Type
	conv   connect.TextConverter
	option string // that names the column, for problems
	column string // its name in the table, for problems
}

// bad is the problem of a value that cannot become what the option makes of it.
func (s *source) bad(raw []byte, err error) *Problem {
	return s.problem(ValueValid, raw, "column %s: %s", s.column, err)
}

func (s *source) problem(rule Rule, raw []byte, format string, args ...any) *Problem {
	return &Problem{
		Rule: rule, Option: s.option, Column: s.column, Value: fmt.Sprintf("%.*s", maxValue, raw), Message: fmt.Sprintf(format, args...),
	}
}

// append appends to buf the bytes of the column whose text is raw, and returns them too, nil where Kafka gets a null. raw nil is NULL, which
// is the column's default where it has one: Kafka Connect's Struct.get.
func (s *source) append(buf []byte, topic string, raw []byte) (grown, out []byte, err error) {
	if s.typ.Text && raw != nil {
		at := len(buf)
		buf, null, err := s.conv.AppendText(buf, topic, s.typ.Schema, raw)
		return cut(buf, at, null, err)
	}
	v, err := s.value(raw)
	if err != nil {
		return buf, nil, err
	}
	return convert(buf, s.conv, topic, s.typ.Schema, v)
}

// value is what Struct.get gives for the column.
func (s *source) value(raw []byte) (any, error) {
	v, err := parse(s.typ, raw)
	if v == nil && err == nil && s.typ.Schema.HasDefault {
		v = s.typ.Schema.Default
	}
	return v, err
}

// parse is what Struct.getWithoutDefault gives for a column.
func parse(t *pgvalue.Type, raw []byte) (any, error) {
	if raw == nil {
		return nil, nil
	}
	return t.Parse(raw)
}

// convert appends to buf what conv makes of a value.
func convert(buf []byte, conv connect.Converter, topic string, s *connect.Schema, v any) (grown, out []byte, err error) {
	at := len(buf)
	buf, null, err := conv.Append(buf, topic, s, v)
	return cut(buf, at, null, err)
}

func cut(buf []byte, at int, null bool, err error) (grown, out []byte, _ error) {
	if err != nil || null {
		return buf[:at], nil, err
	}
	return buf, buf[at:len(buf):len(buf)], nil
}

// probe returns why a converter cannot write values with this schema, in Kafka Connect's own words. It has the converter write
// a null, which every schema allows here, so that an error is about the schema.
func probe(conv connect.Converter, name string, s *connect.Schema) error {
	optional := *s
	optional.Optional = true
	_, _, err := conv.Append(nil, name, &optional, nil)
	return err
}
