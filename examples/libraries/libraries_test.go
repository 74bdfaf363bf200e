package libraries

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/walpost/walpost/examples/libraries/ent"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// A shop places orders with one library.
type shop struct {
	place func(ctx context.Context, m inbox.Message, order Order) error
	pools map[string]any // handles outside a transaction
	// inner writes an event in a transaction within a transaction, and rolls back the inner one. Nil if
	// the library has no such thing.
	inner func(ctx context.Context, event outbox.Event) error
}

func pool(t *testing.T, driver, dsn string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openGORM(t *testing.T, dsn string, prepare bool) shop {
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool(t, "pgx", dsn)}), &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	return shop{
		place: func(ctx context.Context, m inbox.Message, o Order) error { return PlaceGORM(ctx, db, m, o) },
		pools: map[string]any{"ConnPool": db.Statement.ConnPool, "Session": db.Session(&gorm.Session{}).Statement.ConnPool},
		inner: func(ctx context.Context, event outbox.Event) error {
			return db.Transaction(func(tx *gorm.DB) error {
				_ = tx.Transaction(func(tx *gorm.DB) error {
					if err := outbox.Write(ctx, tx.Statement.ConnPool, event); err != nil {
						return err
					}
					return errRollback
				})
				event.AggregateID += "-outer"
				return outbox.Write(ctx, tx.Statement.ConnPool, event)
			})
		},
	}
}

var errRollback = fmt.Errorf("roll back")

func openBun(t *testing.T, driver, dsn string) shop {
	db := bun.NewDB(pool(t, driver, dsn), pgdialect.New())
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return shop{
		place: func(ctx context.Context, m inbox.Message, o Order) error { return PlaceBun(ctx, db, m, o) },
		pools: map[string]any{"DB": db, "Conn": conn},
		inner: func(ctx context.Context, event outbox.Event) error {
			return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				_ = tx.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
					if err := outbox.Write(ctx, tx, event); err != nil {
						return err
					}
					return errRollback
				})
				event.AggregateID += "-outer"
				return outbox.Write(ctx, tx, event)
			})
		},
	}
}

func openEnt(t *testing.T, driver, dsn string) shop {
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, pool(t, driver, dsn))))
	return shop{
		place: func(ctx context.Context, m inbox.Message, o Order) error { return PlaceEnt(ctx, client, m, o) },
		pools: map[string]any{"Client": client},
	}
}

var shops = map[string]func(t *testing.T, dsn string) shop{
	"GORM":                      func(t *testing.T, dsn string) shop { return openGORM(t, dsn, false) },
	"GORM, prepared statements": func(t *testing.T, dsn string) shop { return openGORM(t, dsn, true) },
	"bun with pgx":              func(t *testing.T, dsn string) shop { return openBun(t, "pgx", dsn) },
	"bun with lib/pq":           func(t *testing.T, dsn string) shop { return openBun(t, "postgres", dsn) },
	"ent with pgx":              func(t *testing.T, dsn string) shop { return openEnt(t, "pgx", dsn) },
	"ent with lib/pq":           func(t *testing.T, dsn string) shop { return openEnt(t, "postgres", dsn) },
	"sqlx": func(t *testing.T, dsn string) shop {
		db := sqlx.NewDb(pool(t, "pgx", dsn), "pgx")
		return shop{
			place: func(ctx context.Context, m inbox.Message, o Order) error { return PlaceSQLX(ctx, db, m, o) },
			pools: map[string]any{"DB": db},
		}
	},
	"sqlc": func(t *testing.T, dsn string) shop {
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return shop{
			place: func(ctx context.Context, m inbox.Message, o Order) error {
				return PlaceSQLC(ctx, pool, New(pool), m, o)
			},
			pools: map[string]any{"Pool": pool},
		}
	},
}

// The order, the event and the mark of the message are committed together, or none of them is.
func TestEachLibraryCommitsAllOrNothing(t *testing.T) {
	_ = stdlib.GetDefaultDriver() // registers pgx
	up, err := outbox.New(outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	table, _ := up.DDL()
	marks, _ := inbox.Schema("").DDL(0)
	for name, open := range shops {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, "")
			dsn := pg.Database(t)
			pg.Exec(t, dsn, table, marks, "CREATE TABLE customers (name text PRIMARY KEY)", "INSERT INTO customers VALUES ('ann')",
				"CREATE TABLE orders (id text PRIMARY KEY, customer text REFERENCES customers DEFERRABLE INITIALLY DEFERRED)")
			s := open(t, dsn)
			want := func(step, orders, messages string) {
				t.Helper()
				if got := pg.Value(t, dsn, "SELECT coalesce(string_agg(id, ' ' ORDER BY id), '') FROM orders"); got != orders {
					t.Errorf("%s: orders %q, want %q", step, got, orders)
				}
				if got := pg.Value(t, dsn, "SELECT coalesce(string_agg(payload->>'id', ' ' ORDER BY seq), '') FROM outbox"); got != orders {
					t.Errorf("%s: events %q, want %q", step, got, orders)
				}
				if got := pg.Value(t, dsn, "SELECT coalesce(string_agg(event_id, ' ' ORDER BY event_id), '') FROM inbox_processed"); got != messages {
					t.Errorf("%s: messages %q, want %q", step, got, messages)
				}
			}
			place := func(id string, o Order, says string) {
				t.Helper()
				err := s.place(t.Context(), inbox.Message{Topic: "baskets", ID: id}, o)
				if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
					t.Errorf("message %s: %v, want an error with %q", id, err, says)
				}
			}
			place("m1", Order{ID: "a", Customer: "ann"}, "")
			want("commit", "a", "m1")
			place("m1", Order{ID: "a", Customer: "ann"}, "")
			want("the message once more", "a", "m1")
			place("m2", Order{ID: "a", Customer: "ann"}, "orders_pkey")
			want("a statement fails", "a", "m1")
			place("m3", Order{ID: "b", Customer: "nobody"}, "orders_customer_fkey")
			want("the commit fails", "a", "m1")
			place("m3", Order{ID: "b", Customer: "ann"}, "")
			want("the next attempt", "a b", "m1 m3")
			for handle, outside := range s.pools {
				if err := outbox.Write(t.Context(), outside, placed(Order{ID: "c"})); err == nil || !strings.Contains(err.Error(), "this is not a transaction") {
					t.Errorf("Write outside a transaction, %s: %v", handle, err)
				}
				if _, err := inbox.Once(t.Context(), outside, "shop", inbox.Message{Topic: "baskets", ID: "m4"}, func(context.Context) error { return nil }); err == nil || !strings.Contains(err.Error(), "this is not a transaction") {
					t.Errorf("Once outside a transaction, %s: %v", handle, err)
				}
			}
			want("no transaction", "a b", "m1 m3")
			if s.inner == nil {
				return
			}
			if err := s.inner(t.Context(), placed(Order{ID: "inner"})); err != nil {
				t.Error(err)
			}
			if got := pg.Value(t, dsn, "SELECT string_agg(aggregate_id, ' ' ORDER BY seq) FROM outbox"); got != "a b inner-outer" {
				t.Errorf("after a rollback of an inner transaction: %s", got)
			}
		})
	}
}
