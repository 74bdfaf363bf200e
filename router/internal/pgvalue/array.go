package pgvalue

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/router/internal/connect"
)

// array is the representation of an array, or nil if Debezium leaves the array out. Debezium has a
// list of element types that may be NULL. Elements of its other types must not be NULL.
func array(t pgType, m Modes) *representation {
	e := *t.element
	switch e.oid {
	case oidMoney, pgtype.NameOID, pgtype.IntervalOID, pgtype.VarbitOID, pgtype.XMLOID, pgtype.PointOID:
		return nil
	case pgtype.BitOID: // Debezium has the schema of one bit string, and no value
		r := bitString(e)
		r.parse = func([]byte) (any, error) { return nil, errLeftOut }
		return r
	}
	if e.element != nil {
		return nil
	}
	element := representationOf(e, m, true)
	if element == nil {
		return nil
	}
	parse := element.parse
	if element.element != nil {
		parse = element.element
	}
	required := len(e.labels) > 0 || e.oid == pgtype.TSVectorOID
	nullFails := false
	switch {
	case t.oid == oidInt2Vector || t.oid == oidOIDVector: // printed without braces: Debezium sees no elements
		required = true
	case e.oid < firstUserOID || required:
	case e.name == "isbn", e.name == "vector", e.name == "halfvec":
		required = true
	case e.name == "sparsevec":
		required = true
		parse = func([]byte) (any, error) { return nil, errLeftOut } // Debezium's struct has another schema than its field
	case e.name == "ltree":
		nullFails = true
	}
	schema := *element.schema
	schema.Optional = !required
	r := &representation{schema: &connect.Schema{Type: connect.Array, Elem: &schema}}
	if t.oid == oidInt2Vector || t.oid == oidOIDVector {
		r.parse = func(raw []byte) (any, error) {
			if len(raw) == 0 {
				return nil, errLeftOut
			}
			return []any{}, nil
		}
		return r
	}
	r.parse = func(raw []byte) (any, error) {
		var array pgtype.Array[*string]
		if err := pgtype.NewMap().Scan(pgtype.TextArrayOID, pgtype.TextFormatCode, raw, &array); err != nil {
			return nil, noValue(raw, "array")
		}
		if len(array.Dims) > 1 && element.nested != nil {
			return nil, element.nested
		} else if len(array.Dims) > 1 {
			array.Elements = make([]*string, array.Dims[0].Length) // each inner array becomes NULL
		}
		out := make([]any, len(array.Elements))
		for i, text := range array.Elements {
			var err error
			if text != nil {
				out[i], err = parse([]byte(*text))
			}
			if err != nil {
				return nil, err
			}
			if out[i] == nil && required || text == nil && nullFails {
				return nil, errLeftOut
			}
		}
		return out, nil
	}
	return r
}
