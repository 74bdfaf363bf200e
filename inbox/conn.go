package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/anytx"
)

// A DB opens the transactions that handlers run in. T is pgx.Tx or *sql.Tx. A DB can be used by
// several goroutines.
type DB[T any] struct {
	begin func(context.Context) (*transaction[T], error)
}

// Pgx returns a DB whose transactions come from a pool, such as a *pgxpool.Pool.
func Pgx(pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
},
) *DB[pgx.Tx] {
	return &DB[pgx.Tx]{func(ctx context.Context) (*transaction[pgx.Tx], error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, fmt.Errorf("begin a transaction: %w", err)
		}
		return newTransaction(ctx, tx, tx.Commit, tx.Rollback)
	}}
}

// SQL returns a DB whose transactions come from database/sql with a driver for Postgres.
func SQL(db *sql.DB) *DB[*sql.Tx] {
	return &DB[*sql.Tx]{func(ctx context.Context) (*transaction[*sql.Tx], error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("begin a transaction: %w", err)
		}
		return newTransaction(ctx, tx,
			func(context.Context) error { return tx.Commit() },
			func(context.Context) error { return tx.Rollback() })
	}}
}

type transaction[T any] struct {
	anytx.Tx
	own      T // what the handler gets
	commit   func(context.Context) error
	rollback func(context.Context) error
}

func newTransaction[T any](ctx context.Context, own T, commit, rollback func(context.Context) error) (*transaction[T], error) {
	tx, err := anytx.Of(ctx, own)
	return &transaction[T]{tx, own, commit, rollback}, err
}

// in runs do in a transaction, and commits unless do returns an error. lost reports that the
// connection is gone, so that the error says nothing about what do tried.
func (db *DB[T]) in(ctx context.Context, do func(*transaction[T]) error) (lost bool, err error) {
	tx, err := db.begin(ctx)
	if err != nil {
		return true, err
	}
	if err := do(tx); err != nil {
		return tx.rollback(context.WithoutCancel(ctx)) != nil || ctx.Err() != nil, err
	}
	if err := tx.commit(ctx); err != nil {
		return ctx.Err() != nil || sqlState(err) == "" && !errors.Is(err, pgx.ErrTxCommitRollback), fmt.Errorf("commit: %w", err)
	}
	return false, nil
}

// sqlState returns the code of an error that the server reported, or "".
func sqlState(err error) string {
	var server interface{ SQLState() string } // of pgconn.PgError and pq.Error
	if errors.As(err, &server) {
		return server.SQLState()
	}
	return ""
}

// A PanicError is a handler's panic.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// recovered calls fn, and returns its panic as a *PanicError.
func recovered(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}
