package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/internal/badevents"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

func deadCommand() *cobra.Command {
	return groupCommand("dead", "lists, shows, retries and drops the events that could not be delivered",
		deadListCommand(), deadShowCommand(), deadRetryCommand(), deadDropCommand())
}

// deadConfig are the configuration flags of walpost dead. It needs no database.
func deadConfig(cmd *cobra.Command) loader {
	return configFlags(cmd, (*walpost.Config).ValidateKafka, "brokers", "table", "shard", "topic-regex", "topic-replacement")
}

// open reads the topics, and works with them. toTopic is where a retry is to deliver events, or "".
func (load loader) open(cmd *cobra.Command, toTopic string, work func(ctx context.Context, topics *walpost.BadEvents, meter *progress.Meter) error) error {
	return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
		cfg.Version = buildInfo().version
		meter := progress.NewMeter(cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr()))
		defer meter.End()
		topics, err := walpost.OpenBadEvents(ctx, cfg.Config, toTopic, meter.Say, meter.Progress)
		if err != nil {
			return err
		}
		defer topics.Close()
		meter.End()
		if topics.Dead.Missing {
			meter.Say(fmt.Sprintf("topic %s does not exist: nothing is dead", topics.Dead.Topic))
		}
		if f := &topics.Dead.Fold; f.Foreign+f.Damaged > 0 {
			text := fmt.Sprintf("topic %s has %d records that are not walpost's, and %d that cannot be read", topics.Dead.Topic, f.Foreign, f.Damaged)
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

func (f *deadFilter) flags(cmd *cobra.Command) {
	var reasons []string
	for _, r := range append(slices.Clone(cdc.Reasons), deadletter.Behind) {
		reasons = append(reasons, string(r))
	}
	flags := cmd.Flags()
	flags.StringVar(&f.reason, f.reasonFlag(cmd), "", "only events with this `reason`: "+strings.Join(reasons, ", "))
	flags.Lookup("table").Usage = "only events of this `table`; several are separated by commas"
	flags.StringVar(&f.Topic, "topic", "", "only events that were meant for this `topic`")
	flags.StringVar(&f.key, "key", "", "only events with this `key`")
	flags.StringVar(&f.since, "since", "", "only events that were committed from this `time` on, such as 2026-11-20T08:00:00Z")
	flags.StringVar(&f.until, "until", "", "only events that were committed before this `time`")
	offer(cmd, f.reasonFlag(cmd), reasons...)
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
	return slices.ContainsFunc([]string{f.reasonFlag(cmd), "table", "topic", "key", "since", "until"}, func(name string) bool {
		return cmd.Flags().Changed(name)
	})
}

// parse reads the flags, and the tokens of the command line.
func (f *deadFilter) parse(cmd *cobra.Command, tokens []string) (err error) {
	f.Tokens, f.Reason, f.State = tokens, cdc.Reason(f.reason), deadletter.State(f.state)
	if cmd.Flags().Changed("key") {
		f.Key = &f.key
	}
	if table := cmd.Flag("table"); table.Changed {
		for _, name := range strings.Split(table.Value.String(), ",") {
			t, err := pg.ParseTable(strings.TrimSpace(name))
			if err != nil {
				return usageError{fmt.Errorf("--table: %w", err)}
			}
			f.Tables = append(f.Tables, t.Schema+"."+t.Name) // as letters have it
		}
	}
	all := append(slices.Clone(cdc.Reasons), deadletter.Behind)
	known := f.reason == "" || slices.Contains(all, f.Reason)
	switch f.State {
	case "all":
		f.State = ""
	case deadletter.Open, deadletter.Retried, deadletter.Released, deadletter.Dropped:
	default:
		return usageError{fmt.Errorf("--state: must be one of %s (got %q)", strings.Join(deadStates, ", "), f.state)}
	}
	if !known {
		return usageError{fmt.Errorf("--%s: must be one of %v (got %q)", f.reasonFlag(cmd), all, f.reason)}
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
		Short: "prints the events that could not be delivered, one line each",
		Long: `list reads the dead letter topic and the parked event topic, and prints each event on one line: the token, the state, the reason,
the table, the event id, the key, the topic that it was meant for, the number of attempts, the time of the
commit, and the error. Without --state it prints the open events: those that are not retried,
released or dropped. It needs no database, and may run beside run.`,
		Example: `  walpost dead list --config walpost.yaml
  walpost dead list --config walpost.yaml --reason too_large --topic outbox.event.order --json`,
		Args: noArguments,
	}
	load := deadConfig(cmd)
	filter.flags(cmd)
	cmd.Flags().StringVar(&filter.state, "state", string(deadletter.Open), "only events in this `state`: "+strings.Join(deadStates, ", "))
	offer(cmd, "state", deadStates...)
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := filter.parse(cmd, nil); err != nil {
			return err
		}
		return load.open(cmd, "", func(_ context.Context, topics *walpost.BadEvents, _ *progress.Meter) error {
			found, err := topics.Select(&filter.BadEventFilter)
			if err != nil {
				return err
			}
			if *asJSON {
				list := struct {
					Count  int           `json:"count"`
					Events []badEventRow `json:"events"`
				}{len(found), []badEventRow{}}
				for _, e := range found {
					list.Events = append(list.Events, badEventRowOf(e))
				}
				return printJSON(cmd.OutOrStdout(), list, "")
			}
			return printDead(cmd.OutOrStdout(), found)
		})
	}
	return cmd
}

func printDead(w io.Writer, found []*walpost.BadEvent) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(found) > 0 {
		fmt.Fprintln(out, "TOKEN\tSTATE\tREASON\tTABLE\tID\tKEY\tTOPIC\tATTEMPTS\tCOMMITTED\tERROR")
	}
	for _, e := range found {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", e.Token, stateWord(e), e.Reason, dash(e.Table), dash(e.ID), keyText(&e.Letter),
			dash(e.Letter.Topic), e.Attempts, e.CommitTime.Format(time.RFC3339), oneLine(e.Error))
	}
	fmt.Fprintf(out, "events: %d\n", len(found))
	return out.Flush()
}

// stateWord is the state of an event for a person.
func stateWord(e *walpost.BadEvent) string {
	switch {
	case e.State != deadletter.Open:
		return string(e.State)
	case e.Asked:
		return "releasing"
	}
	return string(e.Where)
}

// dash is a word for a terminal, and "-" for none.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return shown([]byte(text))
}

func keyText(l *deadletter.Letter) string {
	if !l.KeyKnown {
		return "(unknown)"
	}
	return shown(l.Key)
}

// A badEventRow is an event for programs. A key that is not UTF-8 is in base64, under another name.
type badEventRow struct {
	Token      string          `json:"token"`
	Where      badevents.Where `json:"where"`
	State      string          `json:"state"`
	Asked      bool            `json:"release_asked,omitempty"`
	Why        string          `json:"why,omitempty"`
	Reason     cdc.Reason      `json:"reason"`
	Error      string          `json:"error"`
	Table      string          `json:"table"`
	EventID    string          `json:"event_id"`
	Key        *string         `json:"key"`
	KeyB64     *string         `json:"key_base64,omitempty"`
	KeyKnown   bool            `json:"key_known"`
	Topic      string          `json:"topic"`
	Attempts   int             `json:"attempts"`
	CommitTime time.Time       `json:"commit_time"`
	CommitLSN  string          `json:"commit_lsn,omitempty"`
	Version    string          `json:"version"`
	Partition  int32           `json:"letter_partition"`
	Offset     int64           `json:"letter_offset"`
}

func badEventRowOf(e *walpost.BadEvent) badEventRow {
	row := badEventRow{
		Token: e.Token, Where: e.Where, State: string(e.State), Asked: e.Asked, Why: e.Why, Reason: e.Reason, Error: e.Error, Table: e.Table, EventID: e.ID, KeyKnown: e.KeyKnown,
		Topic: e.Letter.Topic, Attempts: e.Attempts, CommitTime: e.CommitTime, Version: e.Version, Partition: e.Newest.Partition, Offset: e.Newest.Offset,
	}
	row.Key, row.KeyB64 = textOrBase64(e.Key)
	if e.Commit != 0 {
		row.CommitLSN = e.Commit.String()
	}
	return row
}

func deadShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show TOKEN",
		Short: "prints one event that could not be delivered: headers, payload, and what to do",
		Long: `show prints what the topics contain about one event: where it was meant to go, its headers and its
payload, each letter and what became of it, and the command that is next. A payload that is not text is
printed in hexadecimal digits. It needs no database, and may run beside run.`,
		Example: `  walpost dead show --config walpost.yaml 0-16B3748-3-5f2a9c01`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("dead show takes the token of one event")}
			}
			return nil
		},
	}
	load := deadConfig(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return load.open(cmd, "", func(ctx context.Context, topics *walpost.BadEvents, _ *progress.Meter) error {
			found, err := topics.Select(&walpost.BadEventFilter{Tokens: args})
			if err != nil {
				return err
			}
			d := deadDetail{badEventRow: badEventRowOf(found[0]), Letters: []deadStep{}, Headers: []headerJSON{}}
			steps, value, headers, err := topics.History(ctx, found[0])
			if err != nil {
				return err
			}
			d.add(steps, value, headers)
			if *asJSON {
				return printJSON(cmd.OutOrStdout(), d, "")
			}
			return printDeadDetail(cmd.OutOrStdout(), found[0], &d, value)
		})
	}
	return cmd
}

// A deadDetail is all that is known of an event, for programs.
type deadDetail struct {
	badEventRow
	Form     deadletter.Form `json:"form"`
	Letters  []deadStep      `json:"history"`
	Headers  []headerJSON    `json:"headers"`
	Value    *string         `json:"value"`
	ValueB64 *string         `json:"value_base64,omitempty"`
}

// A deadStep is a letter or a mark.
type deadStep struct {
	Partition int32      `json:"partition"`
	Offset    int64      `json:"offset"`
	What      string     `json:"what"` // letter, retried, dropped
	Attempts  int        `json:"attempts,omitempty"`
	Reason    cdc.Reason `json:"reason,omitempty"`
	Error     string     `json:"error,omitempty"`
	Version   string     `json:"version,omitempty"`
	Why       string     `json:"why,omitempty"`
	Time      *time.Time `json:"time,omitempty"` // of a mark
}

func (d *deadDetail) add(steps []badevents.Step, value []byte, headers []cdc.Header) {
	for _, s := range steps {
		step := deadStep{Partition: s.At.Partition, Offset: s.At.Offset, What: "letter"}
		if l := s.Letter; l != nil {
			step.Attempts, step.Reason, step.Error, step.Version = l.Attempts, l.Reason, l.Error, l.Version
			d.Form = s.Form
		} else {
			step.What, step.Why, step.Time = string(s.Mark.State), s.Mark.Why, &s.Mark.Time
		}
		d.Letters = append(d.Letters, step)
	}
	d.Value, d.ValueB64 = textOrBase64(value)
	for _, h := range headers {
		text, b64 := textOrBase64(h.Value)
		d.Headers = append(d.Headers, headerJSON{Key: h.Key, Value: text, ValueB64: b64})
	}
}

// deadMeaning says what the state of an event means, and whether a retry or a drop is next.
func deadMeaning(e *walpost.BadEvent) (text string, open bool) {
	switch {
	case e.State == deadletter.Retried:
		return "a retry has delivered the event", false
	case e.State == deadletter.Released:
		return "the relay has delivered the event after a retry", false
	case e.State == deadletter.Dropped:
		return "a person has given the event up: " + oneLine(e.Why), false
	case e.Asked:
		return "a retry has asked the relay to deliver all parked events of the key; start walpost run, if it does not run", false
	case e.Where == badevents.InParking:
		return "the event waits, and with it all later events of its key", true
	}
	return "the event is not delivered", true
}

func printDeadDetail(w io.Writer, e *walpost.BadEvent, d *deadDetail, value []byte) error {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-10s %s\n", name, text) }
	line("token", e.Token)
	meaning, open := deadMeaning(e)
	line("state", stateWord(e)+": "+meaning)
	if open {
		line("to retry", "repair the cause, then run "+fault.Command("dead", "retry", e.Token))
		line("to drop", fault.Command("dead", "drop", "--reason REASON", e.Token))
	}
	place := "read from the table"
	if e.Commit != 0 {
		place = fmt.Sprintf("commit %s, row %d", e.Commit, e.Row)
	}
	line("event", fmt.Sprintf("id %s of %s, committed at %s (%s)", dash(e.ID), dash(e.Table), e.CommitTime.Format(time.RFC3339Nano), place))
	line("reason", fmt.Sprintf("%s: %s", e.Reason, oneLine(e.Error)))
	for _, s := range d.Letters {
		text := fmt.Sprintf("partition %d, offset %d: ", s.Partition, s.Offset)
		if s.Time == nil {
			text += fmt.Sprintf("attempt %d failed, %s: %s", s.Attempts, s.Reason, oneLine(s.Error))
		} else {
			text += strings.TrimSuffix(fmt.Sprintf("%s at %s: %s", s.What, s.Time.Format(time.RFC3339), oneLine(s.Why)), ": ")
		}
		line("history", text)
	}
	topic := dash(e.Letter.Topic)
	if e.Partition >= 0 {
		topic += fmt.Sprintf(", partition %d", e.Partition)
	}
	line("topic", topic)
	line("key", keyText(&e.Letter))
	for _, h := range d.Headers {
		text := shown(nil)
		switch {
		case h.Value != nil:
			text = shown([]byte(*h.Value))
		case h.ValueB64 != nil:
			text = "(base64) " + *h.ValueB64
		}
		line("header", shown([]byte(h.Key))+": "+text)
	}
	name, text := "value", shown(value)
	if d.Form == deadletter.FormRow {
		name = "row"
	}
	if json.Valid(value) {
		text = string(value)
	}
	line(name, text)
	_, err := io.WriteString(w, b.String())
	return err
}
