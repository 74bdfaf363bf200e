package pg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
)

// ErrAnswer marks an answer of the server that is not of the form the question asks for.
var ErrAnswer = errors.New("unexpected answer")

// Rows runs a query and reads each row as a JSON object into a T, by column names. NULL leaves the zero value; a column
// that this version of Postgres does not have does too, so a view may be asked for whole. It uses the simple protocol,
// which also works on a replication connection.
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
			return nil, fmt.Errorf("%s: %w", step, err)
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

// An LSN reads a pg_lsn; NULL is 0.
type LSN cdc.Position

func (l LSN) String() string { return cdc.Position(l).String() }

// UnmarshalJSON implements json.Unmarshaler.
func (l *LSN) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*l = 0
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	p, err := cdc.ParsePosition(s)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	*l = LSN(p)
	return nil
}

// An OID reads an oid or an xid, which JSON has as a string.
type OID uint32

// UnmarshalJSON implements json.Unmarshaler.
func (o *OID) UnmarshalJSON(b []byte) error {
	b = bytes.Trim(b, `"`)
	if bytes.Equal(b, []byte("null")) {
		*o = 0
		return nil
	}
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil {
		return fmt.Errorf("%w: %q is not an oid", ErrAnswer, b)
	}
	*o = OID(n)
	return nil
}

// ServerVersion is the server_version_num.
func ServerVersion(ctx context.Context, conn *pgconn.PgConn) (int, error) {
	v, err := Row[struct{ V int }](ctx, conn, "read the version", "SELECT current_setting('server_version_num')::int AS v")
	return v.V, err
}

// FullXID is the SQL expression of the full id of the transaction that wrote row t. A row has only the low half of the id. The
// high half follows from next, which is above the id of every visible row: pg_snapshot_xmax as an int8. The expression is the
// largest id below next that ends in the low half, so it is the true one if the row is not older than 2^32 transactions.
func FullXID(next string) string {
	return "(" + next + " - ((" + next + " - t.xmin::text::int8) & 4294967295))"
}
