package replication

import (
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/pg"
)

// standbySlot is a physical slot, as logical decoding waits for it.
type standbySlot struct {
	Name   string
	Active bool
	Lost   bool
}

// standbys is about slots that survive a failover, and about decoding that waits for standbys.
func (j *judgement) standbys(x *examined) {
	if j.f.Server.Version < pg.FailoverVersion {
		return
	}
	slot := j.f.Slot
	switch wanted := j.cfg.Failover || slot != nil && slot.Failover; {
	case j.f.Server.Recovery:
		j.synchronizes(x, wanted)
		j.copied(wanted)
	case wanted:
		j.awaited(x)
	}
}

// synchronizes judges a standby's settings. Without them its slots are those of the moment in which pg_sync_replication_slots() was
// called last, if ever.
func (j *judgement) synchronizes(x *examined, wanted bool) {
	const name = "slot synchronization"
	var lacks []string
	for _, l := range []struct {
		bad  bool
		what string
	}{{x.Feedback != "on", "hot_standby_feedback = on"}, {x.PrimarySlot == "", "primary_slot_name"}, {!x.PrimaryInfo, "dbname=… in primary_conninfo"}} {
		if l.bad {
			lacks = append(lacks, l.what)
		}
	}
	switch {
	case x.SyncsSlots != "on" && !wanted:
	case x.SyncsSlots != "on":
		j.add(Warn, name, "On the standby: ALTER SYSTEM SET sync_replication_slots = 'on'; SELECT pg_reload_conf();",
			"sync_replication_slots is off on this standby: slots are copied to it only when pg_sync_replication_slots() is called")
	case len(lacks) > 0:
		j.add(Warn, name, "On the standby: "+strings.Join(lacks, ", ")+".",
			"sync_replication_slots is on, but it needs what is not set (%s): slots are not copied to this standby", strings.Join(lacks, ", "))
	default:
		j.add(OK, name, "", "this standby copies the failover slots of its primary")
	}
}

// copied judges a standby's copy of the slot, as the manual has it: synced AND NOT temporary AND invalidation_reason IS NULL
// (logical-replication-failover.html).
func (j *judgement) copied(wanted bool) {
	const name = "failover to this standby"
	switch s := j.f.Slot; {
	case s == nil && wanted:
		j.add(Warn, name, "See that the slot exists on the primary with failover (pg_replication_slots.failover), and that the standby synchronizes it.",
			"slot %s has no copy on this standby: it would not survive a failover to it", j.cfg.Slot)
	case s == nil || !s.Synced:
	case s.Lost() != "":
		j.add(Warn, name, "It is made anew once the primary's slot is ahead of what the standby has; see max_slot_wal_keep_size and hot_standby_feedback there.",
			"the copy of slot %s is invalidated (%s): the slot would be lost with a failover to this standby", j.cfg.Slot, s.Lost())
	case s.Temporary:
		j.add(Warn, name, "Wait until walpost has confirmed more; while nothing is written, SELECT pg_log_standby_snapshot(); on the primary.",
			"the copy of slot %s is temporary, because the primary's slot is behind what the standby can serve: it would not survive a failover to this standby", j.cfg.Slot)
	default:
		j.add(OK, name, "", "slot %s is copied to this standby, confirmed up to %s, and would survive a failover to it", j.cfg.Slot, position(s.Confirmed))
	}
}

// awaited judges, on a primary, the standbys that decoding waits for, so that none of them is behind what was delivered.
func (j *judgement) awaited(x *examined) {
	const name = "synchronized_standby_slots"
	var names []string
	for n := range strings.SplitSeq(x.WaitsFor, ",") {
		if n = strings.Trim(strings.TrimSpace(n), `"`); n != "" {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		var there []string
		for _, s := range x.Slots {
			if !s.Lost {
				there = append(there, s.Name)
			}
		}
		if len(there) == 0 {
			j.add(Warn, name, "Give each standby that may take over a slot (pg_create_physical_replication_slot, primary_slot_name), and name it in synchronized_standby_slots.",
				"the slot is to survive a failover, but this server has no standby with a slot of its own")
			return
		}
		j.add(Warn, name, "ALTER SYSTEM SET synchronized_standby_slots = '"+strings.Join(there, ", ")+"'; SELECT pg_reload_conf();",
			"synchronized_standby_slots is empty: events may be delivered that a standby does not have yet, and after a failover to it they never happened")
		return
	}
	from := len(j.found)
	for _, n := range names {
		fix := "Start that standby, or take it out: ALTER SYSTEM SET synchronized_standby_slots = '" + strings.Join(without(names, n), ", ") + "'; SELECT pg_reload_conf();"
		i := slices.IndexFunc(x.Slots, func(s standbySlot) bool { return s.Name == n })
		switch {
		case i < 0:
			j.add(Fail, name, fix, "synchronized_standby_slots names %s, which is no physical slot of this server: decoding stands still without an error", n)
		case x.Slots[i].Lost:
			j.add(Fail, name, fix, "slot %s of synchronized_standby_slots is invalidated: decoding stands still without an error", n)
		case !x.Slots[i].Active:
			j.add(Warn, name, fix, "slot %s of synchronized_standby_slots is inactive: decoding stands still until its standby is back", n)
		}
	}
	if len(j.found) == from {
		j.add(OK, name, "", "decoding waits for %s", strings.Join(names, ", "))
	}
}

func without(names []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == one })
}
