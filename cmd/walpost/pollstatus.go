package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/cmd/walpost/internal/askrelay"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/relay"
)

const (
	waitsTooLong = 5 * time.Minute // a row, as the alert WalpostPolledRowTooOld has it
	openTooLong  = time.Minute     // a transaction that delays rows
)

// pollStatus is walpost status of a relay that polls: what is not delivered, and why.
func pollStatus(ctx context.Context, cmd *cobra.Command, cfg fileConfig, asJSON bool) error {
	a, v := askrelay.At(ctx, cfg.HTTP)
	var at cdc.Position // as the relay has it; otherwise the checkpoint has it
	source := cfg.Source.Config
	source.ReadSecrets()
	database, err := source.Database()
	if err != nil {
		return err
	}
	switch {
	case a.State == "":
	case v.Poll == nil:
		a = a.Other("reads slot " + v.Slot.Slot)
	case v.Poll.Table != source.Names().Tables[0].String() || v.Source.Database != "" && v.Source.Database != database:
		a = a.Other(fmt.Sprintf("polls table %s in %s", v.Poll.Table, v.Source.Database))
	case v.Name != cmp.Or(cfg.Name, database+"."+v.Poll.Table): // another relay of the table, with its own checkpoint
		a = a.Other("is relay " + v.Name)
	case a.State != relay.Standby:
		at = v.Poll.Position
	}
	found, failed := walpost.ReadPoll(ctx, cfg.Config, at)
	if fault.Misconfigured(failed) {
		return failed
	}
	if failed != nil {
		found.BacklogErr = failed.Error()
	}
	p, out := statuspage.PollOf(&found, time.Now()), cmd.OutOrStdout()
	findings, code := judgePoll(p, a)
	err = show.Print(out, asJSON, struct {
		*statuspage.Poll
		State    string          `json:"state"` // ok, warning, critical
		Findings []string        `json:"findings"`
		Relay    askrelay.Answer `json:"relay"`
	}{p, pollStates[code], findings, a}, show.PollStatus(p, a, findings, pollStates[code]))
	if err != nil || code == 0 {
		return err
	}
	if hint := fault.Hint(failed); hint != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "hint: %s\n", hint)
	}
	return exitError(code)
}

var pollStates = map[int]string{0: "ok", exitFailed: "warning", exitPerson: "critical"}

// judgePoll returns what is not as it should be, and the exit code.
func judgePoll(p *statuspage.Poll, a askrelay.Answer) (findings []string, code int) {
	findings = []string{}
	add := func(format string, args ...any) {
		code, findings = max(code, exitFailed), append(findings, fmt.Sprintf(format, args...))
	}
	if p.Error != "" {
		add("%s", p.Error)
	}
	age := func(seconds *float64) time.Duration {
		if seconds == nil {
			return 0
		}
		return time.Duration(*seconds * float64(time.Second)).Round(time.Second)
	}
	if old := age(p.Oldest); old > waitsTooLong {
		add("the oldest undelivered row was written %s ago", old)
	}
	if x := p.BlockerFull; x != nil && (x.Since.IsZero() || time.Since(x.Since.Time) > openTooLong) {
		if p.BlockerEnd == "" {
			add("rows wait for %s: ask its owner to end it", p.Blocker)
		} else {
			add("rows wait for %s; to end it: %s", p.Blocker, p.BlockerEnd)
		}
	}
	if c := p.Claims; c != nil && len(c.Refused) > 0 {
		add("%d of the oldest rows were refused and are tried again: the younger rows of their keys wait", len(c.Refused))
	}
	if !a.Ready && a.Address != "" {
		add("%s", a.NotReady())
	}
	if a.State == relay.Halted {
		code = exitPerson
	}
	return findings, code
}
