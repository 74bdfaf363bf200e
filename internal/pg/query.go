package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrAnswer marks an answer of the server that is not of the form the question asks for.
var ErrAnswer = errors.New("unexpected answer")

// Rows runs a query and reads each row as a JSON object into a T, by column names. NULL, and a column
// that this version of Postgres does not have, leave the zero value, so a view may be asked for
// whole. An oid or xid is a string in JSON: its field has the tag json:",string". Rows uses the
// simple protocol, which also works on a replication connection.
func Rows[T any](ctx context.Context, conn *pgconn.PgConn, step, query string) ([]T, error) {
	results, err := conn.Exec(ctx, "SELECT to_json(r) FROM ("+query+") r").ReadAll()
	if err != nil {
		return nil, Classify(fmt.Errorf("%s: %w", step, err))
	}
	if len(results) != 1 {
		return nil, fmt.Errorf("%s: %w: %d results", step, ErrAnswer, len(results))
	}
	out := make([]T, 0, len(results[0].Rows))
	for _, row := range results[0].Rows {
		var v T
		if len(row) != 1 {
			return nil, fmt.Errorf("%s: %w: %d columns", step, ErrAnswer, len(row))
		}
		if err := json.Unmarshal(row[0], &v); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", step, ErrAnswer, err)
		}
		out = append(out, v)
	}
	return out, nil
}

// Row is Rows for a query that gives exactly one.
func Row[T any](ctx context.Context, conn *pgconn.PgConn, step, query string) (T, error) {
	all, err := Rows[T](ctx, conn, step, query)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%s: %w: %d rows", step, ErrAnswer, len(all))
	}
	if err != nil {
		var zero T
		return zero, err
	}
	return all[0], nil
}

// ServerVersion is the server_version_num.
func ServerVersion(ctx context.Context, conn *pgconn.PgConn) (int, error) {
	v, err := Row[struct{ V int }](ctx, conn, "read the version", "SELECT current_setting('server_version_num')::int AS v")
	return v.V, err
}

// FullXID is the SQL expression of the full id of the transaction that wrote the row of an alias. A row has only the low half of the id. The
// high half follows from next, which is above the id of every visible row: pg_snapshot_xmax as an int8. The expression is the
// largest id below next that ends in the low half, so it is the true one if the row is not older than 2^32 transactions.
func FullXID(next, alias string) string {
	return "(" + next + " - ((" + next + " - " + alias + ".xmin::text::int8) & 4294967295))"
}

// Micros is the SQL expression of a timestamptz in microseconds since 1970. It is exact, and does not depend on DateStyle.
func Micros(timestamptz string) string {
	return "(extract(epoch FROM " + timestamptz + ") * 1000000)::bigint"
}
