package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/askrelay"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/slot"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "shows whether events are delivered, and the slot's lag, state and blocker",
		Long: `status reads the state of the slot from the database, and asks the running relay at http.listen
whether it delivers events. If the relay runs on another machine, pass its address with --http. With
http.listen: off, status shows only the slot. With source.kind: poll, it shows the undelivered rows
instead of the slot. The first line counts the dead letters and the parked events, which don't
change the exit code. status exits with

  0  if the relay delivers events, and the slot is healthy (with polling: no row waits for long)
  1  if there is a warning, if no relay answers, if the relay isn't ready, or if the state of the
     slot can't be read
  3  if the relay is halted, if the slot is missing, lost or about to be lost, if the slot retains at
     least monitor.retained_critical of WAL, or if pg_wal has reached monitor.wal_disk_size`,
		Example: `  walpost status --config walpost.yaml
  walpost status --config walpost.yaml --watch 30s --json`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase, "dsn", "table", "slot", "http")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	watch := cmd.Flags().Duration("watch", 0, "add a forecast from two readings, this far apart")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *watch < 0 || *watch > time.Hour {
			return usageError{fmt.Errorf("--watch: must be from 0s to 1h (got %s)", *watch)}
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			if cfg.Source.Kind == walpost.KindPoll {
				return pollStatus(ctx, cmd, cfg, *asJSON)
			}
			status, failed := walpost.ReadSlot(ctx, cfg.Config, *watch)
			answer := askrelay.ForSlot(ctx, cfg.HTTP, &status)
			answer.Judge(&status)
			err := show.Print(cmd.OutOrStdout(), *asJSON, struct {
				statuspage.Slot
				Relay askrelay.Answer `json:"relay"`
			}{statuspage.SlotOf(status, time.Now()), answer}, show.Status(&status, answer))
			switch {
			case err != nil || status.Severity == slot.OK && failed == nil:
				return err
			case status.Severity == slot.Critical: // also if the slot cannot be read and the relay is halted
				return exitError(exitPerson)
			}
			if hint := fault.Hint(failed); hint != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "hint: %s\n", hint)
			}
			return exitError(exitFailed) // the findings have said why
		})
	}
	return cmd
}
