package poll

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// Facts are what the catalog of a server says about everything that polling rests on. What follows Table is read by one query.
type Facts struct {
	Server pg.Server
	Table  pg.TableFacts
	Index  bool // an index begins with the xid column and the order column
	Cache  int64
	Notify bool // the table has a trigger that calls pg_notify
	// CommitTimes says that the server keeps the commit times of transactions.
	CommitTimes bool
	// Prepares says that the server allows prepared transactions. One that notifies cannot be prepared.
	Prepares bool
	// Updatable says that the role may update the columns of workers, and Deletable that it may delete
	// rows. OpenByOrder and OpenByKey say that the indexes of unfinished rows exist.
	Updatable, Deletable, OpenByOrder, OpenByKey bool
	// Hidden says that the role may not use the schema of the table. Then the facts behind Table are not known.
	Hidden bool
	// Guards are the row triggers (BEFORE UPDATE, BEFORE DELETE) and rules that may keep a worker from
	// writing to a row.
	Guards []string
	// Unique says that no two rows have the same order number, as far as an index or a sequence tells.
	Unique bool
}

// checkWithin bounds Check: one connection, which may try several hosts, and some short questions.
const checkWithin = 30 * time.Second

// Check looks at every condition in the database. It is what walpost check shows. more, which may be nil,
// finds what does not concern polling.
func (s *Settings) Check(ctx context.Context, more func(context.Context, *pgconn.PgConn, *pg.Facts) []condition.Finding) []condition.Finding {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	l := condition.List{Side: condition.Postgres}
	conn, err := s.DB.ConnectSQL(ctx)
	if err != nil {
		l.Fail("connection", fix.ByWords(fault.Hint(err)), "%s", err)
		return l.Found
	}
	defer pg.Close(conn)
	l.OK("connection", "connected to %s", pg.Endpoint(conn))
	f, err := s.Describe(ctx, conn)
	if err != nil {
		l.Fail("catalog", fix.ByWords(fault.Hint(err)), "%s", err)
		return l.Found
	}
	l.Found = append(l.Found, s.Conditions(f)...)
	if more != nil {
		l.Found = append(l.Found, more(ctx, conn, &pg.Facts{Server: f.Server, Tables: []pg.TableFacts{f.Table}})...)
	}
	return l.Found
}

// Describe reads the facts.
func (s *Settings) Describe(ctx context.Context, conn *pgconn.PgConn) (*Facts, error) {
	server, err := pg.ReadServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	all := pg.Facts{}
	if err := (pg.Names{Tables: []pgname.Table{s.Table}}).DescribePublished(ctx, conn, &all); err != nil {
		return nil, err
	}
	table := &all.Tables[0]
	if !table.Exists() {
		return &Facts{Server: server, Table: *table}, nil
	}
	f, err := pg.Row[Facts](ctx, conn, "read the indexes and triggers of the table", fmt.Sprintf(`SELECT current_setting('track_commit_timestamp') = 'on' AS committimes,
 current_setting('max_prepared_transactions')::int > 0 AS prepares,
 %[2]s AS index,
 coalesce((SELECT bool_and(has_column_privilege(a.attrelid, a.attnum, 'UPDATE')) FROM pg_attribute a WHERE a.attrelid = %[1]d AND a.attname = ANY (%[6]s) AND NOT a.attisdropped), false) AS updatable,
 ARRAY(SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %[1]d AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 3 = 3 AND tgtype & %[9]d > 0 AND tgattr = ''
  UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = %[1]d AND ev_enabled <> 'D' AND ev_type IN ('2', '4') ORDER BY 1) AS guards,
 EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] WHERE i.indrelid = %[1]d AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attname = %[5]s) AS unique,
 has_table_privilege(%[1]d, 'DELETE') AS deletable, %[7]s AS openbyorder, %[8]s AS openbykey,
 EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = %[1]d AND t.tgenabled <> 'D' AND p.prosrc LIKE '%%' || %[3]s || '%%') AS notify,
 coalesce((SELECT q.seqcache FROM pg_sequence q WHERE q.seqrelid = pg_get_serial_sequence(%[4]s, %[5]s)::regclass), 0) AS cache`,
		table.OID, hasIndex(table.OID, allRows, s.XIDColumn, s.OrderColumn), pgname.QuoteLiteral(channel(s.Table)), pgname.QuoteLiteral(s.Table.SQL()), pgname.QuoteLiteral(s.orderIn(table.Relation)),
		workerColumns(), hasIndex(table.OID, openRows, s.OrderColumn), hasIndex(table.OID, openRows, s.Key(table.Relation), s.OrderColumn), s.writes()))
	f.Server, f.Table, f.Unique = server, *table, f.Unique || f.Cache > 0
	if f.Hidden = pg.SQLState(err) == pg.StateNoRight; f.Hidden {
		f.Table.Readable = false
		return &f, nil
	}
	return &f, err
}

// writes is what workers do to a row, as bits of pg_trigger.tgtype: UPDATE, and with the strategy delete
// also DELETE.
func (s *Settings) writes() int {
	if s.Strategy == Delete {
		return 16 + 8
	}
	return 16
}

// orderIn is the order column if rel has it. pg_get_serial_sequence fails for a column that is missing.
func (s *Settings) orderIn(rel *cdc.Relation) string {
	if rel.Index(s.OrderColumn) < 0 {
		return rel.Columns[0].Name
	}
	return s.OrderColumn
}

// Conditions judges everything that polling rests on, in the order of a report. A start refuses the first Fail that it needs. Conditions
// is pure.
func (s *Settings) Conditions(f *Facts) []condition.Finding {
	l := &condition.List{Side: condition.Postgres, Provider: f.Server.Provider}
	if s.needs(l, f); len(condition.Unmet(l.Found)) == 0 {
		l.OK("table "+s.Table.String(), "table %s has what polling needs", s.Table)
		s.costs(l, f)
	}
	return l.Found
}

// needs judges what a start needs.
func (s *Settings) needs(l *condition.List, f *Facts) {
	fail := func(name string, by fix.Fix, why string, args ...any) {
		l.Unmet(condition.Start, name, by, why, args...)
	}
	misconfigured := func(name string, by fix.Fix, why string, args ...any) {
		l.Unmet(condition.Misconfigured, name, by, why, args...)
	}
	if !l.Version(&f.Server) {
		return
	}
	if f.Server.Recovery {
		fail("primary", fix.ByWords("Point source.dsn at the primary."), "the server is a standby, and polling needs the primary")
	}
	t := &f.Table
	if !l.Table(condition.Start, t, f.Server.Database, fix.ByWords("Correct source.table, or create the table: walpost setup prints the SQL.")) {
		return
	}
	if !t.Readable {
		l.Unmet(condition.Privilege, "reading "+t.Table.String(), fix.BySQL(pg.ReadingRights(t.Table, f.Server.Role)), "role %s may not read %s", f.Server.Role, t.Table)
		if f.Hidden {
			return
		}
	}
	sql := t.Table.SQL()
	rel := t.Relation
	if s.Needs != nil {
		if _, fits := l.Columns(t, s.Needs); !fits {
			return
		}
	}
	order := fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s bigint GENERATED ALWAYS AS IDENTITY;", sql, pgname.QuoteIdent(s.OrderColumn))
	switch i := rel.Index(s.OrderColumn); {
	case i < 0:
		fail("source.order_column", fix.BySQL(order), "table %s has no column %q, which source.order_column names", t.Table, s.OrderColumn)
	case !slices.Contains([]string{"int2", "int4", "int8"}, rel.Columns[i].BaseName) || !rel.Columns[i].NotNull:
		misconfigured("source.order_column", fix.ByWords("Use an identity column: bigint GENERATED ALWAYS AS IDENTITY."),
			"column %s of %s must be an integer column with NOT NULL", s.OrderColumn, t.Table)
	}
	if s.Claims() {
		s.claimNeeds(l, f)
		return
	}
	const xid = "source.poll.xid_column"
	column := pgname.QuoteIdent(s.XIDColumn)
	switch i := rel.Index(s.XIDColumn); {
	case i < 0:
		fail(xid, fix.BySQL(xidColumnSQL(t.Table, s.XIDColumn)), "table %s has no column %s", t.Table, s.XIDColumn)
	case rel.Columns[i].BaseName != "xid8":
		misconfigured(xid, fix.ByWords("Use a column of the type xid8."), "column %s of %s has the type %s, not xid8", s.XIDColumn, t.Table, rel.Columns[i].TypeName)
	case !strings.Contains(rel.Columns[i].Default, "pg_current_xact_id()"):
		fail(xid, fix.BySQL(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT pg_current_xact_id();", sql, column)),
			"column %s of %s does not have the default pg_current_xact_id()", s.XIDColumn, t.Table)
	case !rel.Columns[i].NotNull:
		fail(xid, fix.BySQL(fmt.Sprintf("UPDATE %[1]s SET %[2]s = pg_current_xact_id() WHERE %[2]s IS NULL; ALTER TABLE %[1]s ALTER COLUMN %[2]s SET NOT NULL;", sql, column)),
			"column %s of %s can be NULL, and such a row would never be delivered", s.XIDColumn, t.Table)
	}
}

// costs judges what works but has a cost or a risk, on a table that has what a start needs.
func (s *Settings) costs(l *condition.List, f *Facts) {
	switch {
	case s.Claims():
		if sql := s.missingIndexes(f); sql != "" {
			l.Warn("index of unfinished rows", fix.BySQL(sql), "table %s has no index on its undelivered rows: each poll reads all rows", s.Table)
		}
	case !f.Index:
		l.Fail("index of transactions", fix.BySQL(s.missingIndexes(f)),
			"table %s has no index on (%s, %s): walpost would read the rows of a large transaction again for every page", s.Table, s.XIDColumn, s.OrderColumn)
	}
	if rel := f.Table.Relation; (!f.CommitTimes || s.Claims()) && rel.Index(s.TimeColumn) < 0 {
		how := "Set source.time_column to a timestamptz column, such as created_at."
		if !s.Claims() {
			how += " Or set track_commit_timestamp = on in Postgres, and restart Postgres."
		}
		l.Warn("source.time_column", fix.ByWords(how),
			"no column holds the time at which a row was written: a record's timestamp is the time at which walpost read the row, so a repeated event differs from the first one")
	}
	if s.Claims() && len(f.Guards) > 0 {
		l.Warn("triggers and rules", fix.ByWords("Make sure that each trigger and rule lets the role of walpost update and delete every row: if one of them prevents this, walpost stops with an error."),
			"%s of table %s may keep walpost from writing the state of a row", strings.Join(f.Guards, ", "), s.Table)
	}
	if !f.Unique {
		l.Warn("source.order_column", fix.ByWords("Use an identity column (bigint GENERATED ALWAYS AS IDENTITY), or create a unique index on the column."),
			"neither a sequence nor a unique index prevents rows from having equal values in column %s: the order of such rows is not defined", s.OrderColumn)
	}
	if f.Cache > 1 {
		l.Warn("source.order_column", fix.ByWords("Set the CACHE of its sequence to 1 (ALTER SEQUENCE … CACHE 1)."),
			"the sequence of column %s has CACHE %d: sessions take numbers in advance, so a key's events can be delivered out of order", s.OrderColumn, f.Cache)
	}
	switch {
	case f.Notify && f.Prepares:
		l.Warn("notification", fix.ByWords("If your services use PREPARE TRANSACTION for transactions that insert events, drop the trigger. walpost then reads the table every source.poll.interval."),
			"a trigger of %s notifies walpost, and max_prepared_transactions is above 0: Postgres refuses PREPARE TRANSACTION in a transaction that has inserted rows into the table", s.Table)
	case !f.Notify:
		l.OK("notification", "no trigger of %s notifies walpost, which therefore polls the table every %s", s.Table, s.Interval)
	default:
		l.OK("notification", "a trigger of %s notifies walpost of new rows", s.Table)
	}
}

// xidColumnSQL adds the column that source.poll.xid_column names.
func xidColumnSQL(t pgname.Table, column string) string {
	return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s xid8 NOT NULL DEFAULT pg_current_xact_id();", t.SQL(), pgname.QuoteIdent(column))
}
