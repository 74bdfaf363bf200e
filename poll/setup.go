package poll

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/pg"
)

// Channel is the channel on which the trigger of a table notifies.
func Channel(t pg.Table) string { return fmt.Sprintf("walpost_%08x", uint32(digest(t.String()))) }

// SetupSQL is the SQL that makes what polling needs of a table that exists, and that f does not have.
// A nil f has nothing. It is "" if nothing is missing.
func (s *Settings) SetupSQL(f *Facts) string {
	var b strings.Builder
	sql, add := s.Table.SQL(), func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if f != nil && f.Table.Relation.Index(s.OrderColumn) < 0 { // a new table has it
		add("-- The order of the rows of one key. Writers of one key must take turns.\nALTER TABLE %s ADD COLUMN %s bigint GENERATED ALWAYS AS IDENTITY;", sql, pg.QuoteIdent(s.OrderColumn))
	}
	if s.XIDColumn != "" {
		if f == nil || f.Table.Relation.Index(s.XIDColumn) < 0 {
			add("-- The id of the transaction that writes a row. The application leaves it out of its INSERT.\n%s", XIDColumnSQL(s.Table, s.XIDColumn))
		}
		if f == nil || !f.Index {
			add("CREATE INDEX ON %s (%s, %s);", sql, pg.QuoteIdent(s.XIDColumn), pg.QuoteIdent(s.OrderColumn))
		}
	}
	if f == nil || !f.Notify {
		function := pg.QuoteIdent(s.Table.Schema) + "." + pg.QuoteIdent(Channel(s.Table))
		add(`-- Wakes walpost when rows are inserted. Commits of transactions that notify wait for each other, so
-- leave the function and the trigger out if very many transactions insert at the same time: walpost
-- then looks at the table every source.poll.interval.
CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''%[2]s'', ''''); RETURN NULL; END';
CREATE TRIGGER %[2]s AFTER INSERT ON %[3]s FOR EACH STATEMENT EXECUTE FUNCTION %[1]s();`, function, Channel(s.Table), sql)
	}
	return b.String()
}
