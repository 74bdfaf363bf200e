package deadletter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
)

// row is the value of a letter of FormRow: all that a router needs to route the row again, without
// the database.
type row struct {
	Kind       string    `json:"kind"`
	LSN        cdc.LSN   `json:"lsn"` // 0/0 for a row that was read from the table
	CommitTime time.Time `json:"commit_time"`
	Relation   relation  `json:"relation"`
	Values     []value   `json:"values"`
	Old        []value   `json:"old,omitempty"` // absent if the server sent no old row
}

// relation is a cdc.Relation, field by field.
type relation struct {
	ID              uint32   `json:"oid"`
	Schema          string   `json:"schema"`
	Name            string   `json:"name"`
	ReplicaIdentity string   `json:"replica_identity"`
	Columns         []column `json:"columns"`
}

// column has the fields of cdc.Column in the same order, because it is converted from and to one.
type column struct {
	Name    string `json:"name"`
	TypeOID uint32 `json:"type_oid"`
	TypeMod int32  `json:"typmod"`
	Key     bool   `json:"key,omitempty"`

	NotNull       bool     `json:"not_null,omitempty"`
	KeyPosition   int      `json:"key_position,omitempty"`
	Generated     bool     `json:"generated,omitempty"`
	Identity      string   `json:"identity,omitempty"`
	HasDefault    bool     `json:"has_default,omitempty"`
	Default       string   `json:"default,omitempty"`
	TypeName      string   `json:"type,omitempty"`
	BaseType      uint32   `json:"base_type_oid,omitempty"`
	BaseTypeMod   int32    `json:"base_typmod,omitempty"`
	BaseName      string   `json:"base_name,omitempty"`
	ElementType   uint32   `json:"element_type_oid,omitempty"`
	ElementName   string   `json:"element_name,omitempty"`
	EnumLabels    []string `json:"enum_labels,omitempty"`
	ElementLabels []string `json:"element_labels,omitempty"`
}

// value is a text, null, {"unchanged": true}, or {"base64": "…"} for bytes that are no text: only the
// content of a message can be such bytes.
type value cdc.Value

func (v value) MarshalJSON() ([]byte, error) {
	switch {
	case v.Unchanged:
		return []byte(`{"unchanged":true}`), nil
	case v.Bytes == nil:
		return []byte("null"), nil
	case !utf8.Valid(v.Bytes): // JSON would change it
		return marshal(map[string][]byte{"base64": v.Bytes})
	}
	return marshal(string(v.Bytes))
}

func (v *value) UnmarshalJSON(text []byte) error {
	*v = value{}
	switch {
	case string(text) == "null":
		return nil
	case text[0] == '"':
		var s string
		err := json.Unmarshal(text, &s)
		v.Bytes = append([]byte{}, s...)
		return err
	}
	var o struct {
		Unchanged bool
		Base64    []byte
	}
	err := json.Unmarshal(text, &o)
	v.Unchanged, v.Bytes = o.Unchanged, o.Base64
	if err == nil && !o.Unchanged && o.Base64 == nil {
		err = errors.New("a value has neither unchanged nor base64")
	}
	return err
}

// marshal writes JSON without escapes for HTML, which would make a payload larger.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}

func encodeEvent(ev *cdc.Event) ([]byte, error) {
	rel := ev.Relation()
	r := row{Kind: ev.Kind.String(), LSN: ev.LSN, CommitTime: ev.Time.UTC(), Values: valuesOf(ev.Row), Old: valuesOf(ev.Old)}
	r.Relation = relation{ID: rel.ID, Schema: rel.Schema, Name: rel.Name, Columns: make([]column, len(rel.Columns))}
	if rel.ReplicaIdentity != 0 {
		r.Relation.ReplicaIdentity = string(rune(rel.ReplicaIdentity))
	}
	for i := range rel.Columns {
		r.Relation.Columns[i] = column(rel.Columns[i])
	}
	b, err := marshal(&r)
	if err != nil {
		return nil, fmt.Errorf("dead letter of %s: %w", rel, err)
	}
	return b, nil
}

func valuesOf(r cdc.Row) []value {
	if r.Relation == nil {
		return nil
	}
	out := make([]value, len(r.Values))
	for i := range r.Values {
		out[i] = value(r.Values[i])
	}
	return out
}

func decodeEvent(text []byte) (*cdc.Event, error) {
	var r row
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	rel := &cdc.Relation{ID: r.Relation.ID, Schema: r.Relation.Schema, Name: r.Relation.Name}
	if len(r.Relation.ReplicaIdentity) == 1 {
		rel.ReplicaIdentity = r.Relation.ReplicaIdentity[0]
	}
	for i := range r.Relation.Columns {
		rel.Columns = append(rel.Columns, cdc.Column(r.Relation.Columns[i]))
	}
	ev := &cdc.Event{LSN: r.LSN, Time: r.CommitTime.UTC()}
	for k := cdc.Insert; k <= cdc.Message; k++ {
		if k.String() == r.Kind {
			ev.Kind = k
		}
	}
	if ev.Kind == 0 {
		return nil, fmt.Errorf("unknown kind %q", r.Kind)
	}
	var err error
	if ev.Row, err = rowOf(rel, r.Values); err == nil {
		ev.Old, err = rowOf(rel, r.Old)
	}
	if err == nil && ev.Relation() == nil {
		err = errors.New("no row")
	}
	return ev, err
}

func rowOf(rel *cdc.Relation, values []value) (cdc.Row, error) {
	if values == nil {
		return cdc.Row{}, nil
	}
	if len(values) != len(rel.Columns) {
		return cdc.Row{}, fmt.Errorf("%d values for %d columns", len(values), len(rel.Columns))
	}
	r := cdc.Row{Relation: rel, Values: make([]cdc.Value, len(values))}
	for i := range values {
		r.Values[i] = cdc.Value(values[i])
	}
	return r, nil
}
