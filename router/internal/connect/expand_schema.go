package connect

import (
	"errors"
	"fmt"
	"strings"
)

// The schemas of values without members. The last two have no type yet. Any type replaces them.
var (
	expandedString  = &Schema{Type: String, Optional: true, Passing: true}
	expandedBoolean = &Schema{Type: Boolean, Optional: true, Passing: true}
	expandedInt32   = &Schema{Type: Int32, Optional: true, Passing: true}
	expandedInt64   = &Schema{Type: Int64, Optional: true, Passing: true}
	expandedDouble  = &Schema{Type: Float64, Optional: true, Passing: true}
	expandedNull    = &Schema{Type: Bytes, Optional: true, Passing: true}  // of null, with NullBytes
	expandedEmpty   = &Schema{Type: String, Optional: true, Passing: true} // of the elements of an empty array, with EmptyStrings
)

// unknown reports whether s has no type yet.
func unknown(s *Schema) bool { return s == expandedNull || s == expandedEmpty }

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
		return nil, errors.New("an integer in it does not fit in 64 bits")
	case double:
		return expandedDouble, nil
	case null:
		if x.NullBytes {
			return expandedNull, nil
		}
		return nil, nil
	case array:
		if len(n.members) == 0 {
			if x.EmptyStrings {
				return arrayOf(expandedEmpty), nil
			}
			return nil, nil
		}
		elem, err := x.inferElements(path, n)
		if err != nil {
			return nil, err
		}
		return arrayOf(elem), nil
	default:
		return x.inferObject(path, n)
	}
}

func arrayOf(elem *Schema) *Schema {
	return &Schema{Type: Array, Optional: true, Elem: elem, Passing: true}
}

func (x *expansion) inferObject(path string, n *node) (*Schema, error) {
	s := &Schema{Type: Struct, Optional: true, Name: path, Passing: true}
	s.Fields = make([]Field, 0, len(n.members))
	var adjusted map[string]bool
	for i := range n.members {
		m := &n.members[i]
		name := x.FieldNames.Adjust(m.name)
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
		if !x.FieldNames.keeps() {
			if adjusted == nil {
				adjusted = make(map[string]bool, len(n.members))
			}
			if adjusted[name] {
				return nil, fmt.Errorf("two members of one object in it become %s", name)
			}
			adjusted[name] = true
		}
		s.Fields = append(s.Fields, Field{Name: name, Schema: fs})
	}
	return s, nil
}

// below returns the path of a member.
func (x *expansion) below(path, name string) (string, error) {
	if Blank(path) {
		return name, nil
	}
	return path + "." + name, x.spend(len(path))
}

// Blank is Java's String.trim().isEmpty(): the text has no character above the space.
func Blank(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r > ' ' }) < 0
}

// inferElements returns the one schema of all elements of an array, which must not be empty.
func (x *expansion) inferElements(path string, n *node) (*Schema, error) {
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
	case sample == nil && x.NullBytes:
		return expandedNull, nil
	case sample == nil:
		return nil, errors.New("an array in it has only nulls")
	case sample.kind == object:
		return x.inferObjects(path, n, nulls)
	case sample.kind == array && sample.empty() && !x.EmptyStrings:
		return nil, errors.New("an array in it has an empty array as its first element")
	case sample.kind == array: // Debezium looks at the first one only
		return x.infer("", sample)
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
		if err := x.mergeInto(all, s); err != nil {
			return nil, err
		}
	}
	if all == nil {
		return first, nil
	}
	// Debezium's merged schemas are not optional.
	if all.schema.Optional = nulls; nulls {
		x.repaired = true
	}
	return all.schema, nil
}

// A merged is the schema of a struct while fields are added to it.
type merged struct {
	schema *Schema
	at     map[string]int
}

func newMerged(s *Schema) *merged {
	fields := append([]Field(nil), s.Fields...)
	return &merged{schema: &Schema{Type: Struct, Name: s.Name, Optional: s.Optional, Fields: fields, Passing: true}, at: indexes(fields)}
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
	case unknown(a) && (b.Optional || a == expandedEmpty):
		return b, nil
	case unknown(b) && (a.Optional || b == expandedEmpty):
		return a, nil
	case a.Type == Struct && b.Type == Struct:
		if equal(a, b) {
			return a, nil
		}
		if err := x.spendFields(a.Fields); err != nil {
			return nil, err
		}
		x.repaired = true
		m := newMerged(a)
		m.schema.Optional = a.Optional || b.Optional
		return m.schema, x.mergeInto(m, b)
	case a.Type == Array && b.Type == Array:
		elem, err := x.merge(a.Elem, b.Elem)
		if elem != a.Elem || elem != b.Elem {
			x.repaired = true
		}
		return arrayOf(elem), err
	case a == expandedInt32 && b == expandedInt64, a == expandedInt64 && b == expandedInt32:
		x.repaired = true
		return expandedInt64, nil
	}
	return nil, fmt.Errorf("it is both %s and %s", a.Type, b.Type)
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
	return a.Type != Array || equal(a.Elem, b.Elem)
}
