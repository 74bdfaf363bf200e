package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/lib/pgname"
)

type blocker struct {
	PID      int32
	User     string
	Database string
	State    string
	Age      int64 // seconds
}

// Blockers says in words, and as process ids, whom the process pid waits for; "" for nobody, or where it could not be asked.
func Blockers(ctx context.Context, sql *pgconn.PgConn, pid uint32) (string, []int32) {
	all, err := Rows[blocker](ctx, sql, "ask who blocks", fmt.Sprintf(`SELECT b.pid, a.usename AS user, a.datname AS database, a.state,
 extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS age
 FROM unnest(pg_blocking_pids(%d)) b(pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid ORDER BY a.xact_start LIMIT 10`, pid))
	if err != nil || len(all) == 0 {
		return "", nil
	}
	var words []string
	var pids []int32
	for _, b := range all {
		if b.PID == 0 {
			words = append(words, "a prepared transaction (see pg_prepared_xacts)")
			continue
		}
		pids = append(pids, b.PID)
		word := fmt.Sprintf("process %d", b.PID)
		if b.State != "" {
			word += fmt.Sprintf(" (%s@%s, %s, its transaction is open for %s)", b.User, b.Database, b.State, time.Duration(b.Age)*time.Second)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", "), pids
}

const countUpTo = 1_000_000

// CountRows says how many rows of a table a row filter lets through: "" for none, exactly up to a bound.
func CountRows(ctx context.Context, sql *pgconn.PgConn, t *TableFacts, filter string) (string, error) {
	step := "count the rows of " + t.Table.String()
	type count struct{ N int64 }
	n, err := Row[count](ctx, sql, step, fmt.Sprintf("SELECT count(*) AS n FROM (SELECT FROM %s WHERE %s LIMIT %d) x", t.Table.SQL(), cmp.Or(filter, "true"), countUpTo+1))
	switch state := SQLState(err); {
	case err == nil && n.N == 0:
		return "", nil
	case err == nil && n.N == 1:
		return "1 row", nil
	case err == nil && n.N > countUpTo:
		return fmt.Sprintf("more than %d rows", countUpTo), nil
	case err == nil:
		return fmt.Sprintf("%d rows", n.N), nil
	case state == StateCancelled && ctx.Err() == nil:
		return "more rows than can be counted in half a minute", nil
	case state != StateNoRight || errors.Is(err, context.Canceled):
		return "", err
	}
	// Reading the WAL does not need the right to read the table. Its size then says whether there may be rows.
	n, err = Row[count](ctx, sql, step, fmt.Sprintf(`SELECT pg_relation_size(%d::oid::regclass)
 + coalesce((SELECT sum(pg_relation_size(p.relid)) FROM pg_partition_tree(%d::oid::regclass) p), 0)::bigint AS n`, t.OID, t.OID))
	if err != nil || n.N == 0 {
		return "", err
	}
	return fmt.Sprintf("%d bytes of rows (the role may not count them)", n.N), nil
}

// OwningRights is the SQL that makes a role the owner of a table and of its partitions, and lets it make tables beside them.
func OwningRights(t pgname.Table, role string) string {
	return fmt.Sprintf(`GRANT USAGE, CREATE ON SCHEMA %[1]s TO %[2]s;
ALTER TABLE %[3]s OWNER TO %[2]s;
DO $$
DECLARE part regclass;
BEGIN
  FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = %[4]s::regclass LOOP
    EXECUTE format('ALTER TABLE %%s OWNER TO %%I', part, %[5]s);
  END LOOP;
END $$;`, pgname.QuoteIdent(t.Schema), pgname.QuoteIdent(role), t.SQL(), pgname.QuoteLiteral(t.SQL()), pgname.QuoteLiteral(role))
}

// MayClean reports whether a role may remove old rows of a table: as its owner, or by deleting them.
func MayClean(ctx context.Context, sql *pgconn.PgConn, role string, t pgname.Table, owns bool) (bool, error) {
	found, err := Rows[struct{ May bool }](ctx, sql, "look at the privileges on "+t.String(), fmt.Sprintf(
		`SELECT CASE WHEN %v THEN pg_has_role(r.oid, c.relowner, 'USAGE') AND has_schema_privilege(r.oid, c.relnamespace, 'CREATE')
  AND NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = c.oid AND NOT pg_has_role(r.oid, p.relowner, 'USAGE'))
 ELSE has_table_privilege(r.oid, c.oid, 'SELECT') AND has_table_privilege(r.oid, c.oid, 'DELETE') AND has_any_column_privilege(r.oid, c.oid, 'UPDATE') END AS may
 FROM pg_class c, pg_roles r WHERE c.oid = %s AND r.rolname = %s`, owns, t.OID(), pgname.QuoteLiteral(role)))
	return len(found) > 0 && found[0].May, err
}

// MayInsert reports whether a table exists and a role may insert into it. The present role may lack rights on
// the schema.
func MayInsert(ctx context.Context, sql *pgconn.PgConn, role string, t pgname.Table) (bool, error) {
	found, err := Rows[struct{ May bool }](ctx, sql, "look at the privileges on "+t.String(), `SELECT has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'INSERT') AS may
 FROM pg_class c, pg_roles r WHERE c.oid = `+t.OID()+" AND r.rolname = "+pgname.QuoteLiteral(role))
	return len(found) > 0 && found[0].May, err
}
