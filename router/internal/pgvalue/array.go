package pgvalue

import (
	"bytes"

	"github.com/walpost/walpost/router/internal/connect"
)

// array is the representation of an array, or nil if Debezium leaves the array out. Debezium has a
// list of element types that may be NULL. Elements of its other types must not be NULL.
func array(t pgType, m Modes) *representation {
	e := *t.element
	switch e.oid {
	case oidMoney, oidName, oidInterval, oidVarbit, oidXML, oidPoint:
		return nil
	case oidBit: // Debezium has the schema of one bit string, and no value
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
	required := len(e.labels) > 0 || e.oid == oidTSVector
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
		out := make([]any, 0, min(bytes.Count(raw, []byte(","))+1, 1024))
		err := elements(raw, func(item []byte, is itemKind) (err error) {
			var v any
			switch is {
			case isValue:
				v, err = parse(item)
			case isArray:
				err = element.nested
			case isNull:
				if nullFails {
					err = errLeftOut
				}
			}
			if err == nil && v == nil && required {
				err = errLeftOut
			}
			out = append(out, v)
			return err
		})
		if err != nil {
			return nil, err
		}
		return out, nil
	}
	return r
}

type itemKind uint8

const (
	isValue itemKind = iota
	isNull
	isArray
)

// elements reads an array as Postgres prints it and calls a function for each outermost element.
// The item is valid only during the call.
func elements(raw []byte, each func(item []byte, is itemKind) error) error {
	s := raw
	if len(s) > 0 && s[0] == '[' { // bounds that do not begin at 1: [0:1]={a,b}
		_, s, _ = bytes.Cut(s, []byte("="))
	}
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' {
		return noValue(raw, "array")
	}
	if s = s[1 : len(s)-1]; len(s) == 0 {
		return nil
	}
	var unescaped []byte
	for {
		item, is, rest, ok := element(s, &unescaped)
		if !ok {
			return noValue(raw, "array")
		}
		if err := each(item, is); err != nil {
			return err
		}
		if len(rest) == 0 {
			return nil
		}
		if rest[0] != ',' {
			return noValue(raw, "array")
		}
		s = rest[1:]
	}
}

// element reads one element and returns the rest of the text.
func element(s []byte, unescaped *[]byte) (item []byte, is itemKind, rest []byte, ok bool) {
	if len(s) == 0 {
		return nil, 0, nil, false
	}
	switch s[0] {
	case '{':
		depth, quoted := 0, false
		for i := 0; i < len(s); i++ {
			switch c := s[i]; {
			case c == '\\':
				i++
			case c == '"':
				quoted = !quoted
			case c == '{' && !quoted:
				depth++
			case c == '}' && !quoted:
				if depth--; depth == 0 {
					return nil, isArray, s[i+1:], true
				}
			}
		}
		return nil, 0, nil, false
	case '"':
		*unescaped, rest, ok = unquote(s, (*unescaped)[:0])
		return *unescaped, isValue, rest, ok
	}
	end := bytes.IndexByte(s, ',')
	if end < 0 {
		end = len(s)
	}
	if item = s[:end]; string(item) == "NULL" {
		return nil, isNull, s[end:], true
	}
	return item, isValue, s[end:], len(item) > 0 && bytes.IndexByte(item, '"') < 0
}

// unquote appends to b the text between the quote at the start of s and the next one, without its
// backslashes.
func unquote(s, b []byte) (text, rest []byte, ok bool) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b, s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return nil, nil, false
			}
		}
		b = append(b, s[i])
	}
	return nil, nil, false
}
