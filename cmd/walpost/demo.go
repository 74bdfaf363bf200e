//go:build linux || darwin

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/demo"
	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/sink"
)

// startAsGuard does not return if demo started this program again, as the guard of its Postgres.
func startAsGuard() { keeper.Init() }

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "shows walpost at work, with its own Postgres, broker and shop",
		Long: `demo starts a private Postgres, a Kafka-compatible broker inside this process, a small shop that
writes orders and outbox rows in one transaction, and the relay. It needs only disk space for the
Postgres binaries, which it downloads once.

demo runs until you stop it, or for the duration of --for. Then it checks that every committed event
has arrived once, and that each key's events have arrived in order. If so, it exits with 0. It
removes everything that it created, except the downloaded Postgres, which it keeps in a cache.`,
		Args: noArguments,
	}
	length := cmd.Flags().Duration("for", 0, "stop after this `duration`")
	listen := cmd.Flags().String("http", "127.0.0.1:0", "`host:port` of the status page, or off")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *length < 0 {
			return usageError{fmt.Errorf("--for: must not be below 0 (got %s)", *length)}
		}
		ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
		defer stop()
		out := cmd.OutOrStdout()
		return demo.Run(ctx, out, *length, func(ctx context.Context, dsn string, brokers []string, log io.Writer, started func(*walpost.Relay, string)) error {
			cfg := defaultConfig()
			cfg.Source.DSN = walpost.Secret(dsn)
			cfg.Source.Table = "public.outbox"
			cfg.Kafka.Brokers = brokers
			cfg.Kafka.Topics = sink.Topics{Create: true, Partitions: 3, ReplicationFactor: 1}
			cfg.Monitor.Interval = 2 * time.Second
			cfg.HaltLinger = 0
			cfg.HTTP.Listen = *listen
			return runRelay(ctx, cfg, newLogger(logConfig{Level: "warn", Format: "console"}, log), started, nil)
		})
	}
	return cmd
}
