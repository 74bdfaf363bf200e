package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/verify"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "compares the table with the topics: is every event there once, unchanged and in order?",
		Long: `verify reads the rows of the table at one moment, waits until the slot has passed that moment, and
reads the topics that the rows go to. It reports rows whose record is missing or differs from what
the row gives now, duplicates, and records that are behind a newer record of their key. It names what
it cannot judge, such as a row whose record retention may have removed. docs/verify.md explains each.

verify writes nothing to Postgres or Kafka, and it may run beside run. While it reads the table, it
holds a snapshot of the database. It sorts in temporary files, which take about 300 bytes for each
row and each record. They have no names, so nothing is left of them however verify ends.

It exits with 0 if there is no difference, and with 1 if there is one, or if the slot did not pass and
rows have no record yet. Duplicates that a restart of the relay explains are counted. They leave the
exit code at 0 unless you pass --strict.`,
		Example: `  walpost verify --config walpost.yaml
  walpost verify --config walpost.yaml --since 2026-11-20T00:00:00Z --until 2026-11-21T00:00:00Z
  walpost verify --config walpost.yaml --json --limit 1000 --temp-dir /var/tmp`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "slot", "publication", "topic-regex", "topic-replacement")
	flags := cmd.Flags()
	since := flags.String("since", "", "compare only rows that were written from this `time` on, such as 2026-11-20T08:00:00Z")
	until := flags.String("until", "", "compare only rows that were written before this `time`")
	first := flags.String("first-id", "", "compare only rows from this event `id` on, in the order of its column")
	last := flags.String("last-id", "", "compare only rows up to this event `id`")
	wait := flags.Duration("wait", walpost.DefaultVerifyWait, "the `duration` that the slot may stand still before verify gives up waiting for it")
	tempDir := flags.String("temp-dir", "", "the `folder` of the temporary files (default: the system's)")
	limit := flags.Int("limit", 20, "print at most this `number` of findings of each kind; all are counted")
	strict := flags.Bool("strict", false, "exit with 1 if there are duplicates of any kind")
	asJSON := flags.Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		opts := walpost.VerifyOptions{Wait: *wait, TempDir: *tempDir, Limit: *limit}
		for _, bound := range []struct {
			flag, text string
			to         *time.Time
		}{{"since", *since, &opts.Since}, {"until", *until, &opts.Until}} {
			if bound.text == "" {
				continue
			}
			at, err := time.Parse(time.RFC3339, bound.text)
			if err != nil {
				return usageError{fmt.Errorf("--%s: must be a time such as 2026-11-20T08:00:00Z (got %q)", bound.flag, bound.text)}
			}
			*bound.to = at
		}
		switch {
		case *wait < 0:
			return usageError{fmt.Errorf("--wait: must be at least 0s (got %s)", *wait)}
		case *limit < 0:
			return usageError{fmt.Errorf("--limit: must be at least 0 (got %d)", *limit)}
		case !opts.Since.IsZero() && !opts.Until.IsZero() && !opts.Since.Before(opts.Until):
			return usageError{fmt.Errorf("--until: must be later than --since (got %s)", *until)}
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
		cfg, err := load(nil)
		if err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
		defer stop()
		meter := newMeter(cmd.ErrOrStderr())
		opts.Say, opts.Progress = meter.say, meter.progress
		report, err := walpost.Verify(ctx, cfg.Config, opts)
		meter.end()
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted before everything was compared: %w", ctx.Err())
		}
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), verifyView(report), "")
		} else {
			err = printVerify(cmd.OutOrStdout(), report)
		}
		switch {
		case err != nil:
			return err
		case report.Differences() > 0, report.Counts[verify.NotConfirmed] > 0, *strict && report.Repeated+report.Marked > 0:
			return exitError(exitFailed) // what was printed says why
		}
		return nil
	}
	return cmd
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
		fmt.Fprintf(&b, "not every row is delivered: %s\n", r.NotConfirmed)
	}
	for _, k := range verify.Kinds {
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
	}
	fmt.Fprintf(&b, "\ndifferences: %d, cannot tell: %d\n", r.Differences(), r.CannotTell())
	_, err := io.WriteString(w, b.String())
	return err
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
		countLine{r.Unordered, "neighbours of one key whose order nothing tells"})
}

func findingLine(f *verify.Finding) string {
	key := shown([]byte(f.Key))
	if f.NullKey {
		key = shown(nil)
	}
	words := []string{"event " + shown([]byte(f.EventID)), "key " + key}
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

// verifyJSON is a report for programs.
type verifyJSON struct {
	Clean        bool                  `json:"clean"`
	Rows         int64                 `json:"rows"`
	Records      int64                 `json:"records"`
	Matched      int64                 `json:"rows_with_record"`
	Elsewhere    map[string]int64      `json:"rows_elsewhere"`
	WithoutRow   int64                 `json:"records_without_row"`
	NoEventID    int64                 `json:"records_without_event_id"`
	Repeated     int64                 `json:"duplicates_contiguous"`
	Marked       int64                 `json:"duplicates_marked"`
	Unordered    int64                 `json:"pairs_without_order"`
	NotConfirmed string                `json:"not_confirmed,omitempty"`
	Differences  map[verify.Kind]int64 `json:"differences"`
	CannotTell   map[verify.Kind]int64 `json:"cannot_tell"`
	Findings     []findingJSON         `json:"findings"`
	FindingsLeft int64                 `json:"findings_not_listed"`
}

type findingJSON struct {
	Kind      verify.Kind `json:"kind"`
	EventID   string      `json:"event_id"`
	Key       *string     `json:"key"`
	KeyB64    *string     `json:"key_base64,omitempty"`
	Table     string      `json:"table,omitempty"`
	Topic     string      `json:"topic,omitempty"`
	Partition *int32      `json:"partition"`
	Offset    *int64      `json:"offset"`
	Detail    string      `json:"detail,omitempty"`
}

func verifyView(r *walpost.VerifyReport) verifyJSON {
	v := verifyJSON{
		Clean: r.Differences() == 0 && r.Counts[verify.NotConfirmed] == 0, Rows: r.Rows, Records: r.Records, Matched: r.Matched, Elsewhere: r.Elsewhere,
		WithoutRow: r.WithoutRow, NoEventID: r.NoEventID, Repeated: r.Repeated, Marked: r.Marked, Unordered: r.Unordered, NotConfirmed: r.NotConfirmed,
		Differences: map[verify.Kind]int64{}, CannotTell: map[verify.Kind]int64{}, Findings: []findingJSON{},
		FindingsLeft: r.Differences() + r.CannotTell() - int64(len(r.Findings)),
	}
	for _, k := range verify.Kinds {
		if k.Difference {
			v.Differences[k.Kind] = r.Counts[k.Kind]
		} else {
			v.CannotTell[k.Kind] = r.Counts[k.Kind]
		}
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		j := findingJSON{Kind: f.Kind, EventID: f.EventID, Table: f.Table, Topic: f.Topic, Detail: f.Detail}
		if !f.NullKey {
			j.Key, j.KeyB64 = textOrBase64([]byte(f.Key))
		}
		if f.Partition >= 0 {
			j.Partition = &f.Partition
		}
		if f.Offset >= 0 {
			j.Offset = &f.Offset
		}
		v.Findings = append(v.Findings, j)
	}
	return v
}
