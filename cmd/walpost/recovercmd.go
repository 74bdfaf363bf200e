package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/fault"
)

func recoverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "publishes rows missed after a lost slot or a changed publication",
		Long: `recover closes the gap after a slot was lost or dropped, or after a publication was changed. It
shows the gap, and creates a new slot with a snapshot of the table if the old one is lost. It reads
the topics to find the events of the gap that are already in Kafka, and publishes the missing rows
in order, with the header walpost.origin: recover. Afterwards, run continues from the slot without a
token. recover asks before it changes anything, unless you pass --yes.

If source.kind was changed, recover publishes the rows that the relay hasn't delivered, and run
continues with the new kind of source. Stop the relay first.

If only the publication was changed, recover keeps the slot, and doesn't publish the rows that the
slot will still deliver. If the slot can't read rows that were written while there was no
publication, the next run halts and names the next step.

If recover is interrupted, run it again, and it continues. Until it has finished, run refuses to
start. If the new slot is lost as well, recover starts again with the original gap. An unfinished
snapshot is part of the gap. Rows that were deleted from the table before they were published are
lost. recover reports this, with the maximum number of such rows if it can tell.

If you accepted a gap (walpost run --accept-gap), the cleanup removes nothing, because rows of the
gap may not be in Kafka. Once you have published them (walpost verify finds them), or if nobody
needs them, run recover with --close-gap and the gap's token. The relay can keep running. walpost
status shows the gaps that aren't closed.

recover assumes that a row is in Kafka if its topic has an event with the same id, key, value and
time. Topic, id and key are enough if there is only one table, and its event id is a primary key of
type uuid. When in doubt, for example after an UPDATE of a delivered row, recover publishes the row
again.

recover examines the rows that were committed after the newest confirmed event, or up to --overlap
before it. It uses the commit times that the server keeps (track_commit_timestamp), or
source.time_column. Without either, it examines all rows. It orders the rows by their commit times
and by source.order_column. If the order of some rows is still unknown, recover refuses to continue,
unless you pass --unordered.`,
		Example: `  walpost recover --config walpost.yaml
  walpost recover --config walpost.yaml --yes --since 2026-11-20T08:00:00Z
  walpost recover --config walpost.yaml --close-gap=3f9c01ab22d4`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate,
		"dsn", "table", "brokers", "slot", "publication", "name", "topic-regex", "topic-replacement", "create-topics", "compression",
		"window-events", "window-bytes", "checkpoint-store", "checkpoint-topic", "checkpoint-path", "log-level", "log-format", "shutdown-grace")
	flags := cmd.Flags()
	yes := flags.Bool("yes", false, "don't ask")
	unordered := flags.Bool("unordered", false, "publish even if the order is unknown")
	since := flags.String("since", "", "assume that nothing before this commit `time` is missing")
	overlap := flags.Duration("overlap", walpost.DefaultOverlap, "begin this long before the newest confirmed event")
	closes := flags.String("close-gap", "", "only close the accepted gap with this `token`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("close-gap") {
			if *closes == "" {
				return usageError{errors.New("--close-gap: must be the token of an accepted gap (walpost status shows it)")}
			}
			return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
				if err := walpost.CloseGap(ctx, cfg.Config, *closes); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "gap %s is closed\n", *closes)
				return err
			})
		}
		opts := walpost.RecoverOptions{Overlap: *overlap}
		if *overlap <= 0 {
			return usageError{fmt.Errorf("--overlap: must be above 0s (got %s)", *overlap)}
		}
		var err error
		if opts.Since, err = timeFlag("since", *since); err != nil {
			return err
		}
		if opts.Since.After(time.Now()) { // it would leave out every row
			return usageError{fmt.Errorf("--since: must not be later than now (got %s)", *since)}
		}
		return load.work(cmd, func(c *fileConfig) { c.Unordered = *unordered }, func(ctx context.Context, cfg fileConfig) error {
			out := cmd.OutOrStdout()
			cfg.Logger, cfg.Version = newLogger(cfg.Log, cmd.ErrOrStderr()), buildInfo().version
			opts.Say = func(text string) { fmt.Fprintln(out, text) }
			opts.Ask = asking(ctx, *yes, cmd.InOrStdin(), out)
			published, err := walpost.Recover(ctx, cfg.Config, opts)
			switch {
			case errors.Is(err, walpost.ErrNoGap):
				fmt.Fprintf(out, "nothing to recover: %v\n", err)
				return nil
			case err != nil:
				return err
			}
			_, err = fmt.Fprintf(out, "recovered: %d rows were published. walpost run continues from here.\n", published)
			return err
		})
	}
	return cmd
}

// asking returns what asks a person, or says yes in his place. An answer that does not come, as at the end of the input, is an error.
func asking(ctx context.Context, yes bool, in io.Reader, out io.Writer) func(question string) (bool, error) {
	lines := bufio.NewReader(in)
	return func(question string) (bool, error) {
		if yes {
			fmt.Fprintf(out, "%s yes (--yes)\n", question)
			return true, nil
		}
		fmt.Fprintf(out, "%s [y/N] ", question)
		type answer struct {
			text string
			err  error
		}
		given := make(chan answer, 1)
		go func() {
			text, err := lines.ReadString('\n')
			given <- answer{text, err}
		}()
		select {
		case a := <-given:
			text := strings.ToLower(strings.TrimSpace(a.text))
			if a.err != nil && text == "" {
				fmt.Fprintln(out)
				return false, fault.Config(fmt.Errorf("no answer: %w", a.err), "Add --yes if nobody can answer.")
			}
			return text == "y" || text == "yes", nil
		case <-ctx.Done():
			fmt.Fprintln(out)
			return false, fmt.Errorf("no answer: %w", ctx.Err())
		}
	}
}
