package libraries

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/walpost/walpost/outbox"
)

// Protobuf has payloads that are messages of Protocol Buffers, in their binary form. walpost.yaml needs
// records.value.converter: bytes. A consumer calls proto.Unmarshal with the type that Event.Type says.
func Protobuf() (*outbox.Outbox, error) {
	return outbox.New(outbox.Options{
		PayloadType: "bytea",
		Marshal: func(v any) ([]byte, error) {
			m, ok := v.(proto.Message)
			if !ok {
				return nil, fmt.Errorf("%T is not a proto.Message", v)
			}
			return proto.Marshal(m)
		},
	})
}

// ProtobufJSON has the same payloads as JSON, which other programs and SQL can read. A consumer calls
// protojson.Unmarshal.
func ProtobufJSON() (*outbox.Outbox, error) {
	return outbox.New(outbox.Options{
		Marshal: func(v any) ([]byte, error) {
			m, ok := v.(proto.Message)
			if !ok {
				return nil, fmt.Errorf("%T is not a proto.Message", v)
			}
			return protojson.Marshal(m)
		},
	})
}

// JSONSchema has payloads that their schemas allow. Write refuses all others, before it runs SQL. The
// map has the schema of each type of payload. A payload of []byte or json.RawMessage isn't checked,
// because Marshal isn't called for it.
func JSONSchema(schemas map[reflect.Type]*jsonschema.Schema) (*outbox.Outbox, error) {
	return outbox.New(outbox.Options{
		Marshal: func(v any) ([]byte, error) {
			schema, ok := schemas[reflect.TypeOf(v)]
			if !ok {
				return nil, fmt.Errorf("there is no schema for %T", v)
			}
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
			if err != nil {
				return nil, err
			}
			return text, schema.Validate(value)
		},
	})
}

// Schema compiles the text of a schema.
func Schema(text string) (*jsonschema.Schema, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("payload.json", document); err != nil {
		return nil, err
	}
	return c.Compile("payload.json")
}
