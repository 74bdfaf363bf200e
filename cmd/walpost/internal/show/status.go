package show

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/askrelay"
	"github.com/walpost/walpost/internal/command/statuspage"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/slot"
)

// lines are the lines of a report, each with a name in front of it.
type lines struct{ strings.Builder }

func (b *lines) line(name, format string, args ...any) {
	fmt.Fprintf(b, "%-12s "+format+"\n", append([]any{name}, args...)...)
}

// head says what state is, and what the relay says about itself. of is what it reads.
func (b *lines) head(state string, findings []string, name, of string, a askrelay.Answer) {
	b.line("state", "%s", state)
	for _, f := range findings {
		b.line("", "%s", OneLine(f))
	}
	b.line(name, "%s", of)
	b.line("relay", "%s", relayText(a))
	for _, g := range a.AcceptedGaps {
		b.line("gap", "%s, accepted %s ago: %s", g.Token, seconds(g.Age), OneLine(g.Gap))
		b.line("", "the cleanup removes nothing until you run %s", g.Command)
	}
}

// seconds is a duration without fractions.
func seconds(n float64) time.Duration {
	return time.Duration(n * float64(time.Second)).Round(time.Second)
}

// Status is the state of the slot and of the relay that reads it.
func Status(s *slot.Status, a askrelay.Answer) string {
	var b lines
	line := b.line
	state := stateText(string(s.Severity), a)
	if a.Address == "" && s.Severity == slot.OK {
		state = "the slot is ok; whether events are delivered is not known"
	}
	b.head(state, s.Reasons, "slot", s.Slot+" in "+s.Database, a)
	if s.Known && s.Exists {
		active := "inactive for " + s.InactiveFor.Round(time.Second).String()
		switch {
		case s.Active:
			active = fmt.Sprintf("active (pid %d)", s.ActivePID)
		case s.InactiveAtLeast:
			active = strings.Replace(active, "for ", "for at least ", 1)
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
			line("forecast", "%s is used up in %s", s.Limit, seconds(s.Exhaustion))
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
	return b.String()
}

// stateText is the state with the events that the relay has put aside.
func stateText(state string, a askrelay.Answer) string {
	if a.Undelivered == "" {
		return state
	}
	but := ", and "
	if state == string(slot.OK) {
		but = ", but "
	}
	return state + but + a.Undelivered + " (" + fault.Command("dead", "list") + ")"
}

func bytesOrUnknown(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return walpost.Size(n).Roughly()
}

// PollStatus is the state of a relay that polls, and of its table.
func PollStatus(p *statuspage.Poll, a askrelay.Answer, findings []string, state string) string {
	var b lines
	line := b.line
	if state = stateText(state, a); a.Address == "" && state == "ok" {
		state = "no row has been waiting for long; whether events are delivered is not known"
	}
	b.head(state, findings, "table", p.Table+", polled with the strategy "+p.Strategy, a)
	if p.Pending != nil {
		more, oldest := "", ""
		if p.More {
			more = "more than "
		}
		if p.Oldest != nil {
			oldest = ", the oldest waiting for " + seconds(*p.Oldest).String()
		}
		line("undelivered", "%s%d%s", more, *p.Pending, oldest)
		if c := p.Claims; c != nil {
			line("claimed", "%d of these rows", c.Claimed)
			line("workers", "%d", c.Workers)
			for _, r := range c.Refused {
				next := "now"
				if r.Next != nil {
					next = "in " + seconds(*r.Next).String()
				}
				line("refused", "event %s, %d times, next attempt %s: %s", r.ID, r.Attempts, next, OneLine(r.Error))
			}
			for _, r := range c.Locked {
				line("locked", "event %s by %s; to end it: %s", r.ID, r.By, r.End)
			}
		} else {
			line("delayed by", "%s", cmp.Or(p.Blocker, "nothing"))
			if p.BlockerEnd != "" {
				line("", "to end it: %s", p.BlockerEnd)
			}
			line("position", "%s", p.Position)
		}
		wake := "every " + time.Duration(p.Interval*float64(time.Second)).String()
		if p.Wake == "notify" {
			wake = "when a trigger notifies, and " + wake
		}
		line("polls", "%s", wake)
	}
	return b.String()
}

// relayText is the state of the relay, with the address that was asked.
func relayText(a askrelay.Answer) string {
	switch {
	case a.Address == "":
		return "unknown: " + a.Reason
	case a.State == "":
		return fmt.Sprintf("unknown (%s)", a.Address)
	case a.Reload != "":
		return fmt.Sprintf("%s (%s); it has not reloaded the configuration: %s", a.State, a.Address, OneLine(a.Reload))
	}
	return fmt.Sprintf("%s (%s)", a.State, a.Address)
}
