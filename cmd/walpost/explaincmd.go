package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/walpost/walpost"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "prints the record that a row gives, or why it gives none",
		Long: `explain routes rows of the table as run would. For each row it prints the topic, partition, key,
headers, value and timestamp of the record. If the row gives no record, it prints the column, the
option and what to do. It writes nothing to Postgres or Kafka. It asks Kafka for the topic's
number of partitions and max.message.bytes. With --partitions, explain does not ask. If Kafka does not
answer, explain cannot tell the partition of a key, and does not check the size of the record. It
prints everything else.

A row that is given with --row need not exist, but its table must exist. explain reads each value by
the type of its column. A column that is left out has its default.
An identity column that is left out has the number 1, and a generated column is NULL.

It exits with 1 if a row is not found, gives no record, or gives a record that Kafka would refuse.`,
		Example: `  walpost explain --config walpost.yaml --id 018f4e2a-9a3b-7c1d-8e2f-1a2b3c4d5e6f
  walpost explain --config walpost.yaml --last 3 --json
  walpost explain --config walpost.yaml --partitions 12 --row '{"aggregate_type": "order", "aggregate_id": "4711", "event_type": "OrderPlaced"}'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.Flags().Changed("json") {
				return rowByJSON
			}
			return noArguments(cmd, args)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if value, ok := errors.AsType[*pflag.InvalidValueError](err); ok && value.GetFlag().Name == "json" {
			return rowByJSON
		}
		return usageError{err}
	})
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase,
		"dsn", "table", "brokers", "publication", "shard", "topic-regex", "topic-replacement", "compression")
	flags := cmd.Flags()
	id := flags.String("id", "", "the row with this event `id`")
	last := flags.Int("last", 0, "explain this `number` of rows, newest first")
	row := flags.String("row", "", "a row as a `JSON` object with the names of columns as keys; - reads it from standard input")
	partitions := flags.Int("partitions", 0, "assume this `number` of partitions, and do not ask Kafka")
	asJSON := flags.Bool("json", false, "print JSON, one object in each line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts := walpost.ExplainOptions{ID: *id, Last: *last, Partitions: *partitions}
		ways := 0
		for _, way := range []string{"id", "last", "row"} {
			if flags.Changed(way) {
				ways++
			}
		}
		switch {
		case ways != 1:
			return usageError{errors.New("say which row: one of --id, --last and --row")}
		case flags.Changed("last") && (*last < 1 || *last > 1_000_000):
			return usageError{fmt.Errorf("--last: must be from 1 to 1000000 (got %d)", *last)}
		case *partitions < 0 || flags.Changed("partitions") && *partitions < 1 || *partitions > 1<<20:
			return usageError{fmt.Errorf("--partitions: must be from 1 to %d (got %d)", 1<<20, *partitions)}
		}
		if flags.Changed("row") {
			if opts.JSON = []byte(*row); *row == "-" {
				var err error
				if opts.JSON, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return fmt.Errorf("read the row from standard input: %w", err)
				}
			}
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			out, none, n := cmd.OutOrStdout(), false, 0
			err := walpost.Explain(ctx, cfg.Config, opts, func(x *walpost.Explanation) error {
				none = none || x.Problem != ""
				if n++; *asJSON {
					return printJSON(out, explanationView(x), "")
				}
				if n > 1 {
					fmt.Fprintln(out)
				}
				return printExplanation(out, x)
			})
			if err == nil && none {
				return exitError(exitFailed) // what was printed says why
			}
			return err
		})
	}
	return cmd
}

// rowByJSON refuses a row after --json, which took one before the first release.
var rowByJSON = usageError{errors.New("explain: --json prints JSON and takes no value: pass the row with --row")}

func printExplanation(w io.Writer, x *walpost.Explanation) error {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-10s %s\n", name, text) }
	line("row", fmt.Sprintf("%s, event id %s", x.Table, shown([]byte(x.EventID))))
	if x.Problem != "" {
		what := "no record: "
		if x.Record != nil {
			what = "would not be delivered: "
		}
		line("PROBLEM", what+oneLine(x.Problem))
		if x.Column != "" {
			line("column", x.Column)
		}
		if x.Option != "" {
			line("option", x.Option)
		}
		if x.Hint != "" {
			line("fix", oneLine(x.Hint))
		}
	}
	if rec := x.Record; rec != nil {
		line("topic", shown([]byte(rec.Topic)))
		if x.Partition >= 0 {
			line("partition", fmt.Sprintf("%d (%s)", x.Partition, x.PartitionFrom))
		} else {
			line("partition", x.PartitionFrom)
		}
		line("key", shown(rec.Key))
		line("timestamp", fmt.Sprintf("%s (%s)", rec.Time.UTC().Format(time.RFC3339Nano), x.TimeFrom))
		for _, h := range rec.Headers {
			line("header", shown([]byte(h.Key))+": "+shown(h.Value))
		}
		line("value", shown(rec.Value))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shown is bytes for a terminal, so that nothing is mistaken for something else: text as it is, text with characters that do
// not print, or that could be taken for one of the following, quoted as Go does; (null), (empty), and hexadecimal digits.
func shown(b []byte) string {
	switch {
	case b == nil:
		return "(null)"
	case len(b) == 0:
		return "(empty)"
	case !utf8.Valid(b):
		return fmt.Sprintf("(hex, %d bytes) %s", len(b), hex.EncodeToString(b))
	}
	s := string(b)
	plain := s[0] != '(' && s[0] != ' ' && s[len(s)-1] != ' '
	for _, r := range s {
		plain = plain && strconv.IsPrint(r)
	}
	if plain {
		return s
	}
	return "(quoted) " + strconv.Quote(s)
}

// explanationJSON is an Explanation for programs. A value that is not UTF-8 is in base64, under another name.
type explanationJSON struct {
	Table   string      `json:"table"`
	EventID string      `json:"event_id"`
	Problem string      `json:"problem,omitempty"`
	Column  string      `json:"column,omitempty"`
	Option  string      `json:"option,omitempty"`
	Fix     string      `json:"fix,omitempty"`
	Record  *recordJSON `json:"record"`
}

type recordJSON struct {
	Topic         string       `json:"topic"`
	Partition     *int32       `json:"partition"`
	PartitionFrom string       `json:"partition_from"`
	Timestamp     time.Time    `json:"timestamp"`
	TimestampFrom string       `json:"timestamp_from"`
	Key           *string      `json:"key"`
	KeyB64        *string      `json:"key_base64,omitempty"`
	Headers       []headerJSON `json:"headers"`
	Value         *string      `json:"value"`
	ValueB64      *string      `json:"value_base64,omitempty"`
}

type headerJSON struct {
	Key      string  `json:"key"`
	Value    *string `json:"value"`
	ValueB64 *string `json:"value_base64,omitempty"`
}

func explanationView(x *walpost.Explanation) explanationJSON {
	v := explanationJSON{Table: x.Table, EventID: x.EventID, Problem: x.Problem, Column: x.Column, Option: x.Option, Fix: x.Hint}
	rec := x.Record
	if rec == nil {
		return v
	}
	v.Record = &recordJSON{Topic: rec.Topic, PartitionFrom: x.PartitionFrom, Timestamp: rec.Time.UTC(), TimestampFrom: x.TimeFrom, Headers: []headerJSON{}}
	if x.Partition >= 0 {
		v.Record.Partition = &x.Partition
	}
	v.Record.Key, v.Record.KeyB64 = textOrBase64(rec.Key)
	v.Record.Value, v.Record.ValueB64 = textOrBase64(rec.Value)
	for _, h := range rec.Headers {
		text, b64 := textOrBase64(h.Value)
		v.Record.Headers = append(v.Record.Headers, headerJSON{Key: h.Key, Value: text, ValueB64: b64})
	}
	return v
}

func textOrBase64(b []byte) (text, b64 *string) {
	if b == nil {
		return nil, nil
	}
	if s := string(b); utf8.ValidString(s) {
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}
