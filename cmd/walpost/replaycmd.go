package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
)

func replayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "publishes rows of the table again",
		Long: `replay reads rows of the table, and publishes each row as run would, with the header walpost.origin:
replay. A row must match every filter. Without a filter, replay needs --all. It publishes only rows
that are still in the table.

replay publishes the events of one key in commit order if the server keeps commit times
(track_commit_timestamp), and otherwise in the order of source.order_column. With neither, it
refuses to start, unless you pass --unordered. Replayed events arrive after newer events of their
key.

replay can run alongside the relay, and changes neither the slot nor the checkpoint. It keeps its
progress in a file in the current folder, or in the file that --state names. If it is interrupted,
run the same command again, and it continues. It writes the file every second, so after an
interruption, it repeats at most the last second's events or, with --unordered, all events. It
removes the file at the end.

If an event can't be routed, or if Kafka refuses it, replay stops before the event, prints its id,
and exits with 3. With --skip-bad, replay reports such events, continues after them, and exits with
1 at the end. It writes no dead letters. See docs/backfill.md.`,
		Example: `  walpost replay --config walpost.yaml --since 2026-11-20T08:00:00Z --until 2026-11-20T09:00:00Z --dry-run
  walpost replay --config walpost.yaml --key customer-7 --rate 100
  walpost replay --config walpost.yaml --aggregate-type order --to-topic orders.rebuilt`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "publication", "name", "topic-regex", "topic-replacement", "create-topics", "compression",
		"window-events", "window-bytes", "checkpoint-store", "checkpoint-topic", "checkpoint-path", "shutdown-grace")
	flags, opts := cmd.Flags(), walpost.ReplayOptions{}
	flags.StringArrayVar(&opts.IDs, "id", nil, "publish the event with this `id`; repeatable")
	rows := rowFlags(cmd, "publish")
	flags.StringArrayVar(&opts.Types, "aggregate-type", nil, "publish events of this `type` (router.route.by.field); repeatable")
	flags.StringArrayVar(&opts.Keys, "key", nil, "publish events with this `key`; repeatable")
	all := flags.Bool("all", false, "publish every row")
	flags.StringVar(&opts.ToTopic, "to-topic", "", "publish everything to this `topic`")
	flags.Float64Var(&opts.Rate, "rate", 0, "the maximum `number` of events per second")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "only count the events")
	flags.BoolVar(&opts.SkipBad, "skip-bad", false, "continue after bad events")
	flags.StringVar(&opts.State, "state", "", "the `file` with the progress (default in the current folder)")
	unordered := flags.Bool("unordered", false, "publish even if the order is unknown")
	asJSON := flags.Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := rows(&opts.Since, &opts.Until, &opts.FirstID, &opts.LastID); err != nil {
			return err
		}
		filters := []string{"id", "first-id", "last-id", "since", "until", "aggregate-type", "key"}
		filtered := slices.ContainsFunc(filters, flags.Changed)
		switch {
		case !filtered && !*all:
			return usageError{errors.New("no rows are selected: pass a filter (--" + strings.Join(filters, ", --") + "), or --all")}
		case filtered && *all:
			return usageError{errors.New("--all: contradicts the other filters")}
		case math.IsNaN(opts.Rate) || opts.Rate < 0 || flags.Changed("rate") && opts.Rate == 0:
			return usageError{fmt.Errorf("--rate: must be above 0 (got %v)", opts.Rate)}
		}
		return load.work(cmd, func(c *fileConfig) { c.Unordered = *unordered }, func(ctx context.Context, cfg fileConfig) error {
			meter := progress.NewMeter(cmd.ErrOrStderr())
			opts.Say, opts.Progress = meter.Say, meter.Progress
			report, err := walpost.Replay(ctx, cfg.Config, opts)
			meter.End()
			if err != nil {
				return err
			}
			err = show.Print(cmd.OutOrStdout(), *asJSON, report, show.Replay(report))
			if err == nil && report.Bad > 0 {
				return exitError(exitFailed) // they were named
			}
			return err
		})
	}
	return cmd
}
