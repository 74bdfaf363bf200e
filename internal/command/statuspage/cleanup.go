package statuspage

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost/cleanup"
)

var (
	cleanupRows  = desc("walpost_cleanup_rows_total", "Rows that were deleted or archived.")
	cleanupParts = desc("walpost_cleanup_partitions_total", "Partitions that were created ahead or dropped.", "done")
	cleanupLast  = desc("walpost_cleanup_last_success_timestamp_seconds", "When the cleanup last succeeded; 0 before.")
)

// collectCleanup sends the cleanup's metrics; there are none where no rows are removed.
func collectCleanup(s *cleanup.Status, gauge, counter func(*prometheus.Desc, float64, ...string)) {
	if s == nil {
		return
	}
	counter(cleanupRows, float64(s.Rows))
	counter(cleanupParts, float64(s.Made), "made")
	counter(cleanupParts, float64(s.Partitions), "dropped")
	gauge(cleanupLast, stamp(s.LastPass.Time))
}
