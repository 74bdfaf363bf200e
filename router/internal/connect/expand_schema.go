package connect

import (
	"errors"
	"fmt"
)

// The schemas of values without members. The last four have no type yet. Any type replaces them.
var (
	expandedString  = &Schema{Type: String, Optional: true, passing: true}
	expandedBoolean = &Schema{Type: Boolean, Optional: true, passing: true}
	expandedInt32   = &Schema{Type: Int32, Optional: true, passing: true}
	expandedInt64   = &Schema{Type: Int64, Optional: true, passing: true}
	expandedDouble  = &Schema{Type: Float64, Optional: true, passing: true}
	expandedNull    = &Schema{Type: Bytes, Optional: true, passing: true}  // of null, with NullBytes
	expandedEmpty   = &Schema{Type: String, Optional: true, passing: true} // of the elements of an empty array, with EmptyStrings
	expandedNulls   = &Schema{Type: Bytes, Optional: true, passing: true}  // of elements that are all null; another schema replaces it
	expandedNothing = &Schema{Type: Bytes, Optional: true, passing: true}  // of an array without elements; another schema replaces it
)

// unknown returns how little is known about s, and 0 if its type is known.
func unknown(s *Schema) int {
	switch s {
	case expandedNull, expandedEmpty:
		return 1
	case expandedNulls:
		return 2
	case expandedNothing:
		return 3
	}
	return 0
}

var errBigInteger = errors.New("an integer in it does not fit in 64 bits")

// infer returns the schema of n, or nil if the options drop n. path is the name of the schema with
// dots, or "".
func (x *expansion) infer(path string, n *node) (*Schema, error) {
	switch n.kind {
	case text:
		return expandedString, nil
	case boolean:
		return expandedBoolean, nil
	case integer:
		if int64(int32(n.int)) == n.int {
			return expandedInt32, nil
		}
		return expandedInt64, nil
	case bigInteger:
		x.differs |= point(2)
		return nil, errBigInteger
	case double:
		return expandedDouble, nil
	case null:
		if x.o.NullBytes {
			return expandedNull, nil
		}
		return nil, nil
	case array:
		if len(n.members) == 0 {
			if x.o.EmptyStrings {
				return arrayOf(expandedEmpty), nil
			}
			return nil, nil
		}
		elem, err := x.inferElements(path, n, false)
		if err != nil {
			return nil, err
		}
		return arrayOf(elem), nil
	default:
		return x.inferObject(path, n)
	}
}

func arrayOf(elem *Schema) *Schema {
	return &Schema{Type: Array, Optional: true, Elem: elem, passing: true}
}

func (x *expansion) inferObject(path string, n *node) (*Schema, error) {
	s := &Schema{Type: Struct, Optional: true, Name: path, passing: true}
	s.Fields = make([]Field, 0, len(n.members))
	var adjusted map[string]bool
	for i := range n.members {
		m := &n.members[i]
		name := x.o.FieldNames.Adjust(m.name)
		if name != m.name && m.node.kind != null && !(m.node.empty() && !x.o.EmptyStrings) {
			x.differs |= point(7)
		}
		var below string
		var err error
		if m.node.kind == object || m.node.kind == array {
			if below, err = x.below(path, name); err != nil {
				return nil, err
			}
		}
		fs, err := x.infer(below, &m.node)
		if err != nil {
			return nil, err
		}
		if fs == nil {
			continue
		}
		if name == "" {
			return nil, errors.New("a member of it has no name")
		}
		if x.o.FieldNames != KeepNames {
			if adjusted == nil {
				adjusted = make(map[string]bool, len(n.members))
			}
			if adjusted[name] {
				x.differs |= point(7)
				return nil, fmt.Errorf("two members of one object in it become %s", name)
			}
			adjusted[name] = true
		}
		s.Fields = append(s.Fields, Field{Name: name, Schema: fs})
	}
	return s, nil
}

// below returns the path of a member. An array of objects asks for the same path with each object,
// so the string is kept.
func (x *expansion) below(path, name string) (string, error) {
	if Blank(path) {
		return name, nil
	}
	key := [2]string{path, name}
	if below, there := x.paths[key]; there {
		return below, nil
	}
	if err := x.spend(len(path)); err != nil {
		return "", err
	}
	if x.paths == nil {
		x.paths = make(map[[2]string]string)
	}
	below := path + "." + name
	x.paths[key] = below
	return below, nil
}

// Blank is Java's String.trim().isEmpty(): the text has no character above the space.
func Blank[T string | []byte](text T) bool {
	for i := range len(text) {
		if text[i] > ' ' {
			return false
		}
	}
	return true
}

// inferElements returns the one schema of all elements of an array, which must not be empty.
// lenient means that Debezium does not look at the elements, because it has a schema from
// elsewhere.
func (x *expansion) inferElements(path string, n *node, lenient bool) (*Schema, error) {
	var sample *node
	nulls := false
	for i := range n.members {
		elem := &n.members[i].node
		switch {
		case elem.kind == null:
			nulls = true
		case sample == nil:
			sample = elem
		case !sameType(sample, elem):
			return nil, errors.New("an array in it mixes types")
		}
	}
	switch {
	case sample == nil && lenient:
		return expandedNulls, nil
	case sample == nil && x.o.NullBytes:
		return expandedNull, nil
	case sample == nil:
		return nil, errors.New("an array in it has only nulls")
	case sample.kind == object:
		return x.inferObjects(path, n, nulls)
	case sample.kind == array:
		return x.inferArrays(n, lenient)
	}
	for i := range n.members { // Debezium takes a big integer for a double at first
		if n.members[i].node.kind == bigInteger {
			return x.infer("", &n.members[i].node)
		}
	}
	return x.infer("", sample)
}

// sameType reports whether two elements of one array have the same type for Debezium.
func sameType(a, b *node) bool {
	class := func(n *node) kind {
		switch {
		case n.kind == bigInteger:
			return double
		case n.kind == integer && int64(int32(n.int)) != n.int:
			return bigInteger // no other node has this class
		}
		return n.kind
	}
	return class(a) == class(b)
}

// inferObjects merges the schemas of the objects in an array.
func (x *expansion) inferObjects(path string, n *node, nulls bool) (*Schema, error) {
	var first *Schema
	var all *merged
	for i := range n.members {
		elem := &n.members[i].node
		if elem.kind == null {
			continue
		}
		s, err := x.inferObject(path, elem)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = s
			continue
		}
		if equal(first, s) {
			continue
		}
		if all == nil {
			all = newMerged(first)
		}
		x.differs |= point(4)
		if err := x.mergeInto(all, s); err != nil {
			return nil, err
		}
	}
	if all == nil {
		return first, nil
	}
	// Debezium's merged schemas are not optional.
	if all.schema.Optional = nulls; nulls {
		x.differs |= point(6)
	}
	return all.schema, nil
}

// inferArrays merges the schemas of the arrays in an array. Debezium takes the first one that is
// not null.
func (x *expansion) inferArrays(n *node, lenient bool) (*Schema, error) {
	var s *Schema
	for i := range n.members {
		elem := &n.members[i].node
		if elem.kind == null {
			continue
		}
		var of *Schema
		var err error
		switch {
		case s != nil || lenient:
			if elem.empty() {
				of = expandedNothing
			} else if of, err = x.inferElements("", elem, true); err != nil {
				x.differs |= point(5)
				return nil, err
			}
			of = arrayOf(of)
		default:
			if of, err = x.infer("", elem); err != nil {
				return nil, err
			}
			if of == nil {
				return nil, errors.New("an array in it has an empty array as its first element")
			}
		}
		if s == nil {
			s = of
			continue
		}
		if s, err = x.merge(s, of); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// A merged is the schema of a struct while fields are added to it.
type merged struct {
	schema *Schema
	at     map[string]int
}

func newMerged(s *Schema) *merged {
	m := &merged{schema: &Schema{Type: Struct, Name: s.Name, Optional: s.Optional, passing: true}, at: make(map[string]int, len(s.Fields))}
	m.schema.Fields = append(m.schema.Fields, s.Fields...)
	for i, f := range s.Fields {
		m.at[f.Name] = i
	}
	return m
}

func (x *expansion) mergeInto(m *merged, s *Schema) error {
	if err := x.spendFields(s.Fields); err != nil {
		return err
	}
	for _, f := range s.Fields {
		i, there := m.at[f.Name]
		if !there {
			m.at[f.Name] = len(m.schema.Fields)
			m.schema.Fields = append(m.schema.Fields, f)
			continue
		}
		both, err := x.merge(m.schema.Fields[i].Schema, f.Schema)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		m.schema.Fields[i].Schema = both
	}
	return nil
}

// merge returns a schema for the values of both a and b.
func (x *expansion) merge(a, b *Schema) (*Schema, error) {
	switch {
	case a == b:
		return a, nil
	case unknown(a) < unknown(b):
		return x.optional(a, b), nil
	case unknown(a) > 0:
		return x.optional(b, a), nil
	case a.Type == Struct && b.Type == Struct:
		if equal(a, b) {
			return a, nil
		}
		if err := x.spendFields(a.Fields); err != nil {
			return nil, err
		}
		x.differs |= point(5)
		m := newMerged(a)
		m.schema.Optional = a.Optional || b.Optional
		return m.schema, x.mergeInto(m, b)
	case a.Type == Array && b.Type == Array:
		if a.Elem != b.Elem && (unknown(a.Elem) > 0 || unknown(b.Elem) == 1) {
			x.differs |= point(5)
		}
		elem, err := x.merge(a.Elem, b.Elem)
		if err != nil || elem == a.Elem {
			return a, err
		}
		return arrayOf(elem), nil
	case a == expandedInt32 && b == expandedInt64, a == expandedInt64 && b == expandedInt32:
		x.differs |= point(3)
		return expandedInt64, nil
	}
	x.differs |= point(3)
	return nil, fmt.Errorf("it is both %s and %s", a.Type, b.Type)
}

// optional returns s. If the values of the unknown schema other are null, it returns s as optional.
func (x *expansion) optional(s, other *Schema) *Schema {
	if s.Optional || other == expandedNothing || other == expandedEmpty {
		return s
	}
	x.differs |= point(6)
	o := *s
	o.Optional = true
	return &o
}

// equal compares two schemas as ConnectSchema.equals does, as far as these schemas need.
func equal(a, b *Schema) bool {
	if a == b {
		return true
	}
	if a.Type != b.Type || a.Optional != b.Optional || a.Name != b.Name || len(a.Fields) != len(b.Fields) {
		return false
	}
	for i := range a.Fields {
		if a.Fields[i].Name != b.Fields[i].Name || !equal(a.Fields[i].Schema, b.Fields[i].Schema) {
			return false
		}
	}
	return (a.Type != Array && a.Type != Map || equal(a.Elem, b.Elem)) && (a.Type != Map || equal(a.Key, b.Key))
}
