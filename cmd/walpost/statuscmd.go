package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/askrelay"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/statuspage"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/slot"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "shows whether events are delivered, and the lag, the state and the blocker of the slot",
		Long: `status reads the state of the slot from the database, and asks the running relay at http.listen
whether it delivers events. If the relay runs on another machine, pass its address with --http. With
http.listen: off, status knows the slot only, and says so. With source.kind: poll, status reads the
rows that are not delivered instead of the slot. It exits with

  0  if the slot is healthy, or no row waits for long, and the relay delivers events
  1  if there is a warning, if no relay answers, if the relay is not ready, or if the state of the
     slot cannot be read
  3  if the relay is halted, if the slot is missing, lost or about to be lost, if it holds as much WAL as
     monitor.retained_critical or more, or if pg_wal is as large as monitor.wal_disk_size`,
		Example: `  walpost status --config walpost.yaml
  walpost status --config walpost.yaml --watch 30s --json`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase, "dsn", "table", "slot", "shard", "http")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	watch := cmd.Flags().Duration("watch", 0, "read the state twice, this `duration` apart; the forecast needs it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *watch < 0 || *watch > time.Hour {
			return usageError{fmt.Errorf("--watch: must be from 0s to 1h (got %s)", *watch)}
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			if cfg.Source.Kind == walpost.KindPoll {
				return pollStatus(ctx, cmd, cfg, *asJSON)
			}
			status, failed := walpost.ReadSlot(ctx, cfg.Config, *watch)
			answer := askRelay(ctx, cfg.HTTP, &status)
			answer.judge(&status)
			out, err := cmd.OutOrStdout(), error(nil)
			if *asJSON {
				err = printJSON(out, struct {
					statuspage.Slot
					Relay relayAnswer `json:"relay"`
				}{statuspage.SlotOf(status, time.Now()), answer}, "  ")
			} else {
				err = printStatus(out, &status, answer)
			}
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

// A relayAnswer is what walpost status learns from the running relay.
type relayAnswer struct {
	Address string      `json:"address"` // http.listen; "" if status has nobody to ask
	State   relay.State `json:"state"`   // as in /api/status; "" without an answer
	Ready   bool        `json:"ready"`
	Reason  string      `json:"reason"`       // why the relay is not ready, or why it is not known
	Reload  string      `json:"reload_error"` // why the newest reload of the configuration was refused; "" if it was not
}

// askRelay asks the relay at http.listen whether it delivers the events of s, as it was read just now.
func askRelay(ctx context.Context, cfg statuspage.Config, s *slot.Status) relayAnswer {
	a, v := askAt(ctx, cfg)
	switch {
	case a.State == "":
	case v.Slot.Name != s.Slot || v.Slot.Database != s.Database:
		a = a.other(fmt.Sprintf("reads slot %s in %s", v.Slot.Name, v.Slot.Database))
	case v.Ready && s.Known && v.Slot.CheckedAgo != nil && *v.Slot.CheckedAgo < v.SinceSecs && v.Slot.ActivePID != s.ActivePID:
		// The relay has looked at the slot in its present session, so it has seen its own walsender.
		a = a.other("reads a slot of this name on another server")
	}
	return a
}

const whereRelay = "start walpost run, or pass the address of the relay with --http"

// askAt asks whatever relay there is at http.listen. The View is empty without an answer.
func askAt(ctx context.Context, cfg statuspage.Config) (relayAnswer, statuspage.View) {
	if askrelay.NoAddress(cfg) {
		return relayAnswer{Reason: fmt.Sprintf("http.listen is %q, so the relay has no address to ask", cfg.Listen)}, statuspage.View{}
	}
	client := askrelay.Client(cfg.Listen)
	defer client.CloseIdleConnections()
	v, err := getStatus(ctx, client)
	if err != nil {
		return relayAnswer{Address: cfg.Listen, Reason: fmt.Sprintf("no relay answers at %s (%v): %s", cfg.Listen, err, whereRelay)}, v
	}
	return relayAnswer{cfg.Listen, relay.State(v.State), v.Ready, v.Reason, v.ReloadError}, v
}

// other is the answer of a relay that is not the one that was meant.
func (a relayAnswer) other(does string) relayAnswer {
	return relayAnswer{Address: a.Address, Reason: fmt.Sprintf("the relay at %s %s: %s", a.Address, does, whereRelay)}
}

// getStatus is /api/status. An error is short: it says why there is no answer.
func getStatus(ctx context.Context, client *http.Client) (v statuspage.View, err error) {
	code, body, err := askrelay.Get(ctx, client, "/api/status")
	if err != nil {
		return v, err
	}
	if code == http.StatusOK {
		err = json.Unmarshal(body, &v)
	}
	if err != nil || v.State == "" {
		return v, fmt.Errorf("a program other than walpost answers: %d %s", code, http.StatusText(code))
	}
	return v, nil
}

// judge makes the severity of s that of the slot and the relay together.
func (a relayAnswer) judge(s *slot.Status) {
	switch {
	case a.Ready, a.Address == "":
		return
	case a.State == relay.Halted:
		s.Severity = slot.Critical
	case s.Severity == slot.OK:
		s.Severity = slot.Warning
	}
	s.Reasons = append(s.Reasons, a.notReady())
}

// notReady says why a relay that answers is not ready.
func (a relayAnswer) notReady() string {
	if a.State == "" {
		return a.Reason
	}
	return strings.TrimSuffix(fmt.Sprintf("the relay is not ready (%s): %s", a.State, a.Reason), ": ")
}

// relay is the state of the relay, with the address that was asked.
func (a relayAnswer) relay() string {
	switch {
	case a.Address == "":
		return "unknown: " + a.Reason
	case a.State == "":
		return fmt.Sprintf("unknown (%s)", a.Address)
	case a.Reload != "":
		return fmt.Sprintf("%s (%s); it has not reloaded the configuration: %s", a.State, a.Address, oneLine(a.Reload))
	}
	return fmt.Sprintf("%s (%s)", a.State, a.Address)
}

func printStatus(w io.Writer, s *slot.Status, a relayAnswer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	line("slot", "%s in %s", s.Slot, s.Database)
	state := string(s.Severity)
	if a.Address == "" && s.Severity == slot.OK {
		state = "the slot is ok; whether events are delivered is not known"
	}
	line("state", "%s", state)
	for _, f := range s.Reasons {
		line("", "%s", oneLine(f))
	}
	line("relay", "%s", a.relay())
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
			line("forecast", "needs two readings: add --watch 30s")
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
