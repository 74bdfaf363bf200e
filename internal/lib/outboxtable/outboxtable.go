// Package outboxtable is the outbox table that walpost makes: its columns and its SQL. walpost
// setup, and the migrations of package outbox, both have the table from here.
package outboxtable

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/internal/lib/pgname"
)

// The names of two columns of a new table, unless a Table has others.
const (
	DefaultOrderColumn = "seq"
	DefaultTimeColumn  = "created_at"
)

// HeadersColumn is the column for the headers of a record, a JSON object. A Table has none unless its
// Headers are nil.
const HeadersColumn = "headers"

// A Table is an outbox table to make. The zero value of each field but Name is the default.
type Table struct {
	Name pgname.Table
	// OrderColumn orders the rows. TimeColumn says when a row was written.
	OrderColumn, TimeColumn string
	// Partitioned makes a table that is partitioned by range of TimeColumn, a day each.
	Partitioned bool
	// Payload is the type of the payload, a key of Payloads. Default jsonb.
	Payload string
	// Headers are columns of the type text, in place of HeadersColumn. None if it is empty, and not nil.
	Headers []string
	// More are further steps of a migration, and Undo is the SQL that takes them back when the table is
	// dropped.
	More []Step
	Undo string
}

// Payloads are the types that a payload can have, with their OIDs.
var Payloads = map[string]uint32{
	"jsonb": pgtype.JSONBOID, "json": pgtype.JSONOID, "text": pgtype.TextOID, "bytea": pgtype.ByteaOID,
}

// A Column is one column of the table. OID is its type.
type Column struct {
	Name, Definition, Comment string
	OID                       uint32
}

func (t *Table) timeColumn() string { return cmp.Or(t.TimeColumn, DefaultTimeColumn) }

// Columns are the columns of the table. The first one is the event's id.
func (t *Table) Columns() []Column {
	identity := "bigint      GENERATED ALWAYS AS IDENTITY"
	if t.Partitioned { // before Postgres 17, a partitioned table has no identity
		identity = "bigserial   NOT NULL"
	}
	payload := cmp.Or(t.Payload, "jsonb")
	columns := []Column{
		{"id", "uuid        NOT NULL DEFAULT gen_random_uuid()", `the event's id, in the header "id"`, pgtype.UUIDOID},
		{"aggregate_type", "text        NOT NULL", "decides the topic: outbox.event.<aggregate_type>", pgtype.TextOID},
		{"aggregate_id", "text        NOT NULL", "the record's key: events with the same key stay in order", pgtype.TextOID},
		{"event_type", "text        NOT NULL", "", pgtype.TextOID},
		{"payload", payload, "the record's value", Payloads[payload]},
	}
	if t.Headers == nil {
		columns = append(columns, Column{HeadersColumn, "jsonb", "further headers, as an object: {\"name\": \"value\"}", pgtype.JSONBOID})
	}
	for _, h := range t.Headers {
		columns = append(columns, Column{h, "text", "", pgtype.TextOID})
	}
	columns = append(columns, Column{t.timeColumn(), "timestamptz NOT NULL DEFAULT now()", "", pgtype.TimestamptzOID})
	order := Column{cmp.Or(t.OrderColumn, DefaultOrderColumn), identity, "orders rows that walpost reads from the table", pgtype.Int8OID}
	switch i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == order.Name }); i {
	case -1:
		columns = append(columns, order)
	case 0: // a random id orders nothing
		columns[0].Definition, columns[0].OID = identity, order.OID
	}
	return columns
}

// plain are the names of columns that SQL without quotes may have.
var plain = []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", HeadersColumn, DefaultTimeColumn, DefaultOrderColumn}

// A Step is one statement that makes the table.
type Step struct {
	What    string // in a few words
	Comment string // lines without "-- "
	SQL     string
}

// Steps make the table, in this order.
func (t *Table) Steps() []Step {
	steps := []Step{{"table " + t.Name.String(), `The outbox. The application inserts one row for each event, in the transaction that changes the data.
Old rows may be deleted at any time after they are published: deletes are not published.`, t.create()}}
	if t.Partitioned {
		steps = append(steps, Step{"partitions of " + t.Name.String(), "One for each day. walpost creates the next partitions and drops the old ones with cleanup.mode: drop_partitions.", t.createPartitions()})
	}
	return append(steps, t.More...)
}

// Migration returns the SQL that makes tables, and the SQL that drops them. The text begin stands
// before each statement, and end behind it.
func Migration(begin, end string, tables ...*Table) (up, down string) {
	var parts []string
	for _, t := range tables {
		for _, s := range t.Steps() {
			parts = append(parts, Comment(s.Comment)+begin+s.SQL+"\n"+end)
		}
		if t.Undo != "" {
			down = t.Undo + "\n" + down
		}
		down = "DROP TABLE " + t.Name.SQL() + ";\n" + down
	}
	return strings.Join(parts, "\n"), down
}

// Goose returns the migration in the form of goose.
func Goose(tables ...*Table) string {
	up, down := Migration("-- +goose StatementBegin\n", "-- +goose StatementEnd\n", tables...)
	return "-- +goose Up\n" + up + "\n-- +goose Down\n" + down
}

// Comment returns the lines of a text as comments of SQL, "" for no text.
func Comment(text string) string {
	if text == "" {
		return ""
	}
	return "-- " + strings.ReplaceAll(text, "\n", "\n-- ") + "\n"
}

func (t *Table) create() string {
	key, end := "PRIMARY KEY (id)", ");"
	if t.Partitioned { // its key must hold the column that it is partitioned by
		column := pgname.QuoteIdent(t.timeColumn())
		key, end = "PRIMARY KEY (id, "+column+")", ") PARTITION BY RANGE ("+column+");"
	}
	var b strings.Builder
	for _, col := range t.Columns() {
		name := col.Name
		if !slices.Contains(plain, name) {
			name = pgname.QuoteIdent(name)
		}
		line := fmt.Sprintf("  %-14s %s,", name, col.Definition)
		if col.Comment != "" {
			line = fmt.Sprintf("%-66s -- %s", line, col.Comment)
		}
		b.WriteString(line + "\n")
	}
	return fmt.Sprintf("CREATE TABLE %s (\n%s  %s\n%s", t.Name.SQL(), b.String(), key, end)
}

// createPartitions makes the partitions of today and of the three days to come, in UTC.
func (t *Table) createPartitions() string {
	return fmt.Sprintf(`DO $$
DECLARE today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
  FOR d IN 0..3 LOOP
    EXECUTE format('CREATE TABLE %%I.%%I PARTITION OF %%I.%%I FOR VALUES FROM (%%L) TO (%%L)', %[1]s, %[3]s || to_char(today + d, '"_p"YYYYMMDD'),
      %[1]s, %[2]s, (today + d)::text || ' 00:00:00+00', (today + d + 1)::text || ' 00:00:00+00');
  END LOOP;
END $$;`, pgname.QuoteLiteral(t.Name.Schema), pgname.QuoteLiteral(t.Name.Name), pgname.QuoteLiteral(pgname.CutName(t.Name.Name, len("_pYYYYMMDD"))))
}
