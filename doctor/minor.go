package doctor

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/fix"
)

// A defect is one of Postgres that a slot or its reader suffers from, and that a minor version has mended. A major version that has no
// entry either never had it or could not be shown to have it.
type defect struct {
	what   string
	since  map[int]int // by major: the first minor that has it; nil is all of them
	mended map[int]int // by major: the first minor that has it no more
}

// defects, the gravest first. Each was read in the release notes of the minors named, with the branches that they list. Minors of all
// majors are released on one day.
var defects = []defect{
	{
		// 15.20 (2026-11-12), "In logical replication, handle subtransaction aborts better": "If a subtransaction that made a catalog update
		// aborts, logical decoding mistakenly still believed that the update was effective, potentially causing incorrect decoding output". The
		// notes of the other majors' minors of that day were not at hand.
		what:   "decoding can go wrong after DDL in a subtransaction that was rolled back",
		mended: map[int]int{15: 20},
	},
	{
		// 17.6 (2025-08-14), "Avoid re-distributing cache invalidation messages from other transactions during logical replication" (45c357e0e
		// and REL_16 b2ae07720, REL_15 fc0fb77c5, REL_14 983b36362): "our previous round of minor releases included a bug fix" that brought it.
		what:   "decoding can run out of memory and stop for good after DDL in parallel transactions",
		since:  map[int]int{14: 18, 15: 13, 16: 9, 17: 5},
		mended: map[int]int{14: 19, 15: 14, 16: 10, 17: 6},
	},
	{
		// 17.2, 16.6, 15.10, 14.15 (2024-11-21), "Fix cases where a logical replication slot's restart_lsn could go backwards".
		what:   "the slot can ask for WAL that was removed already, and is lost then",
		mended: map[int]int{14: 15, 15: 10, 16: 6, 17: 2},
	},
	{
		// 17.6 and its round (c9f4e7520, REL_16 b485e1c89, REL_15 9f270f48f, REL_14 bedfdb85b), "Avoid infinite wait in logical decoding when
		// reading a partially-written WAL record".
		what:   "decoding can wait forever after a crash of the server",
		mended: map[int]int{14: 19, 15: 14, 16: 10, 17: 6},
	},
	{
		// 17.6 and its round (7318f241d, REL_16 c0f51fde5, REL_15 9d1a62359, REL_14 e68459489), "Never move a replication slot's
		// confirmed-flush position backwards".
		what:   "the slot's confirmed position can move backwards, which repeats events to whoever trusts it",
		mended: map[int]int{14: 19, 15: 14, 16: 10, 17: 6},
	},
	{
		// 17.8, 16.12, 15.16 (2026-02-12), "Prevent invalidation of newly created or newly synced replication slots".
		what:   "a slot that was just made or synchronized can be lost at once to a checkpoint",
		mended: map[int]int{15: 16, 16: 12, 17: 8},
	},
}

// minor warns of the defects that the server's minor version has.
func (x *examination) minor() {
	major, minor := x.f.Server.Version/10000, x.f.Server.Version%10000
	var has []string
	least := 0
	for _, d := range defects {
		if mended, ok := d.mended[major]; ok && d.since[major] <= minor && minor < mended {
			has = append(has, d.what)
			least = max(least, mended)
		}
	}
	if len(has) > 0 {
		upgrade := fix.ByWords(fmt.Sprintf("Install the newest minor version of Postgres %d.", major))
		if x.f.Server.Provider != "" {
			upgrade = fix.ByWords(fmt.Sprintf("Upgrade the instance to the newest minor version of Postgres %d.", major))
		}
		x.add(Warn, "minor version", upgrade,
			"Postgres %d.%d has defects that are fixed in %d.%d: %s", major, minor, major, least, strings.Join(has, "; "))
	}
}
