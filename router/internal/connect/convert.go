package connect

import (
	"fmt"
	"strings"
)

// throw returns an error that Kafka Connect throws, in its own words.
func throw(format string, args ...any) error { return fmt.Errorf(format, args...) }

// errShape is the error for a value that does not fit its schema. It is a mistake of the caller.
func errShape(s *Schema, v any) error {
	return fmt.Errorf("a %T where the schema says %s", v, s.Type)
}

// schemaless is the schema of a text that has none: see Expander.
var schemaless = &Schema{Type: String, Optional: true}

// schemaOf returns s, or the schema of a text if s is nil.
func schemaOf(s *Schema) *Schema {
	if s == nil {
		return schemaless
	}
	return s
}

// isByteArray reports whether Debezium's value of the Bytes schema s is a byte[]. Otherwise it is a
// ByteBuffer. parent is the schema of the struct around it, or nil.
func isByteArray(s, parent *Schema) bool {
	const debezium = "io.debezium.data."
	return s.Name == debezium+"Bits" || parent != nil && strings.HasPrefix(parent.Name, debezium)
}
