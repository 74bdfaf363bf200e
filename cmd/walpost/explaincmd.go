package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "prints the record that a row produces, or why it produces none",
		Long: `explain routes rows of the table as run would, and prints each row's record: topic, partition, key,
headers, value and timestamp. If a row produces no record, explain prints the column, the option and
what to do. It writes nothing to Postgres or Kafka. Unless you pass --partitions, explain asks Kafka
for the topic's number of partitions and its max.message.bytes. If Kafka doesn't answer, explain
leaves out the partition of a record with a key, and doesn't check the size.

The row that you pass with --row needn't exist, but its table must. explain reads each value
according to its column's type. Columns that you leave out get their defaults: for an identity
column the number 1, and for a generated column NULL.

explain exits with 1 if a row isn't found, produces no record, or produces a record that Kafka would
refuse.`,
		Example: `  walpost explain --config walpost.yaml --id 018f4e2a-9a3b-7c1d-8e2f-1a2b3c4d5e6f
  walpost explain --config walpost.yaml --last 3 --json
  walpost explain --config walpost.yaml --partitions 12 --row '{"aggregate_type": "order", "aggregate_id": "4711", "event_type": "OrderPlaced"}'`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase,
		"dsn", "table", "brokers", "publication", "topic-regex", "topic-replacement", "compression")
	flags := cmd.Flags()
	id := flags.String("id", "", "the row with this event `id`")
	last := flags.Int("last", 0, "the `number` of rows to explain, newest first")
	row := flags.String("row", "", "a row as a `JSON` object, keyed by column; - for standard input")
	partitions := flags.Int("partitions", 0, "the `number` of partitions to assume")
	asJSON := flags.Bool("json", false, "print JSON, one object a line")
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
					return show.ExplanationJSON(out, x)
				}
				if n > 1 {
					fmt.Fprintln(out)
				}
				_, err := io.WriteString(out, show.Explanation(x))
				return err
			})
			if err == nil && none {
				return exitError(exitFailed) // what was printed says why
			}
			return err
		})
	}
	return cmd
}
