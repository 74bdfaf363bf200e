package connect

import (
	"cmp"
	"strconv"
	"strings"
)

var jsonTypes = map[Type]string{Float32: "float", Float64: "double"} // the others are as in Kafka Connect, in lower case

// appendSchema appends a schema as JsonConverter.asJsonSchema does. field is the name of the field
// that has the schema, or nil.
func (c *jsonConverter) appendSchema(dst []byte, s *Schema, field *string) (_ []byte, err error) {
	s = schemaOf(s)
	if s.Type == "" {
		return dst, throw("Couldn't translate unsupported schema type %s.", s.Type)
	}
	dst = append(dst, `{"type":"`...)
	dst = append(dst, cmp.Or(jsonTypes[s.Type], strings.ToLower(string(s.Type)))...)
	dst = append(dst, '"')
	switch s.Type { //nolint:exhaustive // the others have no parts
	case Array:
		if dst, err = c.appendSchema(append(dst, `,"items":`...), s.Elem, nil); err != nil {
			return dst, err
		}
	case Map:
		if dst, err = c.appendSchema(append(dst, `,"keys":`...), s.Key, nil); err != nil {
			return dst, err
		}
		if dst, err = c.appendSchema(append(dst, `,"values":`...), s.Elem, nil); err != nil {
			return dst, err
		}
	case Struct:
		dst = append(dst, `,"fields":[`...)
		for i, f := range s.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = c.appendSchema(dst, f.Schema, &f.Name); err != nil {
				return dst, err
			}
		}
		dst = append(dst, ']')
	}
	dst = strconv.AppendBool(append(dst, `,"optional":`...), s.Optional)
	if s.Name != "" {
		dst = appendJSONString(append(dst, `,"name":`...), s.Name)
	}
	if s.Version != 0 {
		dst = strconv.AppendInt(append(dst, `,"version":`...), int64(s.Version), 10)
	}
	if s.Doc != "" {
		dst = appendJSONString(append(dst, `,"doc":`...), s.Doc)
	}
	if len(s.Params) > 0 {
		dst = append(dst, `,"parameters":{`...)
		for i, p := range s.Params {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendJSONString(dst, p.Key), ':')
			dst = appendJSONString(dst, p.Value)
		}
		dst = append(dst, '}')
	}
	if s.HasDefault && s.Default != nil {
		if dst, err = c.append(append(dst, `,"default":`...), s, s.Default); err != nil {
			return dst, err
		}
	}
	if field != nil {
		dst = appendJSONString(append(dst, `,"field":`...), *field)
	}
	return append(dst, '}'), nil
}
