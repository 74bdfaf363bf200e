//go:build linux

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// The strategies of the polling source read the same backlog: how fast, and what each row costs the
// server in WAL and in transactions. Writers commit one row each, so the rows are in as many
// transactions.
func BenchmarkStrategies(b *testing.B) {
	e := start(b)
	for _, strategy := range []string{"cursor", "claim", "delete"} {
		b.Run("strategy="+strategy, func(b *testing.B) {
			for b.Loop() {
				e.strategy(b, strategy)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func (e *env) strategy(b *testing.B, strategy string) {
	e.dsn = e.pg.Database(b)
	e.pg.Exec(b, e.dsn, schema)
	_, prefix := e.topic(b)
	name := strings.TrimSuffix(prefix, ".")
	file := filepath.Join(e.dir, name+".yaml")
	check(b, os.WriteFile(file, fmt.Appendf(nil, `name: %s
source: {dsn: %q, kind: poll, table: public.outbox, order_column: seq, time_column: created_at, snapshot: initial, poll: {strategy: %s, xid_column: xid}}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s]}
http: {listen: "127.0.0.1:0"}
%s
`, name, e.dsn, strategy, prefix, strings.Join(e.kafka.Brokers(), ", "), e.extra), 0o600))
	out, err := exec.Command(e.builds[0], "setup", "--apply", "--config", file).CombinedOutput()
	check(b, err, string(out))
	e.pg.Exec(b, e.dsn, fmt.Sprintf("DO $$ BEGIN FOR n IN 1..%d LOOP INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "+
		"SELECT md5(n::text)::uuid, 'bench', 'key-' || n %% 1000, 'Written', jsonb_build_object('seq', n, 'pad', repeat(md5(n::text), 8)); COMMIT; END LOOP; END $$", *rows), "CHECKPOINT")
	state := func() (wal, transactions float64) {
		check(b, testenv.Conn(b, e.dsn).QueryRow(b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())::float8`).Scan(&wal, &transactions))
		return wal, transactions
	}
	wal, transactions := state()
	p := launch(b, e.builds[0], "run", "--config", file)
	for p.delivered(b) < float64(*rows) {
		p.sleep(b, 20*time.Millisecond)
	}
	took := time.Since(p.began)
	p.stop(b)
	walAfter, transactionsAfter := state()
	b.ReportMetric(float64(*rows)/took.Seconds(), "rows/s")
	b.ReportMetric((walAfter-wal)/float64(*rows), "WAL-B/row")
	b.ReportMetric((transactionsAfter-transactions)/float64(*rows)*1000, "transactions/1000-rows")
}

// delivered is how many events the relay says it has delivered.
func (p *process) delivered(b *testing.B) (events float64) {
	page := p.out.Page()
	if page == "" {
		return 0
	}
	resp, err := http.Get(page + "/metrics")
	check(b, err)
	defer resp.Body.Close() //nolint:errcheck // it is read
	text, err := io.ReadAll(resp.Body)
	check(b, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "walpost_events_total{"); ok {
			n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:len(rest)-1], 64)
			check(b, err)
			events += n
		}
	}
	return events
}
