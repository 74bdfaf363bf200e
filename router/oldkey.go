package router

import (
	"reflect"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// oldKeyHeader is the first header of a row whose primary key was changed. Debezium splits such an
// update into a delete, which the EventRouter ignores, and an insert, which it routes.
const oldKeyHeader = "__debezium.oldkey"

// An oldKey writes the primary key of a table as a Struct.
type oldKey struct {
	schema  *connect.Schema
	columns []column // in the order of the key
	conv    connect.Converter
}

// oldKey returns nil if the table has no primary key.
func (p *planner) oldKey(conv connect.Converter) *oldKey {
	k := &oldKey{conv: conv, schema: &connect.Schema{
		Type: connect.Struct, Name: p.schemaNames.AdjustSchema(p.qualified() + ".Key"),
	}}
	for position := 1; ; position++ {
		i := slices.IndexFunc(p.rel.Columns, func(c cdc.Column) bool { return c.KeyPosition == position })
		if i < 0 {
			break
		}
		t, err := pgvalue.Column(&p.rel.Columns[i], p.modes)
		if err != nil {
			continue // Debezium leaves such a column out of the key
		}
		name := p.rel.Columns[i].Name
		c := column{index: i, name: name, field: p.fieldNames.Adjust(name), option: optionPublish, typ: t}
		k.columns = append(k.columns, c)
		k.schema.Fields = append(k.schema.Fields, connect.Field{Name: c.field, Schema: t.Schema})
	}
	if len(k.columns) == 0 {
		return nil
	}
	return k
}

// changed returns the old primary key of an update that changed it, and nil otherwise. It also
// returns nil if the update has no old row: then no column of the replica identity changed.
func (k *oldKey) changed(ev *cdc.Event) ([]any, *Problem) {
	if k == nil || ev.Old.Relation == nil {
		return nil, nil
	}
	differs := false
	old := make([]any, len(k.columns))
	for i := range k.columns {
		c := &k.columns[i]
		before, after := ev.Old.Values[c.index], ev.Row.Values[c.index]
		if before.Bytes == nil {
			return nil, c.problem(ValueSent, nil,
				"the update does not have the old value of column %s of the primary key: the replica identity must contain the primary key", c.name)
		}
		v, err := c.value(before.Bytes)
		if err != nil {
			return nil, c.bad(before.Bytes, err)
		}
		old[i] = v
		if after.Unchanged || string(before.Bytes) == string(after.Bytes) {
			continue
		}
		now, err := c.value(after.Bytes)
		if err != nil {
			return nil, c.bad(after.Bytes, err)
		}
		differs = differs || !reflect.DeepEqual(v, now) // the numerics 1.0 and 1.00 are one value
	}
	if !differs {
		return nil, nil
	}
	return old, nil
}

// convert returns the header's value.
func (k *oldKey) convert(row *row, topic string, old []any) ([]byte, *Problem) {
	out, err := row.convert(k.conv, topic, k.schema, old)
	if err != nil {
		return nil, &Problem{Rule: ValueValid, Option: optionPublish, Message: "header " + oldKeyHeader + ": " + err.Error()}
	}
	return out, nil
}
