package connect

import (
	"fmt"
	"strings"
)

// A TextConverter is a Converter that also takes the text of a String as bytes. The caller then
// needs neither a string nor an interface value. All converters of this package are TextConverters.
type TextConverter interface {
	Converter
	// AppendText does what Append does with string(text). It does not keep text.
	AppendText(dst []byte, topic string, s *Schema, text []byte) (out []byte, null bool, err error)
}

// A dataException is an error that Kafka Connect throws, in its own words.
type dataException string

func (e dataException) Error() string { return string(e) }

func throw(format string, args ...any) error { return dataException(fmt.Sprintf(format, args...)) }

// errShape is the error for a value that does not fit its schema. It is a mistake of the caller.
func errShape(s *Schema, v any) error {
	return fmt.Errorf("a %T where the schema says %s", v, s.Type)
}

var typeNames = [...]string{
	Int8: "INT8", Int16: "INT16", Int32: "INT32", Int64: "INT64", Float32: "FLOAT32", Float64: "FLOAT64", Boolean: "BOOLEAN",
	String: "STRING", Bytes: "BYTES", Array: "ARRAY", Map: "MAP", Struct: "STRUCT",
}

// String is the type's name in Kafka Connect.
func (t Type) String() string {
	if t == 0 || int(t) >= len(typeNames) {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return typeNames[t]
}

// schemaless are the schemas of values without a schema.
var (
	schemalessString  = &Schema{Type: String, Optional: true}
	schemalessInt     = &Schema{Type: Int64, Optional: true}
	schemalessDouble  = &Schema{Type: Float64, Optional: true}
	schemalessFloat   = &Schema{Type: Float32, Optional: true}
	schemalessBoolean = &Schema{Type: Boolean, Optional: true}
	schemalessBytes   = &Schema{Type: Bytes, Optional: true}
	schemalessDecimal = &Schema{Type: Bytes, Optional: true, Name: DecimalName}
)

// schemaOf returns s. If s is nil, it returns the schema for the Go type of v.
func schemaOf(s *Schema, v any) (*Schema, error) {
	if s != nil {
		return s, nil
	}
	switch v.(type) {
	case string:
		return schemalessString, nil
	case int64:
		return schemalessInt, nil
	case float64:
		return schemalessDouble, nil
	case float32:
		return schemalessFloat, nil
	case bool:
		return schemalessBoolean, nil
	case []byte:
		return schemalessBytes, nil
	case *Unscaled:
		return schemalessDecimal, nil
	}
	return nil, fmt.Errorf("a %T without a schema", v)
}

// isByteArray reports whether Debezium's value of the Bytes schema s is a byte[]. Otherwise it is a
// ByteBuffer. parent is the schema of the struct around it, or nil.
func isByteArray(s, parent *Schema) bool {
	const debezium = "io.debezium.data."
	return s.Name == debezium+"Bits" || parent != nil && strings.HasPrefix(parent.Name, debezium)
}
