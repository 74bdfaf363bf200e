package show

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walpost/walpost"
)

// Replay says what a replay published.
func Replay(r *walpost.ReplayReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "selected rows: %d\n", r.Matched)
	if r.Before > 0 {
		fmt.Fprintf(&b, "rows that this replay had published before it was interrupted: %d\n", r.Before)
	}
	for _, topic := range slices.Sorted(maps.Keys(r.Topics)) {
		fmt.Fprintf(&b, "topic %s: %d events\n", topic, r.Topics[topic])
	}
	if r.NoRecord > 0 {
		fmt.Fprintf(&b, "rows without a record: %d\n", r.NoRecord)
	}
	if r.Parked > 0 {
		fmt.Fprintf(&b, "rows left out, because their events are parked (walpost dead retry delivers them in order): %d\n", r.Parked)
	}
	if r.Bad > 0 {
		fmt.Fprintf(&b, "bad events, named above: %d\n", r.Bad)
	}
	if r.DryRun {
		b.WriteString("nothing was published (--dry-run)\n")
	} else {
		fmt.Fprintf(&b, "published: %d events\n", r.Published)
	}
	return b.String()
}
