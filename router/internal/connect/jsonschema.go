package connect

import "errors"

// JSONSchemaOptions are the options of Confluent's JsonSchemaConverter.
type JSONSchemaOptions struct {
	RegistryOptions
	NumericDecimals bool // decimal.format: numeric
	Closed          bool // object.additional.properties: false
}

// NewJSONSchema returns Confluent's JsonSchemaConverter. It writes JSON in the wire format of
// Confluent's registry, as NewAvro does.
//
// A null is null for Kafka if its schema requires a value, and the text null otherwise.
func NewJSONSchema(o JSONSchemaOptions) Converter {
	c := &jsonSchemaConverter{json: jsonConverter{o: JSONOptions{NumericDecimals: o.NumericDecimals, ReplaceNullWithDefault: true}, registered: true}}
	p := jsonSchemaPrinter{json: &c.json, closed: o.Closed}
	c.registered = newRegistered(o.RegistryOptions, "JSON", p.schema)
	return c
}

type jsonSchemaConverter struct {
	*registered
	json jsonConverter
}

var errSchemaless = errors.New("a value without a schema has no JSON Schema")

func (c *jsonSchemaConverter) Append(dst []byte, topic string, s *Schema, v any) (out []byte, null bool, err error) {
	if s == nil {
		if v == nil {
			return dst, true, nil
		}
		return dst, false, errSchemaless
	}
	a, err := c.schema(s)
	if err != nil {
		return dst, false, err
	}
	if v == nil && !s.Optional && !hasDefault(s) {
		return dst, true, nil
	}
	if out, err = c.frame(dst, topic, a); err != nil {
		return dst, false, err
	}
	if out, err = c.json.append(out, s, v); err != nil {
		return dst, false, err
	}
	return out, false, nil
}

func (c *jsonSchemaConverter) AppendText(dst []byte, topic string, s *Schema, text []byte) (out []byte, null bool, err error) {
	if s == nil || s.Type != String || logical(s) {
		return c.Append(dst, topic, s, string(text))
	}
	if out, err = c.open(dst, topic, s); err != nil {
		return dst, false, err
	}
	return appendJSONString(out, text), false, nil
}
