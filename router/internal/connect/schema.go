// Package connect has Kafka Connect's data model and its converters. A converter turns a value with
// a schema into the bytes of a key, a value or a header, as Kafka Connect 4.3 does. The package is
// pure and knows neither Postgres nor the EventRouter.
package connect

import "math/big"

// A Type is the physical type of a Schema, by its name in Kafka Connect (org.apache.kafka.connect.data.Schema.Type).
type Type string

const (
	Int8    Type = "INT8"
	Int16   Type = "INT16"
	Int32   Type = "INT32"
	Int64   Type = "INT64"
	Float32 Type = "FLOAT32"
	Float64 Type = "FLOAT64"
	Boolean Type = "BOOLEAN"
	String  Type = "STRING"
	Bytes   Type = "BYTES"
	Array   Type = "ARRAY"
	Map     Type = "MAP"
	Struct  Type = "STRUCT"
)

// A Schema describes values. It must not change after a converter has seen it, because the
// converter remembers it. Make one schema for each column, not one for each row.
type Schema struct {
	Type     Type
	Optional bool
	Name     string // of a logical type or a struct; "" for none
	Version  int32  // 0 for none
	Doc      string
	Params   []Param // in the order in which Connect writes them

	// Default is the value of a field that has none. It counts only if HasDefault is set, and may
	// be nil.
	HasDefault bool
	Default    any

	Fields []Field // of a Struct
	Elem   *Schema // of an Array, and the values of a Map
	Key    *Schema // of a Map

	// Passing means that the schema, or one in it, was made for one value, so a converter need not remember it.
	Passing bool
}

// A Param is one parameter of a Schema.
type Param struct{ Key, Value string }

// A Field is one field of a Struct.
type Field struct {
	Name   string
	Schema *Schema
}

// Values are Go values by the type of their schema:
//
//	Int8 to Int64   int64
//	Float32         float32
//	Float64         float64
//	Boolean         bool
//	String          string
//	Bytes           []byte; for the logical type Decimal *Unscaled
//	Array           []any
//	Map             []Entry, in the order in which they are written
//	Struct          []any, one for each of Fields
//
// nil is NULL for every type. The logical types Date, Time and Timestamp (time.precision.mode:
// connect) are the integers that Connect stores: days since 1970, milliseconds of the day, and
// milliseconds since 1970.

// An Entry is one entry of a Map.
type Entry struct{ Key, Value any }

// The names of Kafka Connect's own logical types.
const (
	DecimalName   = "org.apache.kafka.connect.data.Decimal"
	DateName      = "org.apache.kafka.connect.data.Date"
	TimeName      = "org.apache.kafka.connect.data.Time"
	TimestampName = "org.apache.kafka.connect.data.Timestamp"
)

// A Converter writes values as bytes. It must be used by one goroutine at a time.
type Converter interface {
	// Append appends the bytes of v to dst. If null is true, Kafka gets a null, and out is dst. An
	// error says why Connect cannot convert the value either. topic is the topic of the record,
	// which Connect's messages name. A nil schema is only for nil and for a string. Append does not keep v.
	Append(dst []byte, topic string, s *Schema, v any) (out []byte, null bool, err error)
}

// An Unscaled is a decimal number: Value / 10^Scale, a java.math.BigDecimal.
type Unscaled struct {
	Value *big.Int
	Scale int32
}
