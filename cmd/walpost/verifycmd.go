package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/command/verify"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "checks that every event is in Kafka once, unchanged and in order",
		Long: `verify reads the rows of the table in one snapshot, waits until the relay has delivered them all,
and reads their topics. It reports rows whose record is missing or differs from the record that run
would write now, duplicates, and records that come after a newer record of their key. It also
reports what it can't judge, such as a row whose record the topic's retention may have removed.
docs/verify.md explains each kind of finding.

verify writes nothing to Postgres or Kafka, and can run alongside the relay. While it reads the
table, it holds a snapshot of the database. It sorts in temporary files of about 300 bytes for each
row and each record. The system removes these files even if verify is killed.

verify exits with 0 if there's no difference. It exits with 1 if there is one, or if rows have no
record and the relay may not have reached them yet. It counts duplicates that a restart of the relay
explains, but they change the exit code only with --strict.`,
		Example: `  walpost verify --config walpost.yaml
  walpost verify --config walpost.yaml --since 2026-11-20T00:00:00Z --until 2026-11-21T00:00:00Z
  walpost verify --config walpost.yaml --json --limit 1000 --temp-dir /var/tmp`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "slot", "publication", "name", "topic-regex", "topic-replacement", "checkpoint-store", "checkpoint-topic", "checkpoint-path")
	flags := cmd.Flags()
	rows := rowFlags(cmd, "compare")
	wait := flags.Duration("wait", walpost.DefaultVerifyWait, "wait this long for a relay that makes no progress")
	tempDir := flags.String("temp-dir", "", "the `folder` for temporary files")
	limit := flags.Int("limit", 20, "the `number` of findings to print for each kind")
	strict := flags.Bool("strict", false, "exit with 1 if there are duplicates")
	asJSON := flags.Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts := walpost.VerifyOptions{Wait: *wait, TempDir: *tempDir, Limit: *limit}
		if err := rows(&opts.Since, &opts.Until, &opts.FirstID, &opts.LastID); err != nil {
			return err
		}
		switch {
		case *wait < 0:
			return usageError{fmt.Errorf("--wait: must be at least 0s (got %s)", *wait)}
		case *limit < 0:
			return usageError{fmt.Errorf("--limit: must be at least 0 (got %d)", *limit)}
		}
		if *tempDir != "" {
			if info, err := os.Stat(*tempDir); err != nil {
				return usageError{fmt.Errorf("--temp-dir: %w", err)}
			} else if !info.IsDir() {
				return usageError{fmt.Errorf("--temp-dir: %s is not a folder", *tempDir)}
			}
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			meter := progress.NewMeter(cmd.ErrOrStderr())
			opts.Say, opts.Progress = meter.Say, meter.Progress
			report, err := walpost.Verify(ctx, cfg.Config, opts)
			meter.End()
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted before everything was compared: %w", ctx.Err())
			}
			if err != nil {
				return err
			}
			clean := report.Differences()+report.Counts[verify.NotConfirmed] == 0 && (!*strict || report.Repeated+report.Marked == 0)
			err = show.Print(cmd.OutOrStdout(), *asJSON, show.VerifyOf(report, clean), show.Verify(report))
			if err == nil && !clean {
				return exitError(exitFailed) // what was printed says why
			}
			return err
		})
	}
	return cmd
}

// rowFlags adds the flags that select rows by their time and by their event id, and returns what reads them. what is what the command
// does with the rows.
func rowFlags(cmd *cobra.Command, what string) func(from, to *time.Time, firstID, lastID **string) error {
	flags := cmd.Flags()
	since := flags.String("since", "", what+" rows since this `time`")
	until := flags.String("until", "", what+" rows before this `time`")
	first := flags.String("first-id", "", what+" from this event `id`")
	last := flags.String("last-id", "", what+" up to this event `id`")
	return func(from, to *time.Time, firstID, lastID **string) (err error) {
		if flags.Changed("first-id") {
			*firstID = first
		}
		if flags.Changed("last-id") {
			*lastID = last
		}
		if *from, err = timeFlag("since", *since); err == nil {
			*to, err = timeFlag("until", *until)
		}
		if err == nil && !from.IsZero() && !to.IsZero() && !from.Before(*to) {
			err = usageError{fmt.Errorf("--until: must be later than --since (got %s)", *until)}
		}
		return err
	}
}
