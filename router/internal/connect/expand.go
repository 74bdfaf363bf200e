package connect

import (
	"errors"
	"fmt"
)

// An Expander makes a value with a schema from a payload that is a JSON document, as Debezium's
// JsonSchemaData does (table.expand.json.payload). If Debezium fails, or gives different results
// after each start, the Expander differs:
//
//  1. The document is an array. Debezium makes the schema, fails to make the value, and stops if the
//     converter is a JsonConverter. Here the array is expanded. Debezium and the Expander make the
//     text "[]" without a schema from the document []. In an envelope, Debezium stops; here the
//     value is a string.
//  2. An integer has more than 64 bits. Debezium stops. Here the document stays text, because a
//     double would be another number.
//  3. Objects in one array have members with the same name and different types. Debezium takes one
//     of the types, depending on a hash set, and stops. Here int32 and int64 become int64; with
//     other types the document stays text.
//  4. Objects in one array have different members. Debezium merges them in the order of the hash
//     set. Here they have the order in which they first appear in the document.
//  5. Objects in one array have members with the same name that are objects with different members,
//     or arrays of such objects. Debezium loses all members that the first object does not have.
//     Here they are merged like other objects.
//  6. An array has nulls and objects with different members. Debezium stops. Here the elements are
//     optional.
//  7. An array of arrays has a value that the schema of its first array does not have. Debezium
//     loses it or stops. Here the document stays text.
//  8. field.name.adjustment.mode changes the name of a member. Debezium looks the value up under the
//     new name and writes null. Here the member has its value. If two members of an object get the
//     same name, the document stays text.
//  9. The merged value would have more than about 16 MiB plus four times the document, because the
//     objects of an array have very different members or long, deep names. Debezium writes it or
//     runs out of memory. Here the document stays text.
//  10. The value has more than 1000 levels. Debezium stops. Here it is written.
//
// With Text, a document on which Debezium stops stays text. Several goroutines may use an Expander. Its
// fields are the EventRouter's options.
type Expander struct {
	Payload    string         // table.field.event.payload: the structs are named after it
	FieldNames NameAdjustment // field.name.adjustment.mode

	// NullBytes makes optional bytes of a member that is null (table.json.payload.null.behavior:
	// optional_bytes). Otherwise the member is left out.
	NullBytes bool
	// EmptyStrings makes an array of optional strings of a member that is an empty array
	// (table.json.payload.empty.array.behavior: optional_string, Debezium 3.7). Otherwise the member
	// is left out.
	EmptyStrings bool

	// Text means that the value goes to StringConverter, which ignores the schema. Debezium gives
	// it the text of a document that it cannot expand; with another converter, Debezium fails.
	Text bool
}

// Expand returns a schema and a value for a JSON text. After an error, the payload must stay as it
// is. The schema may be nil: see the first point of Expander.
func (e *Expander) Expand(text string) (s *Schema, v any, err error) {
	doc, err := parseJSON(text)
	if err != nil {
		return nil, nil, err
	}
	x := expansion{Expander: e, work: 16<<20 + 4*len(text), repaired: doc.kind == array}
	if s, err = x.infer(e.Payload, &doc); err != nil {
		return nil, nil, err
	}
	if s == nil {
		return nil, text, nil
	}
	if v, err = x.value(&doc, s); err == nil && e.Text && x.repaired {
		err = errors.New("Debezium cannot expand it") //nolint:staticcheck // a name
	}
	return s, v, err
}

// An expansion is the work on one document.
type expansion struct {
	*Expander
	work     int  // how many more bytes of JSON may be made, roughly
	repaired bool // Debezium fails, can fail, or loses members

	fields map[*Schema]map[string]int // of structs, the indexes of their fields
}

// spend takes n from the amount of work that is left.
func (x *expansion) spend(n int) error {
	if x.work -= n; x.work < 0 {
		return errors.New("its objects have too many different members, or names that are too long, to be merged")
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
	case n.kind == null && s.Optional:
		return nil, nil
	case n.kind == text && s.Type == String:
		return n.text, nil
	case n.kind == boolean && s.Type == Boolean:
		return n.int != 0, nil
	case n.kind == double && s.Type == Float64:
		return n.double, nil
	case n.kind == integer && (s.Type == Int64 || s.Type == Int32 && int64(int32(n.int)) == n.int):
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
	return nil, fmt.Errorf("a value in it is both %s and %s", n.kind, s.Type)
}

func (x *expansion) structValue(n *node, s *Schema) (any, error) {
	if err := x.spendFields(s.Fields); err != nil {
		return nil, err
	}
	values := make([]any, len(s.Fields))
	next := 0 // most members have the order of the fields
	for i := range n.members {
		m := &n.members[i]
		if m.node.kind == null {
			continue
		}
		name := x.FieldNames.Adjust(m.name)
		found := next
		if next == len(s.Fields) || s.Fields[next].Name != name {
			found = x.field(s, name)
		}
		next = found + 1
		dropped := m.node.empty() && !x.EmptyStrings // by the options, unless another object has elements for the field
		switch {
		case found < 0 && !dropped:
			return nil, fmt.Errorf("the arrays of an array in it do not all have the member %q", m.name)
		case found < 0, dropped && (values[found] != nil || name != m.name && s.Fields[found].Schema.Type != Array):
			continue
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
	at := x.fields[s]
	if at == nil {
		if x.fields == nil {
			x.fields = make(map[*Schema]map[string]int)
		}
		at = indexes(s.Fields)
		x.fields[s] = at
	}
	if i, there := at[name]; there {
		return i
	}
	return -1
}

// indexes are the places of fields by their names.
func indexes(fields []Field) map[string]int {
	at := make(map[string]int, len(fields))
	for i := range fields {
		at[fields[i].Name] = i
	}
	return at
}
