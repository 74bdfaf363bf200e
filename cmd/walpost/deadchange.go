package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
)

func deadRetryCommand() *cobra.Command {
	var filter deadFilter
	var opts walpost.RetryOptions
	var all, wait, asJSON bool
	cmd := &cobra.Command{
		Use:   "retry [TOKEN…]",
		Short: "delivers events again, once the cause is fixed",
		Long: `retry delivers dead events to their original topics. A dead letter contains either a record, which
retry sends unchanged, or a row, which retry routes with the current configuration. It sends the
events in their order, with the header walpost.origin: dead_letter, and marks each one in the dead
letter topic once the brokers have acknowledged it. After an interruption, the next retry repeats
only events that aren't marked. An event that is refused again stays dead, with the new error and
one more attempt, and retry exits with 1.

If the relay has already delivered newer events of the same keys, consumers get the retried events
after those. With --dry-run, retry only prints what it would do.

For parked events, retry asks the relay to deliver all parked events of their keys. The running
relay delivers them in order, before newer events of these keys. With --wait, retry waits until each
of them is delivered, or can't be because one is refused again.

retry delivers the events of the configured relay. With --relay, it delivers dead letters of another
relay with this relay's configuration, for example after name was changed in walpost.yaml. Only a
relay with the same name delivers parked events. walpost dead list --help lists the reasons.

With --dead-letter-topic, retry sends dead letters of consumers back to the topics and partitions of
their messages, with a new timestamp. Every consumer group of the topic gets them. With --to-topic,
only the groups of that topic do. retry leaves a letter dead if its topic or partition doesn't
exist, or if its message is older than --max-age (too_old): a group's inbox may have forgotten the
message, and would let it take effect again.

If several retries run at the same time, only the last one that was started continues. retry can run
alongside the relay.`,
		Example: `  walpost dead retry --config walpost.yaml --all --dry-run
  walpost dead retry --config walpost.yaml --reason too_large
  walpost dead retry --config walpost.yaml 0-16B3748-3-5f2a9c01
  walpost dead retry --brokers kafka:9092 --dead-letter-topic payments.dead --all`,
	}
	topics := deadConfig(cmd)
	filter.flags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "retry every open event")
	flags.BoolVar(&opts.DryRun, "dry-run", false, "only print what would be done")
	flags.StringVar(&opts.ToTopic, "to-topic", "", "deliver dead letters to this `topic`")
	flags.DurationVar(&opts.MaxAge, "max-age", badevents.DefaultMaxAge, "refuse a consumer's older messages without --to-topic")
	flags.BoolVar(&wait, "wait", false, "wait until parked events are delivered or refused")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch ways := len(args) > 0 || filter.given(cmd); {
		case !ways && !all:
			return usageError{errors.New("no events are selected: pass tokens, flags that select events, or --all")}
		case ways && all:
			return usageError{errors.New("--all cannot be combined with a token or a flag that selects events")}
		case opts.MaxAge <= 0:
			return usageError{fmt.Errorf("--max-age: must be more than 0s (got %s)", opts.MaxAge)}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter.state = "all" // what is done already is told, and left alone
		if err := filter.parse(cmd, args); err != nil {
			return err
		}
		if len(args) == 0 {
			filter.State = deadletter.Open
		}
		return topics.open(cmd, opts.ToTopic, func(ctx context.Context, topics *walpost.BadEvents, meter *progress.Meter) error {
			found, err := topics.Select(&filter.BadEventFilter)
			if err != nil {
				return err
			}
			var open []*walpost.BadEvent
			r := show.DeadRetry{Done: []show.BadEvent{}}
			for _, e := range found {
				if e.State == deadletter.Open {
					open = append(open, e)
				} else {
					r.Done = append(r.Done, show.BadEventOf(e))
				}
			}
			r.RetryReport, err = topics.Retry(ctx, open, opts)
			if err == nil && !opts.DryRun {
				r.Parked, err = topics.Release(ctx, open, wait)
			} else if err == nil {
				r.Parked = topics.WouldRelease(open)
			}
			meter.End()
			if err != nil && ctx.Err() != nil {
				err = errors.New("interrupted: every event that counts as delivered is marked. Run the same command again to continue with the other events")
			}
			err = errors.Join(show.Print(cmd.OutOrStdout(), asJSON, r, r.Text()), err)
			if err == nil && len(r.Refused)+r.Parked.Refused > 0 && !opts.DryRun {
				return exitError(exitFailed) // what was printed says why
			}
			return err
		})
	}
	return cmd
}

func deadDropCommand() *cobra.Command {
	var filter deadFilter
	var why string
	var asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drop [TOKEN…]",
		Short: "gives up events, with a reason",
		Long: `drop marks dead or parked events as given up: retry then ignores them, verify counts them
separately, and the cleanup may remove their rows. The dead letters stay in the topic. The mark
contains the --reason.

drop gives up events of the configured relay, or of --relay. walpost dead list --help lists the
reasons for --of-reason.

Only the running relay can drop a parked event. drop asks the relay, waits for the result, and
prints which events it has dropped. An event that the relay is already delivering isn't dropped. If
no relay answers within --timeout, drop exits with 1. The request stays in the topic, and the relay
carries it out when it runs. When the bad event of a key is dropped, the relay delivers the events
behind it, up to the next bad one.

With --dead-letter-topic, drop gives up dead letters of consumers.`,
		Example: `  walpost dead drop --config walpost.yaml --reason "a test of the shop" 0-16B3748-3-5f2a9c01
  walpost dead drop --config walpost.yaml --reason "INC-17: the shop has sent them again" --of-reason unroutable --until 2026-11-20T08:00:00Z`,
	}
	topics := deadConfig(cmd)
	filter.flags(cmd)
	cmd.Flags().StringVar(&why, "reason", "", "why nobody needs the events")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "wait this long for the relay; 0s: only send the request")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case timeout < 0:
			return usageError{fmt.Errorf("--timeout: must be at least 0s (got %s)", timeout)}
		case strings.TrimSpace(why) == "":
			return usageError{errors.New("drop needs a --reason: say why nobody needs the events")}
		case len(args) == 0 && !filter.given(cmd):
			return usageError{errors.New("no events are selected: pass tokens, or flags that select events")}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter.state = string(deadletter.Open)
		if err := filter.parse(cmd, args); err != nil {
			return err
		}
		return topics.open(cmd, "", func(ctx context.Context, topics *walpost.BadEvents, meter *progress.Meter) error {
			found, err := topics.Select(&filter.BadEventFilter)
			if err != nil {
				return err
			}
			d := show.DeadDrop{Events: len(found)}
			if d.Dead, err = topics.Drop(ctx, found, why); err == nil {
				d.Parked, err = topics.DropParked(ctx, found, why, timeout)
			}
			meter.End()
			if err != nil && ctx.Err() != nil {
				err = errors.New("interrupted: every event that counts as dropped is marked. Run the same command again to continue with the other events")
			}
			err = errors.Join(show.Print(cmd.OutOrStdout(), asJSON, d, d.Text()), err)
			if err == nil && d.Parked.Waiting > 0 && timeout > 0 {
				return fault.WithHint(errors.New("the relay has not dropped all events"),
					"walpost run with this name must hold the slot, and must not be halted (walpost status). It drops the events when it runs.")
			}
			return err
		})
	}
	return cmd
}
