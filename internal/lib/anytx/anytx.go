// Package anytx runs SQL in a transaction of the caller, whichever library the transaction is of.
package anytx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Tx is a transaction of the caller. Its SQL has the placeholders $1, $2 and so on.
type Tx interface {
	// Exec runs one statement and returns how many rows it affected.
	Exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	// QueryRow runs a query for one row. A query without a row gives the error sql.ErrNoRows.
	QueryRow(ctx context.Context, query string, args []any, into ...any) error
}

// The two shapes that transactions have: that of pgx, and that of database/sql. Libraries above
// database/sql (sqlc, GORM, ent, bun, sqlx) have the second shape.
type (
	pgxShape interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}
	sqlShape interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	}
)

// ErrNoTransaction says that a handle is not in a transaction: it is a pool, or a connection before
// BEGIN. Each of its statements would be committed alone.
var ErrNoTransaction = errors.New("this is not a transaction, so the statement would be committed alone: pass the transaction that changes your data")

// Of returns the transaction that handle is. An error means that handle cannot run SQL, or that it
// is not in a transaction. The type or the connection of most handles says whether they are in one.
// For the others, Of asks the server, which takes two round trips and changes nothing.
func Of(ctx context.Context, handle any) (Tx, error) {
	tx, in, err := shape(handle)
	if err != nil {
		return nil, err
	}
	if in == unknown { // such as a *sql.Conn, a Client of ent, or a type of the user
		if in, err = ask(ctx, tx); err != nil {
			return nil, fmt.Errorf("%T: ask whether this is a transaction: %w", handle, err)
		}
	}
	if in == outside {
		return nil, fmt.Errorf("%T: %w", handle, ErrNoTransaction)
	}
	return tx, nil
}

// Any is Of, but handle can also be a pool or a connection: each statement of the Tx is then a
// transaction.
func Any(handle any) (Tx, error) {
	tx, _, err := shape(handle)
	return tx, err
}

// shape returns what runs the SQL of a handle, and what the handle says about itself.
func shape(handle any) (Tx, place, error) {
	// bun.Tx, sqlx.Tx and the transactions of GORM with prepared statements embed a *sql.Tx. The
	// ExecContext of bun.Tx has other placeholders.
	if v := reflect.Indirect(reflect.ValueOf(handle)); v.Kind() == reflect.Struct {
		if f := v.FieldByName("Tx"); f.IsValid() && f.CanInterface() {
			if tx, ok := f.Interface().(*sql.Tx); ok && tx != nil {
				handle = tx
			}
		}
	}
	switch h := handle.(type) {
	case pgxShape:
		return pgxTx{h}, ofPGX(h), nil
	case sqlShape:
		in := unknown
		if _, is := h.(*sql.Tx); is {
			in = inside
		} else if _, pool := h.(interface{ SetMaxOpenConns(n int) }); pool { // *sql.DB, and what embeds it
			in = outside
		}
		return sqlTx{h}, in, nil
	default:
		return nil, unknown, fmt.Errorf("%T cannot run SQL: it has neither the method Exec of pgx nor ExecContext of database/sql", handle)
	}
}

// A place says whether a handle is in a transaction.
type place int

const (
	unknown place = iota
	outside
	inside
)

// ofPGX returns what a handle of pgx says about itself.
func ofPGX(h pgxShape) place {
	var conn *pgx.Conn
	switch h := h.(type) {
	case *pgx.Conn:
		conn = h
	case interface{ Conn() *pgx.Conn }: // a transaction, or a connection of a pool
		conn = h.Conn()
	case interface{ Reset() }: // a pool
		return outside
	}
	_, tx := h.(pgx.Tx)
	switch {
	case conn != nil && conn.PgConn().TxStatus() == 'I':
		return outside
	case conn != nil || tx:
		return inside
	}
	return unknown
}

// ask asks the server by a savepoint. Outside a transaction, Postgres refuses a savepoint with
// no_active_sql_transaction.
func ask(ctx context.Context, tx Tx) (place, error) {
	_, err := tx.Exec(ctx, "SAVEPOINT walpost_in_transaction")
	if err == nil {
		_, err = tx.Exec(ctx, "RELEASE SAVEPOINT walpost_in_transaction")
	}
	var server interface{ SQLState() string } // of pgconn.PgError and pq.Error
	if errors.As(err, &server) && server.SQLState() == "25P01" {
		return outside, nil
	}
	return inside, err
}

type pgxTx struct{ pgxShape }

func (t pgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := t.pgxShape.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) QueryRow(ctx context.Context, query string, args []any, into ...any) error {
	q, ok := t.pgxShape.(interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	})
	if !ok {
		return fmt.Errorf("%T has no method QueryRow of pgx", t.pgxShape)
	}
	return q.QueryRow(ctx, query, args...).Scan(into...)
}

type sqlTx struct{ sqlShape }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := t.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args []any, into ...any) error {
	q, ok := t.sqlShape.(interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	})
	if !ok {
		return fmt.Errorf("%T has no method QueryContext of database/sql", t.sqlShape)
	}
	rows, err := q.QueryContext(ctx, query, args...) // ent has no QueryRowContext
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return errors.Join(rows.Err(), sql.ErrNoRows)
	}
	return errors.Join(rows.Scan(into...), rows.Close())
}
