package connect

import (
	"errors"
	"fmt"
)

// ExpandOptions are the EventRouter's options for JSON payloads.
type ExpandOptions struct {
	Payload    string         // table.field.event.payload: the structs are named after it
	Null       NullMember     // table.json.payload.null.behavior
	EmptyArray EmptyArray     // table.json.payload.empty.array.behavior
	FieldNames NameAdjustment // field.name.adjustment.mode

	// Text says that the value goes to a converter that does not look at the schema: StringConverter. To it Debezium hands the text of
	// a document that it cannot expand, where another converter fails; so text it stays here too.
	Text bool
}

// A NullMember is what happens to a member that is null.
type NullMember uint8

const (
	DropNull      NullMember = iota // ignore: it is left out
	OptionalBytes                   // optional_bytes: it stays, as optional bytes
)

// An EmptyArray is what happens to a member that is an empty array.
type EmptyArray uint8

const (
	DropEmptyArray EmptyArray = iota // ignore: it is left out
	OptionalString                   // optional_string: it stays, as an array of optional strings (Debezium 3.7)
)

// An Expander makes a value with a schema of a payload that is a JSON document: table.expand.json.payload, as Debezium's
// JsonSchemaData does it. Where Debezium makes no use of a document, or not the same at each start, this is what happens here:
//
//  1. An array as the whole document. Debezium makes its schema, fails to make its value, and with a JsonConverter the task dies.
//     Here it is expanded. Only of the document [] Debezium makes something, the text "[]" without a schema; so it is here,
//     and in an envelope, which is the death of Debezium's task too, it is a string.
//  2. An integer beyond 64 bits. Debezium's task dies. Here the document stays text: as a double the number would be another.
//  3. Objects in one array whose members of the same name have different types. Debezium takes the type that comes first in a hash
//     set, which differs from start to start, and its task dies. Here int32 and int64 become int64; of all others the document stays
//     text.
//  4. Objects in one array with different members. Debezium merges them, in the order of that hash set. Here the order is that in which
//     they first appear in the document.
//  5. Objects in one array whose members of the same name are objects with different members, or arrays of such. Debezium does not
//     merge these: all members that the object whose schema came first does not have are lost. The same in arrays of arrays, where
//     only the first inner array counts; its task dies where the types are different. Here they are merged like the others.
//  6. Null and objects with different members in one array. Debezium's task dies. Here the elements are optional.
//  7. A member whose name field.name.adjustment.mode changes. Debezium looks its value up under the new name, and so all of them
//     are null. Here they have their values. Where two members of one object get the same name the document stays text.
//  8. Objects in one array that have so different members that the merged value would take more than about 16 MiB and four times the
//     document; or names so long and deep that the names of the structs, which are paths, would. Debezium writes it or runs out of
//     memory. Here the document stays text.
//  9. More than 1000 levels in what is written. Debezium's task dies. Here it is written.
//
// With ExpandOptions.Text a document that is the death of Debezium's task stays text. An Expander may be used by several goroutines.
type Expander struct {
	o ExpandOptions
}

// NewExpander returns an Expander.
func NewExpander(o ExpandOptions) *Expander { return &Expander{o: o} }

// Expand returns a schema and a value for a JSON text. After an error, the payload must stay as it
// is. The schema may be nil: see the first point of Expander.
func (e *Expander) Expand(text string) (s *Schema, v any, err error) {
	s, v, _, err = e.expand(text)
	return s, v, err
}

// A fixed names the points in the comment of Expander where the result differs from Debezium's.
type fixed uint16

func fix(number int) fixed { return 1 << number }

// deadly are the points where Debezium's converter fails, or can fail.
var deadly = fix(1) | fix(2) | fix(3) | fix(5) | fix(6)

var errNotExpandable = errors.New("it does not begin with { or [")

func (e *Expander) expand(text string) (s *Schema, v any, f fixed, err error) {
	if text == "" || text[0] != '{' && text[0] != '[' {
		return nil, nil, 0, errNotExpandable
	}
	doc, err := parseJSON(text)
	if err != nil {
		return nil, nil, 0, err
	}
	x := expansion{o: &e.o, work: 16<<20 + 4*len(text)}
	if s, err = x.infer(e.o.Payload, &doc); err != nil {
		return nil, nil, x.fixed, err
	}
	if s == nil {
		return nil, text, x.fixed, nil
	}
	if doc.kind == array {
		x.fixed |= fix(1)
	}
	if v, err = x.value(&doc, s); err != nil {
		return nil, nil, x.fixed, err
	}
	if e.o.Text && x.fixed&deadly != 0 {
		return nil, nil, x.fixed, errors.New("Debezium cannot expand it") //nolint:staticcheck // a name
	}
	return s, v, x.fixed, nil
}

// An expansion is the work on one document.
type expansion struct {
	o     *ExpandOptions
	work  int // how many more bytes of JSON may be made, roughly
	fixed fixed

	fields map[*Schema]map[string]int // of large structs, the indexes of their fields
	paths  map[[2]string]string       // of members, by the path of their object and their name
}

// spend takes n from the amount of work that is left.
func (x *expansion) spend(n int) error {
	if x.work -= n; x.work < 0 {
		x.fixed |= fix(8)
		return errors.New("its objects have too many different members, or too long names, to be merged")
	}
	return nil
}

// spendFields takes the cost of all fields from the amount of work that is left.
func (x *expansion) spendFields(fields []Field) error {
	n := 0
	for i := range fields {
		n += len(fields[i].Name) + len(`"":1,`)
	}
	return x.spend(n)
}

// value returns the value of n for the schema s, which must cover it.
func (x *expansion) value(n *node, s *Schema) (any, error) {
	switch {
	case n.kind == null:
		return nil, nil
	case n.kind == text && s.Type == String:
		return n.text, nil
	case n.kind == boolean && s.Type == Boolean:
		return n.int != 0, nil
	case n.kind == double && s.Type == Float64:
		return n.double, nil
	case n.kind == integer && (s.Type == Int32 || s.Type == Int64):
		return n.int, nil
	case n.kind == array && s.Type == Array:
		list := make([]any, len(n.members))
		for i := range n.members {
			v, err := x.value(&n.members[i].node, s.Elem)
			if err != nil {
				return nil, err
			}
			list[i] = v
		}
		return list, nil
	case n.kind == object && s.Type == Struct:
		return x.structValue(n, s)
	}
	x.fixed |= fix(3)
	return nil, fmt.Errorf("a value in it is %s here and %s there", n.kind, s.Type)
}

func (x *expansion) structValue(n *node, s *Schema) (any, error) {
	if err := x.spendFields(s.Fields); err != nil {
		return nil, err
	}
	values := make([]any, len(s.Fields))
	next := 0 // members come mostly in the order of the fields
	for i := range n.members {
		m := &n.members[i]
		if m.node.kind == null {
			continue
		}
		name := x.o.FieldNames.Adjust(m.name)
		found := next
		if next == len(s.Fields) || s.Fields[next].Name != name {
			found = x.field(s, name)
		}
		next = found + 1
		if found < 0 || m.node.empty() && (values[found] != nil || name != m.name && s.Fields[found].Schema.Type != Array) {
			continue // what the options drop
		}
		v, err := x.value(&m.node, s.Fields[found].Schema)
		if err != nil {
			return nil, err
		}
		values[found] = v
	}
	return values, nil
}

// field returns the index of a field, or -1.
func (x *expansion) field(s *Schema, name string) int {
	if len(s.Fields) <= 16 {
		for i := range s.Fields {
			if s.Fields[i].Name == name {
				return i
			}
		}
		return -1
	}
	at := x.fields[s]
	if at == nil {
		if x.fields == nil {
			x.fields = make(map[*Schema]map[string]int)
		}
		at = make(map[string]int, len(s.Fields))
		for i := range s.Fields {
			at[s.Fields[i].Name] = i
		}
		x.fields[s] = at
	}
	if i, there := at[name]; there {
		return i
	}
	return -1
}
