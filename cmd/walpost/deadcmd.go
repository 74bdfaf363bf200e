package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/lib/pgname"
)

func deadCommand() *cobra.Command {
	return groupCommand("dead", "lists, shows, retries and drops events that couldn't be delivered",
		deadListCommand(), deadShowCommand(), deadRetryCommand(), deadDropCommand())
}

// deadTopics are the topics that walpost dead works with.
type deadTopics struct {
	load      loader
	consumers string // the dead letter topic of consumers, if its flag is given
}

// deadConfig adds the configuration flags of walpost dead. It needs no database.
func deadConfig(cmd *cobra.Command) *deadTopics {
	d := new(deadTopics)
	d.load = configFlags(cmd, func(c *walpost.Config) walpost.Problems {
		if ofConsumers(cmd) {
			return c.ValidateBrokers()
		}
		return c.ValidateKafka()
	}, "dsn", "slot", "name", "brokers", "table", "topic-regex", "topic-replacement")
	cmd.Flags().StringVar(&d.consumers, deadTopicFlag, "", "read a consumer's dead letter `topic` instead of the relay's")
	return d
}

const deadTopicFlag = "dead-letter-topic"

// ofConsumers reports whether the command works with the dead letters of consumers. An empty name is an error, and not the relay's topic.
func ofConsumers(cmd *cobra.Command) bool { return cmd.Flags().Changed(deadTopicFlag) }

// open reads the topics, and works with them. toTopic is where a retry is to deliver events, or "".
func (d *deadTopics) open(cmd *cobra.Command, toTopic string, work func(ctx context.Context, topics *walpost.BadEvents, meter *progress.Meter) error) error {
	return d.load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
		cfg.Version = buildInfo().version
		meter := progress.NewMeter(cmd.ErrOrStderr())
		defer meter.End()
		var topics *walpost.BadEvents
		var err error
		if ofConsumers(cmd) {
			topics, err = walpost.OpenConsumed(ctx, cfg.Config, d.consumers, toTopic, meter.Say, meter.Progress)
		} else {
			topics, err = walpost.OpenBadEvents(ctx, cfg.Config, toTopic, meter.Say, meter.Progress)
		}
		if err != nil {
			return err
		}
		defer topics.Close()
		meter.End()
		if topics.Dead.Missing {
			meter.Say(fmt.Sprintf("topic %s does not exist: there are no dead events", topics.Dead.Topic))
		}
		if f := &topics.Dead.Fold; f.Foreign+f.Damaged > 0 {
			whose := "walpost's"
			if ofConsumers(cmd) {
				whose = "dead letters of consumers"
			}
			text := fmt.Sprintf("topic %s has %d records that are not %s, and %d that cannot be read", topics.Dead.Topic, f.Foreign, whose, f.Damaged)
			if f.Problem != nil {
				text += fmt.Sprintf(" (%v)", f.Problem)
			}
			meter.Say(text)
		}
		return work(ctx, topics, meter)
	})
}

// A deadFilter has the flags that select events.
type deadFilter struct {
	walpost.BadEventFilter
	state, reason, key, since, until string
}

var deadStates = []string{string(deadletter.Open), string(deadletter.Retried), string(deadletter.Released), string(deadletter.Dropped), "all"}

// deadReasons are the reasons of a relay, or those of consumers.
func deadReasons(consumers bool) (reasons []string) {
	if consumers {
		return []string{"attempts", "permanent", "missing_id"}
	}
	for _, r := range append(slices.Clone(cdc.Reasons), deadletter.Behind) {
		reasons = append(reasons, string(r))
	}
	return reasons
}

func (f *deadFilter) flags(cmd *cobra.Command) {
	flags, relay, consumers := cmd.Flags(), deadReasons(false), deadReasons(true)
	usage := "only this `reason`"
	if cmd.Name() == "list" {
		usage += ": " + strings.Join(relay, ", ") + "; of consumers: " + strings.Join(consumers, ", ")
	}
	flags.StringVar(&f.reason, f.reasonFlag(cmd), "", usage)
	flags.Lookup("table").Usage = "only events of this `table`; separate several tables with commas"
	flags.StringVar(&f.Relay, "relay", "", "the relay's `name` (default the configured one)")
	flags.StringVar(&f.Group, "group", "", "only this consumer `group`")
	flags.StringVar(&f.Topic, "topic", "", "only events for this `topic`")
	flags.StringVar(&f.key, "key", "", "only this `key`")
	flags.StringVar(&f.since, "since", "", "only events committed since this `time`")
	flags.StringVar(&f.until, "until", "", "only events committed before this `time`")
	offer(cmd, f.reasonFlag(cmd), append(relay, consumers...)...)
}

// reasonFlag is the flag of the reason why an event is bad. drop has its own --reason.
func (*deadFilter) reasonFlag(cmd *cobra.Command) string {
	if cmd.Name() == "drop" {
		return "of-reason"
	}
	return "reason"
}

// given reports whether a flag selects events.
func (f *deadFilter) given(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{f.reasonFlag(cmd), "relay", "table", "group", "topic", "key", "since", "until"}, func(name string) bool {
		return cmd.Flags().Changed(name)
	})
}

// parse reads the flags, and the tokens of the command line.
func (f *deadFilter) parse(cmd *cobra.Command, tokens []string) (err error) {
	f.Tokens, f.Reason, f.State = tokens, cdc.Reason(f.reason), deadletter.State(f.state)
	consumers := ofConsumers(cmd)
	for name, of := range map[string]bool{"relay": false, "table": false, "group": true, "max-age": true} {
		switch {
		case of == consumers || !cmd.Flags().Changed(name):
		case consumers:
			return usageError{fmt.Errorf("--%s: dead letters of consumers (--%s) have none", name, deadTopicFlag)}
		default:
			return usageError{fmt.Errorf("--%s: only dead letters of consumers have one: pass their topic with --%s", name, deadTopicFlag)}
		}
	}
	if cmd.Flags().Changed("key") {
		f.Key = &f.key
	}
	if table := cmd.Flag("table"); table.Changed {
		for _, name := range strings.Split(table.Value.String(), ",") {
			t, err := pgname.ParseTable(strings.TrimSpace(name))
			if err != nil {
				return usageError{fmt.Errorf("--table: %w", err)}
			}
			f.Tables = append(f.Tables, t.Schema+"."+t.Name) // as letters have it
		}
	}
	switch f.State {
	case "all":
		f.State = ""
	case deadletter.Open, deadletter.Retried, deadletter.Released, deadletter.Dropped:
	default:
		return usageError{fmt.Errorf("--state: must be one of %s (got %q)", strings.Join(deadStates, ", "), f.state)}
	}
	if all := deadReasons(consumers); f.reason != "" && !slices.Contains(all, f.reason) {
		return usageError{fmt.Errorf("--%s: must be one of %s (got %q)", f.reasonFlag(cmd), strings.Join(all, ", "), f.reason)}
	}
	if f.Since, err = timeFlag("since", f.since); err == nil {
		f.Until, err = timeFlag("until", f.until)
	}
	return err
}

// timeFlag reads a time. The zero time is that of no text.
func timeFlag(flag, text string) (at time.Time, err error) {
	if text == "" {
		return at, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err != nil {
		err = usageError{fmt.Errorf("--%s: must be a time such as 2026-11-20T08:00:00Z (got %q)", flag, text)}
	}
	return at, err
}

func deadListCommand() *cobra.Command {
	var filter deadFilter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "prints the events that couldn't be delivered, one line each",
		Long: `list reads the topics of dead letters and parked events, and prints one line for each event: the
token, the state, the reason, the relay, the table, the event id, the key, the original topic, the
number of attempts, the commit time and the error. Without --state, it prints the open events, which
haven't been retried, released or dropped. list doesn't connect to the database, and can run
alongside the relay.

Relays can share the topics. list prints the events of the configured relay, and reports on standard
error how many events other relays have. --relay lists those.

With --dead-letter-topic, list prints the dead letters of consumers (Go package inbox/consumer)
instead, with their groups. It then needs only the brokers.`,
		Example: `  walpost dead list --config walpost.yaml
  walpost dead list --brokers kafka:9092 --dead-letter-topic payments.dead
  walpost dead list --config walpost.yaml --reason too_large --topic outbox.event.order --json`,
		Args: noArguments,
	}
	topics := deadConfig(cmd)
	filter.flags(cmd)
	cmd.Flags().StringVar(&filter.state, "state", string(deadletter.Open), "only this `state`: "+strings.Join(deadStates, ", "))
	offer(cmd, "state", deadStates...)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := filter.parse(cmd, nil); err != nil {
			return err
		}
		return topics.open(cmd, "", func(_ context.Context, topics *walpost.BadEvents, _ *progress.Meter) error {
			found, err := topics.Select(&filter.BadEventFilter)
			if err != nil {
				return err
			}
			list := struct {
				Count  int             `json:"count"`
				Events []show.BadEvent `json:"events"`
			}{len(found), []show.BadEvent{}}
			for _, e := range found {
				list.Events = append(list.Events, show.BadEventOf(e))
			}
			return show.Print(cmd.OutOrStdout(), *asJSON, list, show.DeadList(found))
		})
	}
	return cmd
}

func deadShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show TOKEN",
		Short: "prints one event: headers, payload, and what to do",
		Long: `show prints one dead or parked event: its original topic, its headers and payload, its relay, the
history of its letters, and the next command. It prints a payload that isn't text as hexadecimal
digits. show doesn't connect to the database, and can run alongside the relay.`,
		Example: `  walpost dead show --config walpost.yaml 0-16B3748-3-5f2a9c01`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("dead show takes the token of one event")}
			}
			return nil
		},
	}
	topics := deadConfig(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return topics.open(cmd, "", func(ctx context.Context, topics *walpost.BadEvents, _ *progress.Meter) error {
			found, err := topics.Select(&walpost.BadEventFilter{Tokens: args, All: true})
			if err != nil {
				return err
			}
			steps, value, headers, err := topics.History(ctx, found[0])
			if err != nil {
				return err
			}
			d := show.DeadDetailOf(found[0], steps, value, headers)
			return show.Print(cmd.OutOrStdout(), *asJSON, d, show.Dead(found[0], d, value))
		})
	}
	return cmd
}
