package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/lib/anytx"
)

// A DB opens the transactions that handlers run in. T is pgx.Tx or *sql.Tx. Several goroutines can
// use a DB.
//
// A handler must not end its transaction, because the mark and the effect would no longer be
// atomic. A DB's pgx.Tx refuses Commit and Rollback, and the handler then counts as failed, even if
// it returns nil. Its Begin creates savepoints, which the handler ends as usual. An *sql.Tx can't
// be wrapped, so the DB detects a Commit only afterwards.
type DB[T any] struct {
	begin   func(context.Context) (*transaction[T], error)
	connect connect
	schema  Schema
}

// In returns a DB that uses the tables in a schema. Without In, Postgres finds the tables by the
// search_path.
func (db *DB[T]) In(s Schema) *DB[T] { return &DB[T]{db.begin, db.connect, s} }

// errEnded says that a handler has ended its transaction, or tried to. It does so with every
// message, so no message is at fault.
var errEnded = Retryable(errors.New("inbox: the handler ends its transaction, which the inbox commits: remove Commit and Rollback from the handler"))

// handlerTx is what a handler gets of pgx.
type handlerTx struct {
	pgx.Tx
	ended bool // the handler tried
}

func (t *handlerTx) Commit(context.Context) error   { t.ended = true; return errEnded }
func (t *handlerTx) Rollback(context.Context) error { t.ended = true; return errEnded }

func (t *handlerTx) isOpen() error {
	if t.ended || t.Conn().PgConn().TxStatus() == 'I' { // by a statement
		return errEnded
	}
	return nil
}

// Pgx returns a DB whose transactions come from a pool, such as a *pgxpool.Pool.
func Pgx(pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
},
) *DB[pgx.Tx] {
	return &DB[pgx.Tx]{connect: connectPgx(pool), begin: func(ctx context.Context) (*transaction[pgx.Tx], error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, cannotBegin(err)
		}
		own := &handlerTx{Tx: tx}
		return newTransaction[pgx.Tx](ctx, own, tx.Commit, tx.Rollback, own.isOpen)
	}}
}

// SQL returns a DB whose transactions come from database/sql with a driver for Postgres.
func SQL(db *sql.DB) *DB[*sql.Tx] {
	return &DB[*sql.Tx]{connect: connectSQL(db), begin: func(ctx context.Context) (*transaction[*sql.Tx], error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, cannotBegin(err)
		}
		return newTransaction(ctx, tx,
			func(context.Context) error { return tx.Commit() },
			func(context.Context) error { return tx.Rollback() },
			func() error { return nil }) // the commit finds out
	}}
}

// cannotBegin returns an error of the time before the handler, so no message is at fault.
func cannotBegin(err error) error { return Retryable(fmt.Errorf("begin a transaction: %w", err)) }

type transaction[T any] struct {
	schemaTx
	own      T // what the handler gets
	commit   func(context.Context) error
	rollback func(context.Context) error
	isOpen   func() error // after the handler
}

func newTransaction[T any](ctx context.Context, own T, commit, rollback func(context.Context) error, isOpen func() error) (*transaction[T], error) {
	tx, err := anytx.Of(ctx, own)
	return &transaction[T]{schemaTx{Tx: tx}, own, commit, rollback, isOpen}, err
}

// handle calls a handler. Its error is what the handler returned, or its panic as a *PanicError.
func (t *transaction[T]) handle(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	err := recovered(func() error { return fn(ctx, t.own) })
	if err == nil {
		err = t.isOpen()
	}
	return err
}

// in runs do in a transaction, and commits unless do returns an error. lost reports that the
// connection is gone, so that the error says nothing about what do tried.
func (db *DB[T]) in(ctx context.Context, do func(*transaction[T]) error) (lost bool, err error) {
	tx, err := db.begin(ctx)
	if err != nil {
		return true, err
	}
	tx.schema = db.schema
	if err := do(tx); err != nil {
		return tx.rollback(context.WithoutCancel(ctx)) != nil || ctx.Err() != nil, err
	}
	err = tx.commit(ctx)
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
		return false, errEnded
	}
	if err != nil {
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
