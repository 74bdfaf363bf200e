package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/slot"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "shows the slot: its lag, its state, and what blocks it",
		Long: `status reads the state of the slot from the database. It needs no running relay. It exits with

  0  if the slot is well
  1  if there is a warning, or if the state cannot be read
  3  if the slot is missing, lost or about to be lost, or holds more WAL than
     monitor.retained_critical`,
		Example: `  walpost status --config walpost.yaml
  walpost status --config walpost.yaml --watch 30s --json`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase, "dsn", "table", "slot", "http")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	watch := cmd.Flags().Duration("watch", 0, "read the state twice, this `duration` apart; the forecast needs it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *watch < 0 || *watch > time.Hour {
			return usageError{fmt.Errorf("--watch: must be from 0s to 1h (got %s)", *watch)}
		}
		cfg, err := load(nil)
		if err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
		defer stop()
		status, failed := walpost.ReadSlot(ctx, cfg.Config, *watch)
		out := cmd.OutOrStdout()
		if *asJSON {
			err = printJSON(out, slotViewOf(status, time.Now()))
		} else {
			err = printSlot(out, status)
		}
		switch {
		case err != nil:
			return err
		case failed != nil:
			if hint := fault.Hint(failed); hint != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "hint: %s\n", hint)
			}
			return exitError(exitFailed) // the findings have said why
		case status.Severity == slot.Critical:
			return exitError(exitPerson)
		case status.Severity != slot.OK:
			return exitError(exitFailed)
		}
		return nil
	}
	return cmd
}

func printSlot(w io.Writer, s slot.Status) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	line("slot", "%s in %s", s.Slot, s.Database)
	line("state", "%s", s.Severity)
	for _, f := range s.Reasons {
		line("", "%s", oneLine(f))
	}
	if s.Known && s.Exists {
		active := "inactive"
		if s.Active {
			active = fmt.Sprintf("active (pid %d)", s.ActivePID)
		} else {
			active += " for " + atLeastFor(s.InactiveFor, s.InactiveAtLeast)
		}
		line("reader", "%s", active)
		line("wal_status", "%s", s.WALStatus)
		line("retained", "%s", bytesOrUnknown(s.RetainedBytes))
		line("unconfirmed", "%s", bytesOrUnknown(s.UnconfirmedBytes))
		if s.SafeKnown {
			line("left", "%s before the slot can be lost", walpost.Size(s.SafeBytes).Roughly())
		} else if s.KeepBytes < 0 {
			line("left", "no limit (max_slot_wal_keep_size is -1): the disk is the limit")
		}
		if s.Limit == slot.ByDisk {
			line("disk", "%s left of monitor.wal_disk_size", walpost.Size(s.Left).Roughly())
		}
		switch {
		case s.Limit == slot.ByRemoval:
		case s.WALRate < 0:
			line("forecast", "needs two looks: --watch 30s")
		case s.Limit == slot.NoLimit:
			line("forecast", "none: no limit is known (set max_slot_wal_keep_size, or monitor.wal_disk_size)")
		case math.IsInf(s.Exhaustion, 1):
			line("forecast", "%s is not used up at this rate", s.Limit)
		default:
			line("forecast", "%s is used up in %s", s.Limit, time.Duration(s.Exhaustion*float64(time.Second)).Round(time.Second))
		}
		if s.WALRate >= 0 {
			line("WAL", "%s/s", walpost.Size(s.WALRate).Roughly())
		}
		if s.WaitEvent != "" {
			line("waits for", "%s", s.WaitEvent)
		}
		line("xmin age", "%d transactions", s.CatalogXminAge)
		if d := s.Decoding; d.SpillBytes > 0 {
			line("spilled", "%s by %d transactions", walpost.Size(d.SpillBytes).Roughly(), d.SpillTxns)
		}
		line("confirmed", "%s", s.Confirmed)
		if s.Restart > 0 { // a lost slot holds nothing
			line("restart", "%s", s.Restart)
		}
		line("server", "%s", s.Server)
		if s.Blocker != nil {
			line("blocker", "%s", s.Blocker)
			line("", "to end it: %s", s.Blocker.End)
		}
		if s.Hidden != "" {
			line("hidden", "%s", s.Hidden)
		}
		line("clock", "the database's clock minus this machine's clock: %s", s.ClockSkew.Round(time.Millisecond))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func bytesOrUnknown(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return walpost.Size(n).Roughly()
}

func atLeastFor(d time.Duration, atLeast bool) string {
	text := d.Round(time.Second).String()
	if atLeast {
		text = "at least " + text
	}
	return text
}
