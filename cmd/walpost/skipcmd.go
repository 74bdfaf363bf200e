package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
)

func skipCommand() *cobra.Command {
	var opts walpost.SkipOptions
	cmd := &cobra.Command{
		Use:   "skip TOKEN",
		Short: "passes over the one event that a halt names with its token",
		Long: `skip asks run to pass over one event that cannot be routed, or that Kafka refuses. The halt prints the
token of the event in its hint, and /api/status shows it. The token names exactly this event. All
other events of its transaction are delivered.

run writes the event to the topic delivery.dead_letter_topic, and makes the topic if it is missing. With
--discard it writes the event nowhere. --discard needs a --reason, which is kept with the request and
logged.

skip writes the request to the checkpoint store. It needs no running relay. run reads the request when
it starts, so restart a relay that is still halted. run logs the event that it passes over, and
removes the request after it has confirmed a position after the event. With checkpoint.store: file
the relay must have ended, because it holds the file.

skip exits with 2 if no halt of this relay gave the token.`,
		Example: `  walpost skip --config walpost.yaml 0-16B3748-3-5f2a9c01
  walpost skip --config walpost.yaml --discard --reason "a test of the shop" 0-16B3748-3-5f2a9c01`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("skip takes the token of one halt")}
			}
			if opts.Discard != (strings.TrimSpace(opts.Why) != "") {
				return usageError{errors.New("--discard and --reason go together: say why nobody needs the event")}
			}
			return nil
		},
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "slot", "shard", "name", "checkpoint-store", "checkpoint-topic", "checkpoint-path", "log-level", "log-format")
	cmd.Flags().BoolVar(&opts.Discard, "discard", false, "give the event up: write it nowhere")
	cmd.Flags().StringVar(&opts.Why, "reason", "", "why the event is given up")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			cfg.Logger = newLogger(cfg.Log, cmd.ErrOrStderr())
			halt, err := walpost.Skip(ctx, cfg.Config, args[0], opts)
			if err != nil {
				return err
			}
			fate := "writes it to topic " + cfg.Delivery.DeadLetterTopic
			if opts.Discard {
				fate = "writes it nowhere"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The next start of walpost run passes over %s, and over nothing else. It %s.\nIf the halted walpost still runs, stop it first, or wait until halt_linger is over.\nThe halt was: %s\n", halt.Event(), fate, show.OneLine(halt.Error))
			return err
		})
	}
	return cmd
}
