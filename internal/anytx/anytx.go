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
// is known not to be a transaction. Of sends nothing.
func Of(handle any) (Tx, error) {
	// bun.Tx and sqlx.Tx embed a *sql.Tx. The ExecContext of bun.Tx has other placeholders.
	if v := reflect.Indirect(reflect.ValueOf(handle)); v.Kind() == reflect.Struct {
		if f := v.FieldByName("Tx"); f.IsValid() && f.CanInterface() {
			if tx, ok := f.Interface().(*sql.Tx); ok && tx != nil {
				handle = tx
			}
		}
	}
	switch h := handle.(type) {
	case pgxShape:
		if idle(h) {
			return nil, fmt.Errorf("%T: %w", handle, ErrNoTransaction)
		}
		return pgxTx{h}, nil
	case sqlShape:
		if _, pool := h.(interface{ SetMaxOpenConns(n int) }); pool { // *sql.DB, and what embeds it
			return nil, fmt.Errorf("%T: %w", handle, ErrNoTransaction)
		}
		return sqlTx{h}, nil
	}
	return nil, fmt.Errorf("%T cannot run SQL: it has neither the method Exec of pgx nor ExecContext of database/sql", handle)
}

// idle reports that a handle of pgx is known to be outside a transaction.
func idle(h pgxShape) bool {
	var conn *pgx.Conn
	switch h := h.(type) {
	case *pgx.Conn:
		conn = h
	case interface{ Conn() *pgx.Conn }: // a transaction, or a connection of a pool
		conn = h.Conn()
	case interface{ Reset() }: // a pool
		return true
	}
	return conn != nil && conn.PgConn().TxStatus() == 'I'
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
