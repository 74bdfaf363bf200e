package table

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// FromJSON gives one row that is not in the table: a JSON object by column names. Each value is read by the column's type, as
// json_populate_record does. Columns that the object leaves out have their defaults, as in an INSERT. An identity column that is
// left out has the number 1, and a generated column is NULL. Nothing is written. A key that is no column is an error, and so is
// a column that takes no value in an INSERT.
func (t *Table) FromJSON(ctx context.Context, object []byte) (*Rows, error) {
	keys, err := objectKeys(object)
	if err != nil {
		return nil, fault.Config(fmt.Errorf("the row must be one JSON object: %w", err), `For example: {"aggregate_type": "order", "aggregate_id": "4711"}.`)
	}
	given := map[string]bool{}
	for _, k := range keys {
		if t.Relation.Index(k) < 0 {
			return nil, fault.Config(fmt.Errorf("the row has %q, but table %s has no such published column", k, t), "Its columns: "+strings.Join(columnNames(t), ", "))
		}
		if given[k] {
			return nil, fault.Config(fmt.Errorf("the row has %q twice", k), "")
		}
		if c := t.Relation.Columns[t.Relation.Index(k)]; c.Generated || c.Identity == "a" {
			return nil, fault.Config(fmt.Errorf("the row has a value for column %s, which is generated (GENERATED ALWAYS): Postgres would refuse an INSERT of the row", k), "Leave the column out.")
		}
		given[k] = true
	}
	list := make([]string, len(t.Relation.Columns))
	var defaults []string
	for i := range t.Relation.Columns {
		c := &t.Relation.Columns[i]
		list[i] = "t." + pgname.QuoteIdent(c.Name)
		switch {
		case given[c.Name]:
		case c.Identity != "":
			list[i] = "1::" + c.TypeName
		case c.HasDefault:
			list[i] = "(" + c.Default + ")::" + c.TypeName
			defaults = append(defaults, c.Name)
		}
	}
	sql := fmt.Sprintf("SELECT %s, NULL, NULL, NULL, false, %s, NULL FROM json_populate_record(NULL::%s, %s) t",
		strings.Join(list, ", "), t.kept(), t.SQL(), pgname.QuoteLiteral(string(object)))
	return t.query(ctx, "read the row as a row of "+t.String(), sql, t.format("NULL", "NULL", "false", t.kept()), func(err error) error {
		if pg.SQLState(err) != stateReadOnly {
			return err
		}
		return fault.Config(fmt.Errorf("a default of %s would write to the database, as a sequence does: %w", strings.Join(defaults, ", "), err),
			"Give that column a value in the row.")
	})
}

const stateReadOnly = "25006" // read_only_sql_transaction

func columnNames(t *Table) []string {
	names := make([]string, len(t.Relation.Columns))
	for i := range t.Relation.Columns {
		names[i] = t.Relation.Columns[i].Name
	}
	return names
}

// objectKeys returns the keys of a JSON object. A key that the object has twice comes twice.
func objectKeys(object []byte) ([]string, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	start, err := d.Token()
	if err != nil {
		return nil, err
	}
	if start != json.Delim('{') {
		return nil, fmt.Errorf("it begins with %v", start)
	}
	var keys []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		keys = append(keys, key.(string)) // the decoder allows nothing else here
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more text after it")
	}
	return keys, nil
}
