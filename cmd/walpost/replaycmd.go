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
		Short: "publishes rows of the table once more",
		Long: `replay reads rows of the table, and publishes each row as run would, with the header walpost.origin:
replay. The filters select the rows: a row must match every filter. Without a filter, replay needs
--all. replay publishes only rows that are still in the table.

replay publishes the events of one key in the order of their commits, if the server keeps commit times
(track_commit_timestamp), and otherwise in the order of source.order_column. If neither is available,
replay refuses to start, unless you pass --unordered. Replayed events arrive after newer events of
their key.

replay can run while the relay runs. It changes neither the slot nor the checkpoint. replay keeps its
progress in a file in the current folder, or in the file that --state names. If replay is interrupted,
run the same command again, and it continues. replay writes the file every second, so it repeats at
most the events of the last second. It removes the file at the end.

If an event cannot be routed, or if Kafka refuses it, replay stops before the event, prints the id of
the event, and exits with 3. With --skip-bad, replay reports such events, continues after them, and
exits with 1 at the end. replay writes no dead letters. See docs/replay.md.`,
		Example: `  walpost replay --config walpost.yaml --since 2026-11-20T08:00:00Z --until 2026-11-20T09:00:00Z --dry-run
  walpost replay --config walpost.yaml --key customer-7 --rate 100
  walpost replay --config walpost.yaml --aggregate-type order --to-topic orders.rebuilt`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "publication", "name", "topic-regex", "topic-replacement", "create-topics", "compression",
		"window-events", "window-bytes", "checkpoint-store", "checkpoint-topic", "checkpoint-path", "shutdown-grace")
	flags, opts := cmd.Flags(), walpost.ReplayOptions{}
	flags.StringArrayVar(&opts.IDs, "id", nil, "publish the event with this `id`; may be repeated")
	rows := rowFlags(cmd, "publish")
	flags.StringArrayVar(&opts.Types, "aggregate-type", nil, "publish events of this `type` (the column of router.route.by.field); may be repeated")
	flags.StringArrayVar(&opts.Keys, "key", nil, "publish events with this `key`; may be repeated")
	all := flags.Bool("all", false, "publish every row of the table")
	flags.StringVar(&opts.ToTopic, "to-topic", "", "publish to this `topic` instead of the topic of each event")
	flags.Float64Var(&opts.Rate, "rate", 0, "publish at most this `number` of events per second (default: no limit)")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "count the events, their topics and keys, and publish nothing")
	flags.BoolVar(&opts.SkipBad, "skip-bad", false, "continue after events that cannot be routed, or that Kafka refuses")
	flags.StringVar(&opts.State, "state", "", "the `file` that keeps the progress of the replay (default: a name built from the filters, in the current folder)")
	unordered := flags.Bool("unordered", false, "if the order of the rows is unknown, publish them in any order; after an interruption, replay then begins the table again")
	asJSON := flags.Bool("json", false, "print one JSON object")
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
