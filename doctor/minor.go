package doctor

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/fix"
)

// defects are defects of Postgres that harm walpost's stream or its slot, the gravest first, with the first release of each major
// version that does not have the defect (as server_version_num). The comment is the argument, and the release notes that say so.
// A major version that is not named never had the defect or could not be shown to have it.
var defects = []struct {
	what  string
	fixed []int
	brief bool // only the release before the fixed one has it
}{
	// 2026-11-12: "potentially causing incorrect decoding output", so Kafka may get wrong events. The notes of other majors were not at hand.
	{"decoding can return wrong rows after DDL in a subtransaction that was rolled back", []int{15_0020}, false},
	// 2025-08-14, "Avoid re-distributing cache invalidation messages": a fix of the release before brought it, and delivery stops for good.
	{"decoding can run out of memory and stop for good after DDL in parallel transactions", []int{14_0019, 15_0014, 16_0010, 17_0006}, true},
	// 2024-11-21, "restart_lsn could go backwards": events are lost to the stream, and only walpost recover finds them.
	{"the slot can need WAL that the server has already removed, and is then lost", []int{14_0015, 15_0010, 16_0006, 17_0002}, false},
	// 2025-08-14, "Avoid infinite wait in logical decoding": delivery stops without an error that walpost could report.
	{"decoding can wait forever after a crash of the server", []int{14_0019, 15_0014, 16_0010, 17_0006}, false},
	// 2026-02-12, "Prevent invalidation of newly created or newly synced replication slots": a first run or a recover has to begin again.
	{"a slot that was just created or synchronized can be lost at the next checkpoint of Postgres", []int{15_0016, 16_0012, 17_0008}, false},
}

// minor warns of the defects that the server's minor version has.
func (x *examination) minor() {
	version := x.f.Server.Version
	var has []string
	least := 0
	for _, d := range defects {
		for _, fixed := range d.fixed {
			if fixed/10000 == version/10000 && version < fixed && (!d.brief || version == fixed-1) {
				has = append(has, d.what)
				least = max(least, fixed)
			}
		}
	}
	if len(has) > 0 {
		upgrade := "Install the newest minor version of Postgres %d."
		if x.f.Server.Provider != "" {
			upgrade = "Upgrade the instance to the newest minor version of Postgres %d."
		}
		x.Warn("minor version", fix.ByWords(fmt.Sprintf(upgrade, version/10000)),
			"Postgres %d.%d has defects that are fixed in %d.%d: %s", version/10000, version%10000, least/10000, least%10000, strings.Join(has, "; "))
	}
}
