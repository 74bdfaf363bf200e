package poll

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/outboxtable"
	"github.com/walpost/walpost/internal/pg"
)

// Channel is the channel on which the trigger of a table notifies.
func Channel(t pg.Table) string { return fmt.Sprintf("walpost_%08x", uint32(digest(t.String()))) }

// SetupSQL is the SQL that makes what polling needs of a table that exists, and that f does not have.
// A nil f has nothing. It is "" if nothing is missing.
func (s *Settings) SetupSQL(f *Facts) string {
	var b strings.Builder
	for _, step := range s.Setup(f) {
		b.WriteString(outboxtable.Comment(step.Comment) + step.SQL + "\n")
	}
	return b.String()
}

// Setup is SetupSQL, statement by statement.
func (s *Settings) Setup(f *Facts) (steps []outboxtable.Step) {
	sql, rel := s.Table.SQL(), new(cdc.Relation)
	add := func(comment, format string, args ...any) {
		steps = append(steps, outboxtable.Step{Comment: comment, SQL: fmt.Sprintf(format, args...)})
	}
	if f != nil {
		rel = f.Table.Relation
		if rel.Index(s.OrderColumn) < 0 { // a new table has it
			add("The order of the rows of one key. Writers of one key must take turns.", "ALTER TABLE %s ADD COLUMN %s bigint GENERATED ALWAYS AS IDENTITY;", sql, pg.QuoteIdent(s.OrderColumn))
		}
	}
	if s.Claims() {
		if columns := s.claimColumnsSQL(rel); columns != "" {
			add("The state of each row, which walpost writes: who delivers it and until when, how often it was refused\nand why, when it is tried again, and when it was delivered. The application leaves the columns out.", "%s", columns)
		}
		for _, index := range s.claimIndexSQL(s.Key(rel), f) {
			add("", "%s", index)
		}
	}
	if s.XIDColumn != "" {
		if rel.Index(s.XIDColumn) < 0 {
			add("The id of the transaction that writes a row. The application leaves it out of its INSERT.", "%s", XIDColumnSQL(s.Table, s.XIDColumn))
		}
		if f == nil || !f.Index {
			add("", "CREATE INDEX ON %s (%s, %s);", sql, pg.QuoteIdent(s.XIDColumn), pg.QuoteIdent(s.OrderColumn))
		}
	}
	if f == nil || !f.Notify && !f.Prepares {
		add(`Wakes walpost when rows are inserted. Commits of transactions that notify wait for each other, so
leave the function and the trigger out if very many transactions insert at the same time: walpost
then looks at the table every source.poll.interval. Leave them out, too, if a transaction that inserts
is prepared (PREPARE TRANSACTION): Postgres refuses to prepare a transaction that has notified.`, `CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''%[2]s'', ''''); RETURN NULL; END';
CREATE TRIGGER %[2]s AFTER INSERT ON %[3]s FOR EACH STATEMENT EXECUTE FUNCTION %[1]s();`, s.function(), Channel(s.Table), sql)
	}
	return steps
}

// function is the name of the function that notifies.
func (s *Settings) function() string {
	return pg.QuoteIdent(s.Table.Schema) + "." + pg.QuoteIdent(Channel(s.Table))
}

// UndoSQL removes what Setup makes beside the table.
func (s *Settings) UndoSQL() string { return "DROP FUNCTION " + s.function() + "();" }
