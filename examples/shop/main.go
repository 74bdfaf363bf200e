// Command shop is two services that work together through events, and nothing but events: orders
// takes orders, and payments takes the money.
//
//	go run ./examples/shop
//
// It brings its own Postgres (downloaded once) and a broker inside the process. It runs until Ctrl-C
// or for the time of -for. Then no more orders are placed, and when all sagas are finished, the books
// of both services must balance.
//
// Each service writes its events with package outbox in the transaction of its business, relays them
// with walpost, and consumes the events of the other service with package inbox. examples/README.md explains it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/localpg"
)

func main() {
	keeper.Init() // the embedded Postgres ends with this process, even if it is killed
	length := flag.Duration("for", 0, "stop after this time (default: when interrupted)")
	dsn := flag.String("dsn", "", "run one service, on this database: shop -dsn … -brokers … orders")
	brokers := flag.String("brokers", "", "the Kafka brokers of that service, separated by commas")
	closed := flag.Bool("closed", false, "the service orders places no orders, and only goes on with those that there are")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch flag.Arg(0) {
	case "":
		err = all(ctx, *length)
	case "orders":
		err = one(ctx, orders(*dsn, strings.Split(*brokers, ",")), !*closed)
	case "payments":
		err = one(ctx, payments(*dsn, strings.Split(*brokers, ",")), false)
	default:
		err = fmt.Errorf("there is no service %q, only orders and payments", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

// one runs one service, as it would run in production.
func one(ctx context.Context, s *service, customers bool) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	if customers {
		return s.run(ctx, s.customers(20*time.Millisecond))
	}
	return s.run(ctx)
}

// all runs everything in this process, and examines the books at the end.
func all(ctx context.Context, length time.Duration) (err error) {
	server, err := localpg.Start(ctx, localpg.Config{Version: "17", Progress: func(step string) { fmt.Println(step) }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "outbox.event.order", "outbox.event.payment"))
	if err != nil {
		return err
	}
	defer broker.Close()
	if err := makeDatabases(ctx, server.DSN("postgres")); err != nil {
		return err
	}
	shop, bank := orders(server.DSN("orders"), broker.ListenAddrs()), payments(server.DSN("payments"), broker.ListenAddrs())
	if err := errors.Join(shop.open(ctx), bank.open(ctx)); err != nil {
		return err
	}
	open := ctx // the customers come as long as the shop is open; the services go on until every saga has ended
	if length > 0 {
		var cancel context.CancelFunc
		open, cancel = context.WithTimeout(ctx, length)
		defer cancel()
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan error, 2)
	customers := func(ctx context.Context) error {
		err := shop.customers(5 * time.Millisecond)(open)
		<-ctx.Done()
		return err
	}
	go func() { ended <- shop.run(serving, customers) }()
	go func() { ended <- bank.run(serving) }()

	var r report
	var wrong error
	for closed := false; !closed || r.open > 0; {
		select {
		case err := <-ended:
			return fmt.Errorf("a service ended: %w", err)
		case <-time.After(time.Second):
		}
		closed = open.Err() != nil // before the audit, so that no order comes after the last one
		if r, wrong = audit(serving, server.DSN("orders"), server.DSN("payments")); wrong != nil && closed {
			return wrong
		}
		fmt.Println(r)
	}
	end()
	if err := errors.Join(<-ended, <-ended, wrong); err != nil {
		return err
	}
	fmt.Println("The books of both services balance: every event had its effect exactly once.")
	return nil
}

func makeDatabases(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, name := range []string{"orders", "payments"} {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
			return err
		}
	}
	return nil
}
