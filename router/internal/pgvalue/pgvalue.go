// Package pgvalue says what a Postgres column is in Kafka Connect's data model: its schema, and its values from the text that
// Postgres prints, exactly as Debezium's Postgres connector 3.6.1 makes them of a stream of pgoutput.
//
// The text must come from a connection with the pinned settings (see cdc.Value). testdata holds what Debezium itself gave.
package pgvalue

import (
	"fmt"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// A Type is what a column is in Kafka Connect's data model. It is immutable and may be used by several goroutines.
type Type struct {
	// Schema is the column's schema: optional unless the column is NOT NULL or in the primary key, with the catalog's default
	// where Debezium understands it.
	Schema *connect.Schema
	// Text says that values are strings whose text is the column's as it stands: Parse would only make a string of it.
	Text bool
	// Parse makes a value as package connect describes them of a column's text. It is not called for NULL. The value owns its
	// bytes. It may be nil: Debezium makes NULL of some values (numeric NaN is one).
	Parse func(raw []byte) (any, error)
}

// Column says what c is. The error says why Debezium (and so walpost) has no value for such a column: it leaves the column out.
func Column(c *cdc.Column, m Modes) (*Type, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	m = m.withDefaults()
	switch c.TypeOID {
	case 25, 1043:
		return &Type{
			Schema: &connect.Schema{Type: connect.String, Optional: !c.NotNull},
			Text:   true,
			Parse:  func(raw []byte) (any, error) { return string(raw), nil },
		}, nil
	}
	return nil, fmt.Errorf("column %s is a %s, for which Debezium has no representation", c.Name, c.TypeName)
}
