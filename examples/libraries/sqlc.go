package libraries

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DBTX, Queries and their methods have the form of the code that sqlc generates.
type DBTX interface {
	Exec(context.Context, string, ...interface{}) (pgconn.CommandTag, error)
	Query(context.Context, string, ...interface{}) (pgx.Rows, error)
	QueryRow(context.Context, string, ...interface{}) pgx.Row
}

// New returns the queries on a pool, a connection or a transaction.
func New(db DBTX) *Queries { return &Queries{db: db} }

// Queries are the queries of the shop.
type Queries struct{ db DBTX }

// WithTx returns the queries in a transaction.
func (q *Queries) WithTx(tx pgx.Tx) *Queries { return &Queries{db: tx} }

const createOrder = `-- name: CreateOrder :exec
INSERT INTO orders (id, customer) VALUES ($1, $2)
`

// CreateOrder writes a row.
func (q *Queries) CreateOrder(ctx context.Context, id, customer string) error {
	_, err := q.db.Exec(ctx, createOrder, id, customer)
	return err
}
