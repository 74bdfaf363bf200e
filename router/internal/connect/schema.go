// Package connect has Kafka Connect's data model and its converters. A converter turns a value with
// a schema into the bytes of a key, a value or a header, as Kafka Connect 4.3 does. The package is
// pure and knows neither Postgres nor the EventRouter.
package connect

import "math/big"

// A Type is the physical type of a Schema.
type Type uint8

// The types of Kafka Connect (org.apache.kafka.connect.data.Schema.Type).
const (
	Int8 Type = iota + 1
	Int16
	Int32
	Int64
	Float32
	Float64
	Boolean
	String
	Bytes
	Array
	Map
	Struct
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

	// Default is the value of a field without one. It means something only where HasDefault is set; it may be nil then.
	HasDefault bool
	Default    any

	Fields []Field // of a Struct
	Elem   *Schema // of an Array, and the values of a Map
	Key    *Schema // of a Map

	// passing is set in a schema that was made for one value: a converter need not keep what it makes of it.
	passing bool
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
// nil is NULL, of any type. The logical types org.apache.kafka.connect.data.Date, Time and Timestamp (what time.precision.mode=connect
// gives) are the int32 or int64 that Connect stores: days, milliseconds of the day, milliseconds since 1970.

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
	// Append appends the bytes of v to dst. null says that Kafka gets a null instead of bytes (dst is returned as it was). The error
	// says why Connect could not convert the value either. topic is the record's; no converter here needs a registry, but Connect's
	// messages name it.
	Append(dst []byte, topic string, s *Schema, v any) (out []byte, null bool, err error)
}

// An Unscaled is a decimal number: Value / 10^Scale, a java.math.BigDecimal.
type Unscaled struct {
	Value *big.Int
	Scale int32
}
