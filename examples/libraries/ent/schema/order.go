// Package schema has the table of the orders as ent describes it.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Order is a row of the table orders.
type Order struct{ ent.Schema }

// Fields are its columns.
func (Order) Fields() []ent.Field { return []ent.Field{field.String("id"), field.String("customer")} }
