package poll

import (
	"fmt"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// BenchmarkALookPastBlockedRows compares looks at two tables in turn. In one of them, 200,000 older rows wait behind a key that another worker
// has. The metric times is what such a look costs, in looks without these rows. It must be below 2.
func BenchmarkALookPastBlockedRows(b *testing.B) {
	var looks [2]*claimer
	for i, blocked := range []int{0, 200_000} {
		w := strategyWorld(b, testenv.Postgres(b, "17"), Claim)
		w.exec(insert("hot", "first"))
		if got := w.worker(nil).take(); got != "first" {
			b.Fatalf("claimed %q", got)
		}
		w.exec(fmt.Sprintf("INSERT INTO outbox (id, key) SELECT 'h' || i, 'hot' FROM generate_series(1, %d) i", blocked),
			"INSERT INTO outbox (id, key) SELECT i, 'k' || i FROM generate_series(1, 5000) i", "VACUUM ANALYZE outbox")
		looks[i] = w.worker(nil).session.strategy.(*claimer)
		if err := looks[i].keep(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	var took [2]time.Duration
	for b.Loop() {
		for i, s := range looks {
			from := time.Now()
			rows, err := s.claim(b.Context())
			took[i] += time.Since(from)
			if err != nil || len(rows) != claimRows {
				b.Fatalf("%d rows, %v", len(rows), err)
			}
			s.queue = rows
			s.drop(all)
			if err := s.flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "times")
	b.ReportMetric(float64(took[0].Milliseconds())/float64(b.N), "ms/none")
	b.ReportMetric(float64(took[1].Milliseconds())/float64(b.N), "ms/blocked")
}
