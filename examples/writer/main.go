// Writer is a service that only writes events. walpost runs elsewhere, and this service knows neither walpost nor Kafka. It reads
// DATABASE_URL. Its database has the tables outbox (walpost setup makes it) and orders:
//
//	CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, total bigint NOT NULL)
//
//	DATABASE_URL=postgres://shop@localhost/shop LISTEN=localhost:8080 go run ./examples/writer
//	curl -d '{"customer": "c-7", "total": 1250}' localhost:8080/orders
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/outbox"
)

// An order is a row of orders, and the payload of its event.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Total    int64  `json:"total"` // cents
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		o := order{ID: rand.Text()}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := place(r.Context(), db, o); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, o.ID)
	})
	server := &http.Server{Addr: os.Getenv("LISTEN"), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.WithoutCancel(ctx)) }) // ListenAndServe returns
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// place writes the order and its event in one transaction: both are there, or neither is.
func place(ctx context.Context, db *pgxpool.Pool, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, customer, total) VALUES ($1, $2, $3)", o.ID, o.Customer, o.Total); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: o.ID, Type: "OrderPlaced", Payload: o})
	})
}
