// Embed is a service that has the relay inside: one process, one deployment. It reads DATABASE_URL and KAFKA_BROKERS.
//
//	DATABASE_URL=postgres://walpost@localhost/shop KAFKA_BROKERS=localhost:9092 go run ./examples/embed
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/walpost/walpost"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	relay, err := newRelay()
	if err != nil {
		return err // it says which field of the configuration is wrong
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s := relay.Status(); !s.Ready {
			http.Error(w, fmt.Sprintf("outbox: %s: %s", s.State, s.Reason), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Addr: os.Getenv("LISTEN"), Handler: mux, ReadHeaderTimeout: 5 * time.Second}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() {
		ended <- relay.Run(ctx) // until ctx ends, or until a person is needed
		cancel()
	}()
	go func() {
		ended <- server.ListenAndServe()
		cancel()
	}()
	<-ctx.Done()
	// The relay waits for acknowledgements, up to cfg.ShutdownGrace.
	closing, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	err = server.Shutdown(closing)
	for range 2 {
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func newRelay() (*walpost.Relay, error) {
	cfg := walpost.DefaultConfig()
	cfg.Source.DSN = walpost.Secret(os.Getenv("DATABASE_URL"))
	cfg.Source.Table, cfg.Source.OrderColumn = "public.outbox", "seq"
	cfg.Kafka.Brokers = strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	cfg.Kafka.Topics.Create = true
	cfg.Logger = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	return walpost.New(cfg)
}
