// Package libraries is one handler of messages, written with each library that walpost's users have:
// within one transaction it recognises a repeated message, writes an order and writes an event. Copy the
// function of your library.
//
// The code of ent is generated: run go generate before you build the package.
package libraries

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"gorm.io/gorm"

	"github.com/walpost/walpost/examples/libraries/ent"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/outbox"
)

//go:generate go run -mod=mod entgo.io/ent/cmd/ent generate --feature sql/execquery ./ent/schema

// An Order is a row of the table orders.
type Order struct {
	bun.BaseModel `bun:"table:orders" gorm:"-" db:"-" json:"-"`

	ID       string `bun:",pk" gorm:"primaryKey" json:"id"`
	Customer string `json:"customer"`
}

func placed(order Order) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: order.ID, Type: "OrderPlaced", Payload: order}
}

// PlaceGORM does it with GORM.
func PlaceGORM(ctx context.Context, db *gorm.DB, m inbox.Message, order Order) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		handle := tx.Statement.ConnPool
		_, err := inbox.Once(ctx, handle, "shop", m, func(ctx context.Context) error {
			if err := tx.Create(&order).Error; err != nil {
				return err
			}
			return outbox.Write(ctx, handle, placed(order))
		})
		return err
	})
}

// PlaceBun does it with bun.
func PlaceBun(ctx context.Context, db *bun.DB, m inbox.Message, order Order) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := inbox.Once(ctx, tx, "shop", m, func(ctx context.Context) error {
			if _, err := tx.NewInsert().Model(&order).Exec(ctx); err != nil {
				return err
			}
			return outbox.Write(ctx, tx, placed(order))
		})
		return err
	})
}

// PlaceEnt does it with ent and its feature sql/execquery.
func PlaceEnt(ctx context.Context, client *ent.Client, m inbox.Message, order Order) error {
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	_, err = inbox.Once(ctx, tx, "shop", m, func(ctx context.Context) error {
		if err := tx.Order.Create().SetID(order.ID).SetCustomer(order.Customer).Exec(ctx); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, placed(order))
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

// PlaceSQLX does it with sqlx.
func PlaceSQLX(ctx context.Context, db *sqlx.DB, m inbox.Message, order Order) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	_, err = inbox.Once(ctx, tx, "shop", m, func(ctx context.Context) error {
		if _, err := tx.NamedExecContext(ctx, "INSERT INTO orders VALUES (:id, :customer)", order); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, placed(order))
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

// PlaceSQLC does it with the code that sqlc generates for sql_package: pgx/v5.
func PlaceSQLC(ctx context.Context, pool *pgxpool.Pool, queries *Queries, m inbox.Message, order Order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := inbox.Once(ctx, tx, "shop", m, func(ctx context.Context) error {
			if err := queries.WithTx(tx).CreateOrder(ctx, order.ID, order.Customer); err != nil {
				return err
			}
			return outbox.Write(ctx, tx, placed(order))
		})
		return err
	})
}
