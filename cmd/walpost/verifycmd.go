package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/progress"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/verify"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "compares the table with the topics: is every event there once, unchanged and in order?",
		Long: `verify reads the rows of the table at one moment, waits until the relay has passed that moment, and
reads the topics that the rows go to. It reports rows whose record is missing or differs from what
the row gives now, duplicates, and records that are behind a newer record of their key. It names what
it cannot judge, such as a row whose record may have been removed by
retention. docs/verify.md explains each.

verify writes nothing to Postgres or Kafka, and it may run beside run. While it reads the table, it
holds a snapshot of the database. It sorts in temporary files, which take about 300 bytes for each
row and each record. They have no names, so nothing is left of them however verify ends.

It exits with 0 if there is no difference, and with 1 if there is one, or if rows have no
record and the relay may not have reached them yet. Duplicates that a restart of the relay explains
are counted. They leave the exit code at 0 unless you pass --strict.`,
		Example: `  walpost verify --config walpost.yaml
  walpost verify --config walpost.yaml --since 2026-11-20T00:00:00Z --until 2026-11-21T00:00:00Z
  walpost verify --config walpost.yaml --json --limit 1000 --temp-dir /var/tmp`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "slot", "publication", "shard", "name", "topic-regex", "topic-replacement", "checkpoint-store", "checkpoint-topic", "checkpoint-path")
	flags := cmd.Flags()
	since := flags.String("since", "", "compare only rows that were written from this `time` on, such as 2026-11-20T08:00:00Z")
	until := flags.String("until", "", "compare only rows that were written before this `time`")
	first := flags.String("first-id", "", "compare only rows from this event `id` on, in the order of its column")
	last := flags.String("last-id", "", "compare only rows up to this event `id`")
	wait := flags.Duration("wait", walpost.DefaultVerifyWait, "the `duration` that the relay may stand still before verify gives up waiting for it")
	tempDir := flags.String("temp-dir", "", "the `folder` of the temporary files (default: the system's)")
	limit := flags.Int("limit", 20, "print at most this `number` of findings of each kind; all are counted")
	strict := flags.Bool("strict", false, "exit with 1 if there are duplicates of any kind")
	asJSON := flags.Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts := walpost.VerifyOptions{Wait: *wait, TempDir: *tempDir, Limit: *limit}
		if err := timeRange(*since, &opts.Since, *until, &opts.Until); err != nil {
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
		if flags.Changed("first-id") {
			opts.FirstID = first
		}
		if flags.Changed("last-id") {
			opts.LastID = last
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			meter := progress.NewMeter(cmd.ErrOrStderr(), terminal(cmd.ErrOrStderr()))
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
			if *asJSON {
				err = printVerifyJSON(cmd.OutOrStdout(), report, clean)
			} else {
				err = printVerify(cmd.OutOrStdout(), report)
			}
			if err == nil && !clean {
				return exitError(exitFailed) // what was printed says why
			}
			return err
		})
	}
	return cmd
}

// timeRange reads --since and --until. An empty text is no bound.
func timeRange(since string, from *time.Time, until string, to *time.Time) (err error) {
	if *from, err = timeFlag("since", since); err == nil {
		*to, err = timeFlag("until", until)
	}
	if err == nil && !from.IsZero() && !to.IsZero() && !from.Before(*to) {
		err = usageError{fmt.Errorf("--until: must be later than --since (got %s)", until)}
	}
	return err
}

func printVerify(w io.Writer, r *walpost.VerifyReport) error {
	var b strings.Builder
	fmt.Fprintf(&b, "rows: %d, records: %d\n", r.Rows, r.Records)
	fmt.Fprintf(&b, "rows with their record: %d\n", r.Matched)
	for _, line := range verifyCounts(r) {
		if line.count > 0 {
			fmt.Fprintf(&b, "%s: %d\n", line.text, line.count)
		}
	}
	if r.NotConfirmed != "" {
		fmt.Fprintf(&b, "note: %s\n", r.NotConfirmed)
	}
	for _, k := range verify.Kinds() {
		n := r.Counts[k.Kind]
		if n == 0 {
			continue
		}
		title := "CANNOT TELL"
		if k.Difference {
			title = "DIFFERENCE"
		}
		fmt.Fprintf(&b, "\n%s %s: %d (%s)\n", title, k.Kind, n, k.Text)
		var shownSoFar int64
		for i := range r.Findings {
			if f := &r.Findings[i]; f.Kind == k.Kind {
				fmt.Fprintf(&b, "  %s\n", findingLine(f))
				shownSoFar++
			}
		}
		if shownSoFar < n {
			fmt.Fprintf(&b, "  and %d more (--limit)\n", n-shownSoFar)
		}
		if k.Hint != "" {
			fmt.Fprintf(&b, "  what to do: %s\n", k.Hint)
		}
		if k.Kind == verify.Missing {
			fmt.Fprintf(&b, "  to publish them behind newer events of their keys: %s\n", fault.Command("replay"+replayIDs(r.Findings)))
		}
	}
	fmt.Fprintf(&b, "\ndifferences: %d, cannot tell: %d\n", r.Differences(), r.CannotTell())
	_, err := io.WriteString(w, b.String())
	return err
}

// replayIDs are the flags of walpost replay for the rows that are missing.
func replayIDs(findings []verify.Finding) (flags string) {
	for i := range findings {
		if f := &findings[i]; f.Kind == verify.Missing {
			flags += " --id " + shellWord(f.EventID)
		}
	}
	return cmp.Or(flags, " --id ID") // --limit 0
}

type countLine struct {
	count int64
	text  string
}

// verifyCounts are the counts that are no findings.
func verifyCounts(r *walpost.VerifyReport) []countLine {
	var lines []countLine
	for _, where := range slices.Sorted(maps.Keys(r.Elsewhere)) {
		lines = append(lines, countLine{r.Elsewhere[where], "rows whose event is elsewhere, as a " + where})
	}
	return append(lines,
		countLine{r.WithoutRow, "records of no row that was compared"},
		countLine{r.NoEventID, "records without an event id"},
		countLine{r.Repeated, "duplicates from restarts of the relay (contiguous, byte-identical)"},
		countLine{r.Marked, "duplicates from a command (header walpost.origin)"},
		countLine{r.Late, "rows whose only record came from a replay or a retry: the order of that record is not judged"},
		countLine{r.Unordered, "consecutive records of one key whose order is unknown"})
}

func findingLine(f *verify.Finding) string {
	words := []string{"event " + shown([]byte(f.EventID))}
	switch {
	case f.Key != nil:
		words = append(words, "key "+shown([]byte(*f.Key)))
	case f.Topic != "":
		words = append(words, "key "+shown(nil))
	}
	if f.Table != "" {
		words = append(words, "of "+f.Table)
	}
	if f.Topic != "" {
		words = append(words, "topic "+f.Topic)
	}
	if f.Partition >= 0 {
		words = append(words, fmt.Sprintf("partition %d", f.Partition))
	}
	if f.Offset >= 0 {
		words = append(words, fmt.Sprintf("offset %d", f.Offset))
	}
	line := strings.Join(words, ", ")
	if f.Detail != "" {
		line += ": " + oneLine(f.Detail)
	}
	return line
}

// printVerifyJSON prints the report as one object. Its counts have every kind, also one with no findings.
func printVerifyJSON(w io.Writer, r *walpost.VerifyReport, clean bool) error {
	v := struct {
		Clean       bool                  `json:"clean"`
		Differences map[verify.Kind]int64 `json:"differences"`
		CannotTell  map[verify.Kind]int64 `json:"cannot_tell"`
		*walpost.VerifyReport
	}{clean, map[verify.Kind]int64{}, map[verify.Kind]int64{}, r}
	for _, k := range verify.Kinds() {
		if k.Difference {
			v.Differences[k.Kind] = r.Counts[k.Kind]
		} else {
			v.CannotTell[k.Kind] = r.Counts[k.Kind]
		}
	}
	return printJSON(w, v, "")
}
