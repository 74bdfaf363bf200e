package cdc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Snapshot says which transactions had committed at a moment, by the 64-bit ids of top-level
// transactions. A transaction that was rolled back may count as one that had committed.
type Snapshot struct {
	XMin, XMax uint64   // all below XMin had ended, and none from XMax on
	Open       []uint64 // of those between, the ones that had not ended
}

// ParseSnapshot reads what Postgres prints for a pg_snapshot: xmin:xmax:open,open.
func ParseSnapshot(text string) (s Snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q: %d parts, must be 3", text, len(parts))
	}
	numbers := []string{parts[0], parts[1]}
	if parts[2] != "" {
		numbers = append(numbers, strings.Split(parts[2], ",")...)
	}
	ids := make([]uint64, len(numbers))
	for i, n := range numbers {
		if ids[i], err = strconv.ParseUint(n, 10, 64); err != nil {
			return s, fmt.Errorf("snapshot %q: %w", text, err)
		}
	}
	return Snapshot{XMin: ids[0], XMax: ids[1], Open: ids[2:]}, nil
}

// Sees reports whether the rows of the transaction were visible.
func (s *Snapshot) Sees(xid uint64) bool {
	return xid < s.XMin || xid < s.XMax && !slices.Contains(s.Open, xid)
}
