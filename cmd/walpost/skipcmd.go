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
		Short: "skips the event that caused a halt, by its token",
		Long: `skip asks run to skip one event that can't be routed, or that Kafka refuses. The token of the event
is in the hint of the halt, and in /api/status. It stands for exactly this event: all other events
of its transaction are delivered.

run writes the event to delivery.dead_letter_topic, and creates that topic if it's missing. With
--discard, run doesn't write the event anywhere. --discard needs a --reason, which is logged and
kept with the request.

skip writes a request to the checkpoint store, and needs no running relay. run reads the request
when it starts, so restart a relay that is still halted. run logs the skipped event, and removes the
request once it has confirmed a position after the event. With checkpoint.store: file, stop the
relay before you run skip, because the relay holds the file.

skip exits with 2 if the token doesn't belong to a halt of this relay.`,
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
		"dsn", "table", "brokers", "slot", "name", "checkpoint-store", "checkpoint-topic", "checkpoint-path", "log-level", "log-format")
	cmd.Flags().BoolVar(&opts.Discard, "discard", false, "give up the event, without a dead letter")
	cmd.Flags().StringVar(&opts.Why, "reason", "", "why nobody needs the event")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			cfg.Logger = newLogger(cfg.Log, cmd.ErrOrStderr())
			halt, err := walpost.Skip(ctx, cfg.Config, args[0], opts)
			if err != nil {
				return err
			}
			fate := "writes the event to topic " + cfg.Delivery.DeadLetterTopic
			if opts.Discard {
				fate = "does not write the event to any topic"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The next start of walpost run skips %s, and no other event. walpost run %s.\nIf the halted walpost still runs, stop it first, or wait until halt_linger is over.\nThe halt was: %s\n", halt.Event(), fate, show.OneLine(halt.Error))
			return err
		})
	}
	return cmd
}
