package doctor

import (
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/fix"
	"github.com/walpost/walpost/internal/pg"
)

// standbySlot is a physical slot, as logical decoding waits for it.
type standbySlot struct {
	Name   string
	Active bool
	Lost   bool
}

// standbys is about slots that survive a failover, and about decoding that waits for standbys.
func (x *examination) standbys() {
	if x.f.Server.Version < pg.FailoverVersion {
		return
	}
	slot := x.f.Slot
	switch wanted := x.cfg.Failover || slot != nil && slot.Failover; {
	case x.f.Server.Recovery:
		x.synchronizes(wanted)
		x.copied(wanted)
	case wanted:
		x.awaited()
	}
}

// synchronizes judges a standby's settings. Without them its slots are those of the moment in which pg_sync_replication_slots() was
// called last, if ever.
func (x *examination) synchronizes(wanted bool) {
	const name = "slot synchronization"
	var lacks []string
	repair := fix.Fix{fix.Words("On the standby:")}
	for _, l := range []struct {
		bad  bool
		what string
		step fix.Step
	}{
		{x.Feedback != "on", "hot_standby_feedback = on", fix.Setting{Name: "hot_standby_feedback", Value: "on"}},
		{x.PrimarySlot == "", "primary_slot_name", fix.Words("Set primary_slot_name to the standby's physical slot on the primary (pg_create_physical_replication_slot), and reload.")},
		{!x.PrimaryInfo, "dbname=… in primary_conninfo", fix.Words("Add dbname=" + x.f.Server.Database + " to primary_conninfo, and reload.")},
	} {
		if l.bad {
			lacks, repair = append(lacks, l.what), append(repair, l.step)
		}
	}
	switch {
	case x.SyncsSlots != "on" && !wanted:
	case x.SyncsSlots != "on":
		x.Warn(name, fix.Fix{fix.Words("On the standby:"), fix.Setting{Name: "sync_replication_slots", Value: "on"}},
			"sync_replication_slots is off on this standby: slots are copied to it only when pg_sync_replication_slots() is called")
	case len(lacks) > 0:
		x.Warn(name, repair,
			"sync_replication_slots is on, but settings that it needs are missing (%s): slots are not copied to this standby", strings.Join(lacks, ", "))
	default:
		x.OK(name, "this standby copies the failover slots of its primary")
	}
}

// copied judges a standby's copy of the slot, as the manual has it: synced AND NOT temporary AND invalidation_reason IS NULL
// (logical-replication-failover.html).
func (x *examination) copied(wanted bool) {
	const name = "failover to this standby"
	switch s := x.f.Slot; {
	case s == nil && wanted:
		x.Warn(name, fix.ByWords("Make sure that the slot exists on the primary with failover (pg_replication_slots.failover), and that the standby synchronizes it."),
			"slot %s has no copy on this standby: the slot would not survive a failover to this standby", x.cfg.Slot)
	case s == nil || !s.Synced:
	case s.Lost() != "":
		x.Warn(name, fix.ByWords("The standby copies the slot again once the restart_lsn of the primary's slot has moved forward to WAL that the standby still has. Check max_slot_wal_keep_size and hot_standby_feedback on the standby."),
			"the copy of slot %s is invalidated (%s): the slot would be lost with a failover to this standby", x.cfg.Slot, s.Lost())
	case s.Temporary:
		x.Warn(name, fix.Fix{fix.Words("Wait until walpost has confirmed more. If the database is idle, run this on the primary:"), fix.SQL("SELECT pg_log_standby_snapshot();")},
			"the copy of slot %s is temporary, because the primary's slot is behind the WAL that the standby still has: the slot would not survive a failover to this standby", x.cfg.Slot)
	default:
		x.OK(name, "slot %s is copied to this standby, confirmed up to %s, and would survive a failover to it", x.cfg.Slot, s.Confirmed)
	}
}

// awaited judges, on a primary, the standbys that decoding waits for, so that none of them is behind what was delivered.
func (x *examination) awaited() {
	const name = "synchronized_standby_slots"
	var names []string
	for n := range strings.SplitSeq(x.WaitsFor, ",") {
		if n = strings.Trim(strings.TrimSpace(n), `"`); n != "" {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		var read, unread []string
		for _, s := range x.Slots {
			switch {
			case s.Active && !s.Lost:
				read = append(read, s.Name)
			case !s.Lost:
				unread = append(unread, s.Name)
			}
		}
		by := fix.ByWords("Create a slot for each standby that may take over (pg_create_physical_replication_slot, primary_slot_name), and list it in synchronized_standby_slots.")
		if len(read) > 0 {
			by = fix.Fix{fix.Words("List only the slots of standbys that may take over, not of backup tools:"), fix.Setting{Name: name, Value: strings.Join(read, ", ")}}
		}
		if len(unread) > 0 {
			by = append(by, fix.Words("Leave out "+condition.Some(unread)+" until a standby reads it: decoding would wait for it without an error."))
		}
		if len(read) == 0 {
			x.Warn(name, by, "the slot should survive a failover, but no standby of this server reads from its own physical slot")
			return
		}
		x.Warn(name, by,
			"synchronized_standby_slots is empty: walpost may deliver an event before a standby has received its transaction. After a failover to this standby, Kafka then has an event that is not in the database")
		return
	}
	from := len(x.Found)
	for _, n := range names {
		by := fix.Fix{fix.Words("Start the standby of this slot, or remove the slot from the setting:"), fix.Setting{Name: name, Value: strings.Join(without(names, n), ", ")}}
		i := slices.IndexFunc(x.Slots, func(s standbySlot) bool { return s.Name == n })
		switch {
		case i < 0:
			x.Fail(name, by, "synchronized_standby_slots names %s, which is not a physical slot of this server: decoding stops without an error", n)
		case x.Slots[i].Lost:
			x.Fail(name, by, "slot %s of synchronized_standby_slots is invalidated: decoding stops without an error", n)
		case !x.Slots[i].Active:
			x.Warn(name, by, "slot %s of synchronized_standby_slots is inactive: decoding waits until its standby is back", n)
		}
	}
	if len(x.Found) == from {
		x.OK(name, "decoding waits for %s", strings.Join(names, ", "))
	}
}

func without(names []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == one })
}
