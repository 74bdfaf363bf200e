//go:build linux

package main

import (
	"fmt"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// Rows are written without and with a cleanup that keeps ten seconds of them. The server has
// autovacuum on, which makes the space of deleted rows available again.
func BenchmarkCleanup(b *testing.B) {
	const rate, slice = 1000, 15 // rows a second; seconds between two looks
	e := start(b, testenv.Param("autovacuum", "on"), testenv.Param("autovacuum_naptime", "5s"))
	e.pg.Exec(b, e.dsn, "CREATE INDEX ON outbox (created_at)")
	e.source = ", time_column: created_at"
	extra := e.extra
	for _, mode := range []string{"none", "delete"} {
		b.Run("mode="+mode, func(b *testing.B) {
			for b.Loop() {
				e.extra = extra + fmt.Sprintf("\ncleanup: {mode: %s, keep: 10s}\n", mode)
				e.pg.Exec(b, e.dsn, "TRUNCATE outbox")
				slot := e.slot(b, "")
				_, prefix := e.topic(b)
				p := e.readyRelay(b, e.builds[0], slot, prefix)
				from := e.pg.Value(b, e.dsn, "SELECT pg_current_wal_lsn()::text")
				for passed := 0; passed < *grows; {
					e.pace(b, rate, slice)
					passed += slice
					var figures [4]float64
					check(b, testenv.Conn(b, e.dsn).QueryRow(b.Context(), `SELECT (SELECT count(*) FROM outbox),
 pg_table_size('outbox') / 1e6, pg_indexes_size('outbox') / 1e6, (pg_current_wal_lsn() - $1::text::pg_lsn) / 1e6`, from).
						Scan(&figures[0], &figures[1], &figures[2], &figures[3]))
					b.Logf("mode %s after %d s: %.0f rows, table %.1f MB, indexes %.1f MB, WAL %.0f MB",
						mode, passed, figures[0], figures[1], figures[2], figures[3])
					for i, unit := range []string{"rows", "table-MB", "index-MB", "WAL-MB"} {
						b.ReportMetric(figures[i], unit)
					}
				}
				b.ReportMetric(0, "ns/op")
				p.stop(b)
				e.drop(b, slot)
			}
		})
	}
}
