package e2e

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// docs/operations.md gives a bound for a row that is bigger than the window. It holds for a row that is delivered, in compressed and in plain
// batches, and for one that no request to Kafka can hold.
func TestTheMemoryOfABigRowIsBounded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the peak of the resident memory is read from /proc")
	}
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	const tolerance = 0.8 // times the row: everything else. At a load average of 50, it was 0.56.
	for _, c := range []struct {
		compression string
		size        int
		cost        float64 // times the row: the message from the server, the record, the request, and what compresses it
	}{
		{"none", 64 << 20, 4},
		{"snappy", 64 << 20, 5},
		{"lz4", 64 << 20, 6},
		{"gzip", 64 << 20, 6},
		{"zstd", 64 << 20, 6},
		{"snappy", 256 << 20, 2}, // more than a request holds, so it is refused
	} {
		t.Run(fmt.Sprintf("%s %d MiB", c.compression, c.size>>20), func(t *testing.T) {
			dsn := pg.Database(t)
			topic := kafka.Topic(t, 1, map[string]string{"max.message.bytes": "104857600"})
			pg.Exec(t, dsn, `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL, payload text)`)
			s := &setting{t: t, dsn: dsn, brokers: kafka.Brokers(), name: unique("relay")}
			s.yaml = fmt.Sprintf("name: %s\nsource: {dsn: %q, table: public.outbox}\nrouter: {route.topic.replacement: %q}\nkafka: {brokers: [%s], compression: %s}\n",
				s.name, s.dsn, topic, kafka.Brokers()[0], c.compression)
			r := s.startReady()
			insert := func(payload string) {
				pg.Exec(t, dsn, "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('a', 'k', "+payload+")")
			}
			events := func() float64 { return r.metric(`walpost_events_total{topic="` + topic + `"}`) }
			insert("'small'")
			eventually(t, time.Minute, "the first row is delivered", func() bool { return events() == 1 })
			_, before := r.rss()
			if c.size > 100<<20 {
				insert(fmt.Sprintf("repeat('x', %d)", c.size))
				eventually(t, 2*time.Minute, "halted", func() bool { return !r.ready() })
			} else { // hexadecimal digits of random bytes: they compress to half at most
				random := make([]byte, c.size/2)
				rand.NewChaCha8([32]byte{1}).Read(random) //nolint:errcheck // it has none
				insert("'" + hex.EncodeToString(random) + "'")
				eventually(t, 2*time.Minute, "the big row is delivered", func() bool { return events() == 2 })
			}
			_, peak := r.rss()
			if times := float64(peak-before) / float64(c.size); times > c.cost+tolerance {
				t.Errorf("the resident memory rose by %.2f times the row; want at most %.1f", times, c.cost+tolerance)
			} else {
				t.Logf("the resident memory rose by %.2f times the row", times)
			}
		})
	}
}
