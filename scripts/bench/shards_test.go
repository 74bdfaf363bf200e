//go:build linux

package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/pg"
)

// BenchmarkShards has one, two and four relays read the same backlog, each from its own slot on the
// same WAL. Two and four relays share out the rows by a hash of the key.
func BenchmarkShards(b *testing.B) {
	e := start(b)
	rel := &cdc.Relation{Name: "outbox", Columns: []cdc.Column{{Name: "aggregateid", TypeOID: pgtype.TextOID}}}
	numbers := [][]cdc.Shard{{{}}, (cdc.Shard{Of: 2}).All(), (cdc.Shard{Of: 4}).All()}
	for _, shards := range numbers[1:] {
		for _, s := range shards {
			filter, err := pg.ShardFilter(s, rel, "aggregateid")
			check(b, err)
			e.pg.Exec(b, e.dsn, fmt.Sprintf("CREATE PUBLICATION bench%s FOR TABLE outbox WHERE (%s) WITH (publish = 'insert')", s.Suffix(), filter))
		}
	}
	g := &backlog{name: "rows", rows: *txns, commit: "COMMIT;"}
	e.write(b, g)
	for round := range *rounds {
		for i := range numbers {
			shards := numbers[(round+i)%len(numbers)] // another number is first in each round
			b.Run(fmt.Sprintf("round=%d/shards=%d", round+1, len(shards)), func(b *testing.B) { e.share(b, g, shards) })
		}
	}
}

// share measures the relays until the brokers have everything. The processor time of the server is
// that of the walsenders alone.
func (e *env) share(b *testing.B, g *backlog, shards []cdc.Shard) {
	before := load(b)
	var took time.Duration
	var relays, senders float64
	passes := 0.0
	for b.Loop() {
		topic, prefix := e.topic(b)
		adm, base := kadm.NewClient(e.kafka.Client(b)), unique()
		for _, s := range shards {
			e.pg.Exec(b, e.dsn, "SELECT pg_copy_logical_replication_slot('"+g.slot+"', '"+base+s.Suffix()+"')")
		}
		began := time.Now()
		var all []*process
		for _, s := range shards {
			all = append(all, e.relay(b, e.builds[0], base, prefix, "--shard", s.String()))
		}
		e.stored(b, g.rows, adm, topic, all[0])
		took += time.Since(began)
		for i, s := range shards {
			var pid int
			_, _ = fmt.Sscan(e.pg.Value(b, e.dsn, "SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = $1", base+s.Suffix()), &pid)
			senders += processorTime(pid)
			all[i].stop(b)
			state := all[i].cmd.ProcessState
			relays += (state.UserTime() + state.SystemTime()).Seconds()
			e.drop(b, base+s.Suffix())
		}
		e.compare(b, g, adm, topic)
		_, err := adm.DeleteTopic(b.Context(), topic)
		check(b, err)
		passes++
	}
	events := passes * float64(g.rows)
	b.ReportMetric(0, "ns/op") // it has the preparations in it
	b.ReportMetric(events/took.Seconds(), "events/s")
	b.ReportMetric(senders/events*1e6, "server-CPU-s/Mevents")
	b.ReportMetric(relays/events*1e6, "relays-CPU-s/Mevents")
	b.ReportMetric(before, "load")
}
