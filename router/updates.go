package router

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// oldKeyHeader is the first header of a row whose primary key was changed: Debezium has such an update as a delete, which the
// EventRouter ignores, and an insert, which it routes.
const oldKeyHeader = "__debezium.oldkey"

// An oldKey is the Struct of a table's primary key.
type oldKey struct {
	schema  *connect.Schema
	columns []source // in the order of the key
	conv    connect.TextConverter
}

func (p *planner) oldKey(conv connect.TextConverter) *oldKey {
	k := &oldKey{conv: conv, schema: &connect.Schema{
		Type: connect.Struct, Name: adjustSchema(p.schemaNames, p.qualified()+".Key"),
	}}
	var places []int
	for i := range p.rel.Columns {
		if p.rel.Columns[i].KeyPosition > 0 {
			places = append(places, i)
		}
	}
	slices.SortFunc(places, func(a, b int) int { return p.rel.Columns[a].KeyPosition - p.rel.Columns[b].KeyPosition })
	for _, i := range places {
		t, err := pgvalue.Column(&p.rel.Columns[i], p.modes)
		if err != nil {
			continue // Debezium leaves such a column out of the key
		}
		name := p.rel.Columns[i].Name
		s := source{index: i, name: p.fieldNames.Adjust(name), typ: t, option: "source.publish", column: name}
		k.columns = append(k.columns, s)
		k.schema.Fields = append(k.schema.Fields, connect.Field{Name: s.name, Schema: t.Schema})
	}
	if len(k.columns) == 0 {
		return nil
	}
	return k
}

// changed returns the old key of an update that changed it, nil for one that did not or does not say: without a change the
// server sends the old key only where the whole old row is the replica identity.
func (k *oldKey) changed(ev *cdc.Event) ([]any, *Problem) {
	if k == nil || ev.Old.Relation == nil {
		return nil, nil
	}
	differs := false
	old := make([]any, len(k.columns))
	for i := range k.columns {
		c := &k.columns[i]
		was, is := ev.Old.Values[c.index], ev.Row.Values[c.index]
		if was.Bytes == nil {
			return nil, c.problem(ValueSent, nil, "the update does not have the old value of column %s of the primary key: the replica identity must contain the primary key", c.column)
		}
		v, err := c.value(was.Bytes)
		if err != nil {
			return nil, c.bad(was.Bytes, err)
		}
		old[i] = v
		if is.Unchanged || string(was.Bytes) == string(is.Bytes) {
			continue
		}
		now, err := c.value(is.Bytes)
		if err != nil {
			return nil, c.bad(is.Bytes, err)
		}
		differs = differs || !reflect.DeepEqual(v, now) // numeric 1.0 and 1.00 are one value
	}
	if !differs {
		return nil, nil
	}
	return old, nil
}

func (k *oldKey) append(buf []byte, topic string, old []any) (grown, out []byte, err error) {
	return convert(buf, k.conv, topic, k.schema, old)
}

// update takes an update: false for one that gives no record.
func (r *Router) update(p *plan, ev *cdc.Event, rec *cdc.Record) (bool, error) {
	var old []any
	id := eventID(p, ev)
	if r.cfg.Updates {
		var problem *Problem
		if old, problem = p.oldKey.changed(ev); problem != nil {
			return false, rowError(ev, rec, id, *problem)
		}
	}
	if old != nil {
		return r.insert(p, ev, &row{values: ev.Row.Values, relation: p.rel, old: &ev.Old, unavailable: r.cfg.UnavailableValue, binary: lower(r.cfg.Binary)}, old, rec)
	}
	if r.fatalUpdates {
		return false, rowError(ev, rec, id, Problem{
			Rule: UpdateFatal, Option: "router.table.op.invalid.behavior",
			Message: "the row was updated, and updates are fatal: write outbox rows only once, or set the option to warn",
		})
	}
	r.updates.add(fmt.Sprintf("event %q of %s", id, p.rel))
	return false, nil
}

// eventID is the id of an event as its row has it, "" where it cannot be told.
func eventID(p *plan, ev *cdc.Event) string {
	if i := p.id.index; i >= 0 && i < len(ev.Row.Values) {
		return string(ev.Row.Values[i].Bytes)
	}
	return ""
}

// A row is the values that a record is made of.
type row struct {
	values   []cdc.Value
	relation *cdc.Relation

	// Of an update only: large values that it did not change are not in the WAL.
	old         *cdc.Row
	unavailable string   // stands for them
	binary      string   // binary.handling.mode
	problem     *Problem // there is nothing that could stand for one of them
}

// at is the text of a column, nil for NULL.
func (r *row) at(s *source) []byte {
	i := s.index
	v := r.values[i]
	if !v.Unchanged {
		return v.Bytes
	}
	if r.old != nil && i < len(r.old.Values) && r.old.Values[i].Bytes != nil {
		return r.old.Values[i].Bytes // the replica identity is the whole row
	}
	col := &r.relation.Columns[i]
	switch base := cmp.Or(col.BaseType, col.TypeOID); {
	case base == oidBytea && strings.HasPrefix(r.binary, "base64"):
		if !col.NotNull {
			return nil // Debezium has no text for its placeholder, and takes that as null
		}
	case base == oidBytea:
		value := []byte(r.unavailable)
		if digits, ok := strings.CutPrefix(r.unavailable, "hex:"); ok {
			if b, err := hex.DecodeString(digits); err == nil {
				value = b
			}
		}
		if r.binary == "hex" {
			return append([]byte{asItIs}, string([]rune(string(value)))...) // not its digits
		}
		return append([]byte(`\x`), hex.EncodeToString(value)...)
	case base == oidText, base == oidVarchar, base == oidBPChar, base == oidJSON, base == oidJSONB, base == oidXML, col.BaseName == "citext":
		return []byte(r.unavailable)
	}
	r.problem = s.problem(ValueSent, nil, "column %s is a large value that the update did not change, so the WAL does not have it", col.Name)
	return nil
}

// asItIs goes before a text that stands for bytes in hex and is none. Postgres has no text with that character.
const asItIs = 0

// placeholders lets through what row.at gives in place of bytes.
func placeholders(parse func([]byte) (any, error)) func([]byte) (any, error) {
	return func(raw []byte) (any, error) {
		if len(raw) > 0 && raw[0] == asItIs {
			return string(raw[1:]), nil
		}
		return parse(raw)
	}
}
