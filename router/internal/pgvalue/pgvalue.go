// Package pgvalue says what a Postgres column is in Kafka Connect's data model: its schema, and its values from the text that
// Postgres prints, exactly as Debezium's Postgres connector 3.6.1 makes them of a stream of pgoutput, its oddities included.
//
// The text must come from a connection with the pinned settings (see cdc.Value), and what the catalog says must be in the cdc.Column.
// testdata/debezium holds what Debezium itself gave, and how to ask it again.
package pgvalue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// A Type is a column in Kafka Connect's data model. It is immutable, and any number of goroutines
// may use it.
type Type struct {
	// Schema is the column's: optional unless the column is NOT NULL, with the default that Debezium makes of the catalog's. That
	// default also stands for a NULL wherever a field is read as the EventRouter reads it (Struct.get).
	Schema *connect.Schema
	// Text says that values are strings whose text is the column's as it stands: Parse would only make a string of it.
	Text bool
	// Parse makes a value, as package connect describes them, of a column's text. It is not called for NULL. The value owns its
	// bytes. It may be nil, which is to be treated as NULL: Debezium logs a warning and leaves the field out where it cannot
	// represent a value (numeric NaN with decimal.handling.mode=precise is one). An error stands for what stops Debezium, and for
	// a text that is none of the type.
	Parse func(raw []byte) (any, error)
}

// Column returns the Type of a column. The error says why the column cannot be used: Debezium
// leaves it out of its records.
func Column(c *cdc.Column, m Modes) (*Type, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	t := pgType{oid: c.TypeOID, name: c.BaseName, mod: c.BaseTypeMod, labels: c.EnumLabels}
	if c.BaseType != 0 {
		t.oid = c.BaseType
	}
	if c.BaseName == "" { // the catalog was not read
		t.name, t.mod = bareName(c.TypeName), c.TypeMod
	}
	if c.ElementType != 0 {
		t.element = &pgType{oid: c.ElementType, name: c.ElementName, mod: t.mod, labels: c.ElementLabels}
	}
	m = m.withDefaults()
	v := representationOf(t, m, !c.NotNull)
	if v == nil {
		name := c.TypeName
		if name == "" {
			name = fmt.Sprintf("type with OID %d", c.TypeOID)
		}
		return nil, fmt.Errorf("column %s is a %s: Debezium leaves columns of this type out of its records, so there is no value to take over (a column of type text works)", c.Name, name)
	}
	schema := *v.schema
	schema.Optional = !c.NotNull
	if c.HasDefault && c.BaseType == 0 { // Debezium looks for a domain by its name, and finds nothing
		schema.Default, schema.HasDefault = defaultOf(t, m, v, c.Default)
	}
	out := &Type{Schema: &schema, Text: v.text, Parse: v.parse}
	if !v.text {
		out.Parse = guard(v.parse, c.NotNull && !schema.HasDefault)
	}
	return out, nil
}

// guard returns a parse for users of a column. required is set if the column is NOT NULL and has no default.
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
			return nil, fmt.Errorf("Debezium makes NULL of %.40q, and stops because the column is NOT NULL and has no default", raw) //nolint:staticcheck // a name
		}
		return v, nil
	}
}

// errLeftOut is the error for a value that Debezium cannot convert. Debezium logs it and leaves the
// whole column out of the record.
var errLeftOut = errors.New("left out by Debezium")

func noValue(raw []byte, what string) error { return fmt.Errorf("%.40q is no %s", raw, what) }

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
	// parse returns nil for a value that Debezium makes NULL, errLeftOut for one that fails it.
	parse func(raw []byte) (any, error)
	// element, where set, is parse for the elements of an array, which reach Debezium as what its JDBC driver makes of them.
	element func(raw []byte) (any, error)
	// nested is what becomes of an array within an array. nil makes it NULL.
	nested error
}

// errIdentity is the error for an array within an array, if the inner type is text for Debezium.
var errIdentity = errors.New("an array within an array: Debezium writes the address of a Java object for it ([Ljava.lang.String;@3347eeff), which is another one each time")

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

// representationOf returns nil if Debezium has no schema for the type.
func representationOf(t pgType, m Modes, optional bool) *representation {
	if t.element != nil {
		return array(t, m)
	}
	if t.isArrayName() { // of which the catalog said nothing
		return nil
	}
	if len(t.labels) > 0 {
		return text("io.debezium.data.Enum", connect.Param{Key: "allowed", Value: strings.Join(t.labels, ",")})
	}
	switch t.oid {
	case oidBool:
		return plain(connect.Boolean, boolean)
	case oidBit, oidVarbit:
		return bitString(t)
	case oidInt2:
		return plain(connect.Int16, integer(16))
	case oidInt4:
		return plain(connect.Int32, integer(32))
	case oidInt8:
		return plain(connect.Int64, integer(64))
	case oidOID:
		return plain(connect.Int64, integer(64))
	case oidFloat4:
		return plain(connect.Float32, float4)
	case oidFloat8:
		return plain(connect.Float64, float8)
	case oidNumeric:
		return numeric(t, m)
	case oidMoney:
		return money(m)
	case oidText, oidVarchar, oidBPChar, oidChar, oidInet, oidCIDR, oidMacaddr, oidMacaddr8, oidTSRange, oidTSTZRange, oidDateRange,
		oidInt4Range, oidNumRange, oidInt8Range:
		return text("")
	case oidName: // it has a schema, but Debezium knows no value of it
		if optional {
			return plain(connect.String, func([]byte) (any, error) { return nil, nil })
		}
		return plain(connect.String, func([]byte) (any, error) { return "", nil })
	case oidUUID:
		return text("io.debezium.data.Uuid")
	case oidJSON, oidJSONB:
		return text("io.debezium.data.Json")
	case oidXML:
		return text("io.debezium.data.Xml")
	case oidTSVector:
		return text("io.debezium.data.Tsvector")
	case oidBytea:
		return bytea(m)
	case oidDate:
		return date(m)
	case oidTime:
		return timeOfDay(t, m)
	case oidTimetz:
		return timetz()
	case oidTimestamp:
		return timestamp(t, m)
	case oidTimestamptz:
		return timestamptz(t)
	case oidInterval:
		return interval(m)
	case oidPoint:
		return point()
	}
	if t.oid < firstUserOID {
		return nil
	}
	switch t.name { // whatever its schema is: Debezium looks at no more than the name
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
		return vector()
	case "halfvec":
		return halfvec()
	case "sparsevec":
		return sparsevec()
	case "geometry":
		return geometry("io.debezium.data.geometry.Geometry", "Geometry")
	case "geography":
		return geometry("io.debezium.data.geometry.Geography", "Geography")
	}
	return nil
}

// isArrayName reports whether a type name is that of an array. Postgres prints such a name with
// brackets and stores it with an underscore.
func (t *pgType) isArrayName() bool { return strings.HasSuffix(t.name, "[]") }

// bareName removes the schema and the quotes from a name that format_type prints.
func bareName(s string) string {
	dot, quoted := -1, false
	for i := range len(s) {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '.' && !quoted:
			dot = i
		}
	}
	s = s[dot+1:]
	if len(s) > 1 && s[0] == '"' && s[len(s)-1] == '"' {
		s = strings.ReplaceAll(s[1:len(s)-1], `""`, `"`)
	}
	return s
}

// The OIDs of types in Postgres' catalog (pg_type.dat). They never change.
const (
	oidBool, oidBytea, oidChar, oidName        = 16, 17, 18, 19
	oidInt8, oidInt2, oidInt2Vector, oidInt4   = 20, 21, 22, 23
	oidText, oidOID, oidOIDVector              = 25, 26, 30
	oidJSON, oidXML, oidPoint                  = 114, 142, 600
	oidCIDR, oidFloat4, oidFloat8              = 650, 700, 701
	oidMacaddr8, oidMoney, oidMacaddr, oidInet = 774, 790, 829, 869
	oidBPChar, oidVarchar, oidDate, oidTime    = 1042, 1043, 1082, 1083
	oidTimestamp, oidTimestamptz, oidInterval  = 1114, 1184, 1186
	oidTimetz, oidBit, oidVarbit, oidNumeric   = 1266, 1560, 1562, 1700
	oidUUID, oidTSVector, oidJSONB             = 2950, 3614, 3802
	oidInt4Range, oidNumRange, oidTSRange      = 3904, 3906, 3908
	oidTSTZRange, oidDateRange, oidInt8Range   = 3910, 3912, 3926
	firstUserOID                               = 16384
)
