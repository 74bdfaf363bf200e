//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// The same rows of four tables are read from one slot, from two with two tables each, and from four
// with one each, all at the same time: what a further slot costs the server, which decodes all WAL for each.
func BenchmarkSlots(b *testing.B) {
	path := findRecvlogical(b)
	if path == "" {
		b.Skip("needs pg_recvlogical")
	}
	e := start(b, testenv.Param("autovacuum", "off"))
	const tables = 4
	for i := range tables {
		e.pg.Exec(b, e.dsn, fmt.Sprintf("CREATE TABLE outbox_%d (LIKE outbox INCLUDING ALL)", i))
	}
	counts := []int{1, 2, 4}
	slots := map[int][]string{} // by their number
	for _, n := range counts {
		for i := range n {
			var published []string
			for t := i; t < tables; t += n {
				published = append(published, fmt.Sprintf("outbox_%d", t))
			}
			e.pg.Exec(b, e.dsn, fmt.Sprintf("CREATE PUBLICATION of_%d_%d FOR TABLE %s WITH (publish = 'insert')", n, i, strings.Join(published, ", ")))
			slots[n] = append(slots[n], e.slot(b, ""))
		}
	}
	conn := testenv.Conn(b, e.dsn)
	for _, sql := range []string{
		"SET synchronous_commit = off",
		fmt.Sprintf(`DO $$ BEGIN FOR n IN 1..%d LOOP
 EXECUTE format('INSERT INTO outbox_%%s VALUES (%%L, ''bench'', %%L, ''Written'', jsonb_build_object(''pad'', %%L))',
  n %% 4, md5(n::text)::uuid, n %% 1000, repeat(md5(n::text), 8)); COMMIT; END LOOP; END $$`, *rows),
		"SET synchronous_commit = on",
		"CHECKPOINT",
	} {
		_, err := conn.Exec(b.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		check(b, err)
	}
	var end string
	check(b, conn.QueryRow(b.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&end))
	check(b, conn.Close(context.Background()))
	postmaster := e.pg.Value(b, e.dsn, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
	for round := range *rounds {
		for _, n := range counts {
			b.Run(fmt.Sprintf("slots=%d/round=%d", n, round+1), func(b *testing.B) {
				for b.Loop() {
					before := load(b)
					var copies []string
					for _, s := range slots[n] {
						copies = append(copies, e.slot(b, s))
					}
					m := newMeter(b.Context(), func() []string { return children(postmaster) })
					began := time.Now()
					var all []*process
					for i, s := range copies {
						all = append(all, launch(b, path, "--dbname", e.dsn, "--slot", s, "--start", "--no-loop", "--endpos", end,
							"--file", "/dev/null", "-o", "proto_version=1", "-o", fmt.Sprintf("publication_names=of_%d_%d", n, i)))
					}
					for _, p := range all {
						p.wait(b)
					}
					took := time.Since(began).Seconds()
					report(b, result{"Slots", fmt.Sprint(n), "pg_recvlogical", round + 1, map[string]float64{
						"events/s": float64(*rows) / took, "server-CPU-s/Mevents": m.seconds() / float64(*rows) * 1e6, "load": before,
					}})
					for _, s := range copies {
						e.drop(b, s)
					}
				}
			})
		}
	}
}
