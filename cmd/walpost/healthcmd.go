package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/askrelay"
)

func healthCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "checks that the running relay is alive, for a container's health check",
		Long: `health asks the relay at http.listen for /livez. A relay that is halted, or that waits for Kafka or
Postgres, is alive, because a restart wouldn't help. With --ready, health asks for /readyz instead,
and prints what the relay is waiting for. With --standby-ok, a process that waits for another relay
to end counts as ready, too.

health reads only the section http of the configuration, and doesn't connect to the database or to
Kafka. It exits with

  0  if the relay answers that it is alive, or ready
  1  if it answers anything else, or doesn't answer within 3s`,
		Example: `  walpost health
  walpost health --config walpost.yaml --ready`,
		Args: noArguments,
	}
	unchecked := func(*walpost.Config) walpost.Problems { return nil } // whether run would start does not matter
	load := configFlags(cmd, unchecked, "http")
	ready := cmd.Flags().Bool("ready", false, "also check that events are delivered")
	standby := cmd.Flags().Bool("standby-ok", false, "with --ready: a hot standby counts as ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := "/livez"
		switch {
		case *ready && *standby:
			path = "/readyz?standby=ok"
		case *ready:
			path = "/readyz"
		case *standby:
			return usageError{errors.New("--standby-ok needs --ready")}
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			if why := askrelay.NoAddress(cfg.HTTP); why != "" {
				return usageError{errors.New(why)}
			}
			client := askrelay.NewClient(cfg.HTTP)
			defer client.CloseIdleConnections()
			code, answer, err := client.Get(ctx, path)
			if err != nil {
				return fmt.Errorf("no relay answers at %s: %w", cfg.HTTP.Listen, err)
			}
			text := strings.TrimSpace(string(answer))
			if code != http.StatusOK {
				return errors.New(text)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		})
	}
	return cmd
}
