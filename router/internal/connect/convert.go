package connect

import (
	"fmt"
)

// A TextConverter is a Converter that takes the text of a String as bytes, so that the caller needs no string and no interface value of
// it. All of this package's converters are.
type TextConverter interface {
	Converter
	// AppendText does what Append does with string(text). It does not keep text.
	AppendText(dst []byte, topic string, s *Schema, text []byte) (out []byte, null bool, err error)
}

// A dataException is an error that Kafka Connect throws, in its own words.
type dataException string

func (e dataException) Error() string { return string(e) }

func throw(format string, args ...any) error { return dataException(fmt.Sprintf(format, args...)) }

// errShape says that a value is not what its schema says: a mistake of ours.
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

// schemaless are the schemas that a value has where it has none.
var (
	schemalessString  = &Schema{Type: String, Optional: true}
	schemalessInt     = &Schema{Type: Int64, Optional: true}
	schemalessDouble  = &Schema{Type: Float64, Optional: true}
	schemalessFloat   = &Schema{Type: Float32, Optional: true}
	schemalessBoolean = &Schema{Type: Boolean, Optional: true}
	schemalessBytes   = &Schema{Type: Bytes, Optional: true}
	schemalessDecimal = &Schema{Type: Bytes, Optional: true, Name: DecimalName}
)

// schemaOf returns s, or, where it is nil, the schema that v's Go type stands for.
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

// isByteArray says that Debezium's value of the Bytes schema s, in a struct of the schema parent or nil, is a byte[]. Elsewhere it is
// a ByteBuffer.
func isByteArray(s, parent *Schema) bool {
	const debezium = "io.debezium.data."
	return s.Name == debezium+"Bits" || parent != nil && len(parent.Name) > len(debezium) && parent.Name[:len(debezium)] == debezium
}
