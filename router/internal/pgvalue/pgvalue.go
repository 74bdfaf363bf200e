// Package pgvalue translates a Postgres column into Kafka Connect's data model: its schema, and its
// values from the text that Postgres prints. The results are those of Debezium's Postgres connector
// 3.6.1 with pgoutput, including its oddities.
//
// The text must come from a connection with the pinned settings (see cdc.Value), and the cdc.Column
// must have the fields of the catalog. testdata/debezium holds the results of Debezium itself, and
// says how to record them again.
package pgvalue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// A Type is a column in Kafka Connect's data model. It is immutable, and any number of goroutines
// may use it.
type Type struct {
	// Schema is optional unless the column is NOT NULL. It has the default that Debezium makes from
	// the catalog's. This default also replaces a NULL if a field is read by Struct.get, as the
	// EventRouter does.
	Schema *connect.Schema
	// Text means that the values are strings, equal to the column's text. Parse only makes a string
	// of the text.
	Text bool
	// Parse makes a value (see package connect) from the column's text. It is not called for NULL.
	// The value owns its bytes. A nil value must be treated as NULL: Debezium leaves a field out,
	// with a warning, if it cannot represent the value (such as numeric NaN with
	// decimal.handling.mode=precise). An error means that Debezium stops, or that the text is not
	// of this type.
	Parse func(raw []byte) (any, error)
}

// Column returns the Type of a column. The error says why the column cannot be used: Debezium
// leaves it out of its records.
func Column(c *cdc.Column, m Modes) (*Type, error) {
	t := pgType{oid: c.TypeOID, name: c.BaseName, mod: c.BaseTypeMod, labels: c.EnumLabels}
	if c.BaseType != 0 {
		t.oid = c.BaseType
	}
	if c.BaseName == "" { // the catalog was not read
		t.mod = c.TypeMod
	}
	if c.ElementType != 0 {
		t.element = &pgType{oid: c.ElementType, name: c.ElementName, mod: t.mod, labels: c.ElementLabels}
	}
	v := representationOf(t, m, !c.NotNull)
	if v == nil {
		name := c.TypeName
		if name == "" {
			name = fmt.Sprintf("type with OID %d", c.TypeOID)
		}
		return nil, fmt.Errorf("column %s is a %s: Debezium leaves columns of this type out of its records, so walpost has no value for it (a column of type text works)", c.Name, name)
	}
	schema := *v.schema
	schema.Optional = !c.NotNull
	if c.HasDefault && c.BaseType == 0 { // Debezium does not find the default of a domain
		schema.Default, schema.HasDefault = defaultOf(t, m, v, c.Default)
	}
	out := &Type{Schema: &schema, Text: v.text, Parse: v.parse}
	if !v.text {
		out.Parse = guard(v.parse, c.NotNull && !schema.HasDefault)
	}
	return out, nil
}

// guard returns a parse for users of a column. required is set if the column is NOT NULL and has no
// default.
func guard(parse func([]byte) (any, error), required bool) func([]byte) (any, error) {
	return func(raw []byte) (any, error) {
		v, err := parse(raw)
		if errors.Is(err, errLeftOut) {
			v, err = nil, nil
		}
		switch {
		case err != nil:
			return nil, err
		case v == nil && required:
			return nil, fmt.Errorf("Debezium turns %.40q into NULL, and stops because the column is NOT NULL and has no default", raw) //nolint:staticcheck // a name
		}
		return v, nil
	}
}

// errLeftOut is the error for a value that Debezium cannot convert. Debezium logs it and leaves the
// whole column out of the record.
var errLeftOut = errors.New("left out by Debezium")

func noValue(raw []byte, what string) error { return fmt.Errorf("%.40q is not a valid %s", raw, what) }

// A pgType is a type without the domains around it.
type pgType struct {
	oid     uint32
	name    string // pg_type.typname
	mod     int32  // -1: none
	labels  []string
	element *pgType // of an array; its mod is the array's
}

// A representation is a type in Kafka Connect's data model. Its schema is not optional.
type representation struct {
	schema *connect.Schema
	text   bool
	// parse returns nil if Debezium makes NULL of a value, and errLeftOut if Debezium fails on it.
	parse func(raw []byte) (any, error)
	// element is parse for the elements of an array, which Debezium gets from its JDBC driver. If
	// it is nil, parse is used.
	element func(raw []byte) (any, error)
	// nested is the error for an array within an array. If it is nil, the inner array becomes NULL.
	nested error
}

// errIdentity is the error for an array within an array, if the inner type is text for Debezium.
var errIdentity = errors.New("an array within an array: Debezium writes the address of a Java object for it ([Ljava.lang.String;@3347eeff), which changes each time")

func str(raw []byte) (any, error) { return string(raw), nil }

func text(name string, params ...connect.Param) *representation {
	s := &connect.Schema{Type: connect.String, Name: name, Params: params}
	if name != "" {
		s.Version = 1
	}
	return &representation{schema: s, text: true, parse: str, nested: errIdentity}
}

// plain is the representation of a type whose schema has no name.
func plain(t connect.Type, parse func([]byte) (any, error)) *representation {
	return &representation{schema: &connect.Schema{Type: t}, parse: parse}
}

func named(t connect.Type, name string, parse func([]byte) (any, error)) *representation {
	return &representation{schema: &connect.Schema{Type: t, Name: name, Version: 1}, parse: parse}
}

// parseWith returns a parse that makes a value from the result of read.
func parseWith[T any](read func(raw []byte) (T, error), value func(T) any) func(raw []byte) (any, error) {
	return func(raw []byte) (any, error) {
		v, err := read(raw)
		if err != nil {
			return nil, err
		}
		return value(v), nil
	}
}

// texts are the types that are text for Debezium, with the names of their schemas.
var texts = map[uint32]string{
	pgtype.TextOID: "", pgtype.VarcharOID: "", pgtype.BPCharOID: "", pgtype.QCharOID: "", pgtype.InetOID: "", pgtype.CIDROID: "",
	pgtype.MacaddrOID: "", pgtype.Macaddr8OID: "", pgtype.TsrangeOID: "", pgtype.TstzrangeOID: "", pgtype.DaterangeOID: "",
	pgtype.Int4rangeOID: "", pgtype.NumrangeOID: "", pgtype.Int8rangeOID: "", pgtype.UUIDOID: "io.debezium.data.Uuid",
	pgtype.JSONOID: "io.debezium.data.Json", pgtype.JSONBOID: "io.debezium.data.Json", pgtype.XMLOID: "io.debezium.data.Xml",
	pgtype.TSVectorOID: "io.debezium.data.Tsvector",
}

// representationOf returns nil if Debezium has no schema for the type.
func representationOf(t pgType, m Modes, optional bool) *representation {
	if t.element != nil {
		return array(t, m)
	}
	if len(t.labels) > 0 {
		return text("io.debezium.data.Enum", connect.Param{Key: "allowed", Value: strings.Join(t.labels, ",")})
	}
	if name, isText := texts[t.oid]; isText {
		return text(name)
	}
	switch t.oid {
	case pgtype.BoolOID:
		return plain(connect.Boolean, boolean)
	case pgtype.BitOID, pgtype.VarbitOID:
		return bitString(t)
	case pgtype.Int2OID:
		return plain(connect.Int16, integer(16))
	case pgtype.Int4OID:
		return plain(connect.Int32, integer(32))
	case pgtype.Int8OID, pgtype.OIDOID:
		return plain(connect.Int64, integer(64))
	case pgtype.Float4OID:
		return plain(connect.Float32, float4)
	case pgtype.Float8OID:
		return plain(connect.Float64, float8)
	case pgtype.NumericOID:
		return numeric(t, m)
	case oidMoney:
		return money(m)
	case pgtype.NameOID: // it has a schema, but Debezium knows no value of it
		if optional {
			return plain(connect.String, func([]byte) (any, error) { return nil, nil })
		}
		return plain(connect.String, func([]byte) (any, error) { return "", nil })
	case pgtype.ByteaOID:
		return bytea(m)
	case pgtype.DateOID:
		return date(m)
	case pgtype.TimeOID:
		return timeOfDay(t, m)
	case pgtype.TimetzOID:
		return timetz()
	case pgtype.TimestampOID:
		return timestamp(t, m)
	case pgtype.TimestamptzOID:
		return timestamptz(t)
	case pgtype.IntervalOID:
		return interval(m)
	case pgtype.PointOID:
		return point()
	}
	if t.oid < firstUserOID {
		return nil
	}
	switch t.name { // in any schema: Debezium looks only at the name
	case "citext":
		r := text("")
		r.nested = nil
		return r
	case "isbn":
		return text("")
	case "ltree":
		return text("io.debezium.data.Ltree")
	case "hstore":
		return hstore(m)
	case "vector":
		return vector("io.debezium.data.DoubleVector", connect.Float64, float8)
	case "halfvec":
		return vector("io.debezium.data.FloatVector", connect.Float32, float4)
	case "sparsevec":
		return sparsevec()
	case "geometry":
		return geometry("io.debezium.data.geometry.Geometry", "Geometry")
	case "geography":
		return geometry("io.debezium.data.geometry.Geography", "Geography")
	}
	return nil
}

// The OIDs of types in Postgres' catalog (pg_type.dat) that pgtype does not have. They never change.
const (
	oidInt2Vector, oidOIDVector, oidMoney = 22, 30, 790
	firstUserOID                          = 16384
)
