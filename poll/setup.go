package poll

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// channel is the channel on which the trigger of a table notifies.
func channel(t pgname.Table) string { return fmt.Sprintf("walpost_%08x", uint32(digest(t.String()))) }

// SetupSQL is the SQL that makes what polling needs of a table that exists, and that f does not have.
// A nil f has nothing. It is "" if nothing is missing.
func (s *Settings) SetupSQL(f *Facts) string {
	var b strings.Builder
	for _, step := range s.Setup(f) {
		b.WriteString(outboxtable.Comment(step.Comment) + step.SQL + "\n")
	}
	return b.String()
}

// Setup is SetupSQL, statement by statement. The last statements make the indexes.
func (s *Settings) Setup(f *Facts) (steps []outboxtable.Step) {
	steps = s.setupTable(f)
	for i, sql := range s.indexSQL(f) {
		comment := ""
		if f != nil && i == 0 {
			comment = "Run each of these statements by itself, outside a transaction, so that writers can continue. walpost setup --apply leaves them to you."
			if f.Table.Kind == "p" {
				comment = "Writers wait while the index is built, because the table is partitioned. walpost setup --apply leaves these statements to you."
			}
		}
		steps = append(steps, outboxtable.Step{Comment: comment, SQL: sql})
	}
	return steps
}

// Apply makes what Setup makes, except indexes of a table that exists: a transaction that builds an index
// blocks the writers of the table. before and after are more SQL for the same transaction. Apply reports
// whether anything was missing.
func (s *Settings) Apply(ctx context.Context, conn *pgconn.PgConn, f *Facts, before, after string) (made bool, err error) {
	sql := before
	for _, step := range s.setupTable(f) {
		sql += step.SQL + "\n"
	}
	if f == nil {
		sql += strings.Join(s.indexSQL(nil), "\n") + "\n"
	}
	if sql += after; sql == "" {
		return false, nil
	}
	_, err = conn.Exec(ctx, sql).ReadAll()
	return err == nil, err
}

// indexSQL makes the indexes that the table does not have. A nil f has no table.
func (s *Settings) indexSQL(f *Facts) (sql []string) {
	rel, how := new(cdc.Relation), ""
	if f != nil {
		rel = f.Table.Relation
		if f.Table.Kind != "p" { // Postgres refuses it there
			how = " CONCURRENTLY"
		}
	}
	if s.Claims() {
		sql = s.claimIndexSQL(how, s.Key(rel), f)
	}
	if s.XIDColumn != "" && (f == nil || !f.Index) {
		sql = append(sql, fmt.Sprintf("CREATE INDEX%s ON %s (%s, %s);", how, s.Table.SQL(), pgname.QuoteIdent(s.XIDColumn), pgname.QuoteIdent(s.OrderColumn)))
	}
	return sql
}

// setupTable is Setup without the indexes.
func (s *Settings) setupTable(f *Facts) (steps []outboxtable.Step) {
	sql, rel := s.Table.SQL(), new(cdc.Relation)
	add := func(comment, format string, args ...any) {
		steps = append(steps, outboxtable.Step{Comment: comment, SQL: fmt.Sprintf(format, args...)})
	}
	if f != nil {
		rel = f.Table.Relation
		if rel.Index(s.OrderColumn) < 0 { // a new table has it
			add("The order of the rows of one key. Writers of one key must take turns.\nPostgres writes each row of the table again for this column, and writers wait until it has done so.", "ALTER TABLE %s ADD COLUMN %s bigint GENERATED ALWAYS AS IDENTITY;", sql, pgname.QuoteIdent(s.OrderColumn))
		}
	}
	if s.Claims() {
		if columns := s.claimColumnsSQL(rel); columns != "" {
			add("The state of each row, which walpost writes: who delivers it and until when, how often it was refused\nand why, when it is tried again, and when it was delivered. The application leaves the columns out.", "%s", columns)
		}
	}
	if s.XIDColumn != "" && rel.Index(s.XIDColumn) < 0 {
		add("The id of the transaction that writes a row. The application leaves it out of its INSERT.", "%s", xidColumnSQL(s.Table, s.XIDColumn))
	}
	if f == nil || !f.Notify && !f.Prepares {
		add(`Wakes walpost when rows are inserted. Commits of transactions that notify wait for each other, so
leave the function and the trigger out if very many transactions insert at the same time: walpost
then looks at the table every source.poll.interval. Leave them out, too, if a transaction that inserts
is prepared (PREPARE TRANSACTION): Postgres refuses to prepare a transaction that has notified.`, `CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''%[2]s'', ''''); RETURN NULL; END';
CREATE TRIGGER %[2]s AFTER INSERT ON %[3]s FOR EACH STATEMENT EXECUTE FUNCTION %[1]s();`, s.function(), channel(s.Table), sql)
	}
	return steps
}

// RoleFacts are what a role has. The zero value is a role that does not exist.
type RoleFacts struct{ Exists, Login, Reads, Writes bool }

// DescribeRole reads what a role has of the table of f. A nil f has no table. Reads and Writes are false
// if the table, or a column that workers write, does not exist.
func (s *Settings) DescribeRole(ctx context.Context, conn *pgconn.PgConn, f *Facts, role string) (RoleFacts, error) {
	var table uint32
	if f != nil {
		table = f.Table.OID
	}
	return pg.Row[RoleFacts](ctx, conn, "look for role "+role, fmt.Sprintf(`SELECT r.oid IS NOT NULL AS exists, coalesce(r.rolcanlogin, false) AS login,
 coalesce(has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'SELECT'), false) AS reads,
 coalesce((SELECT count(*) = %d AND bool_and(has_column_privilege(r.oid, c.oid, a.attnum, 'UPDATE')) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (%s) AND NOT a.attisdropped)
  AND (%t OR has_table_privilege(r.oid, c.oid, 'DELETE')), false) AS writes
FROM (SELECT) one LEFT JOIN pg_roles r ON r.rolname = %s LEFT JOIN pg_class c ON c.oid = %d`,
		len(claimColumns), workerColumns(), s.Strategy != Delete, pgname.QuoteLiteral(role), table))
}

// MissingRights is the SQL that makes a role, or grants the rights that it needs and does not have.
func (s *Settings) MissingRights(has RoleFacts, role string) (sql string) {
	switch {
	case !has.Exists:
		sql = outboxtable.Comment(`The role of walpost. Give it a password if pg_hba.conf asks for one (\password in psql).`) +
			"CREATE ROLE " + pgname.QuoteIdent(role) + " LOGIN;\n"
	case !has.Login:
		sql = "ALTER ROLE " + pgname.QuoteIdent(role) + " LOGIN;\n"
	}
	if !has.Reads {
		sql += pg.ReadingRights(s.Table, role) + "\n"
	}
	if s.Claims() && !has.Writes {
		sql += s.claimingRights(role) + "\n"
	}
	return sql
}

// function is the name of the function that notifies.
func (s *Settings) function() string {
	return pgname.QuoteIdent(s.Table.Schema) + "." + pgname.QuoteIdent(channel(s.Table))
}

// UndoSQL removes what Setup makes beside the table.
func (s *Settings) UndoSQL() string { return "DROP FUNCTION " + s.function() + "();" }
