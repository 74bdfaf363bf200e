package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// BenchmarkOnce compares Once with the handler's transaction alone, side by side. Each turn does all
// forms one after the other, with as many generations as the default of Retain leaves in use. It reports
// the time of each form for one event, and as a multiple of the bare form, and logs a table with the
// statements (BEGIN and COMMIT are two), the rows and the WAL of one event.
func BenchmarkOnce(b *testing.B) {
	pg := testenv.Postgres(b, "")
	dsn := pg.Database(b)
	pg.Exec(b, dsn, ddl, "CREATE TABLE effects (n bigserial, id text, consumer text, note text)")
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		b.Fatal(err)
	}
	var statements counter
	config.ConnConfig.Tracer = &statements
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	db := inbox.Pgx(pool)
	beside := open(b, dsn, 1)
	state := func() (c cost) {
		c.statements = int64(statements)
		err := beside.QueryRow(b.Context(), `SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM inbox_processed)
			+ (SELECT count(*) FROM inbox_messages), (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&c.rows, &c.wal)
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	for range 4 { // as many marks are in use with the default of Retain
		pg.Exec(b, dsn, "UPDATE inbox_generations SET started_at = now() - interval '100 days' WHERE ended_at IS NULL")
		if _, err := db.Retain(b.Context(), inbox.Retention{}); err != nil {
			b.Fatal(err)
		}
	}
	const batch = 100
	n := 0
	messages := func() (msgs []inbox.Message) {
		for range batch {
			n++
			msgs = append(msgs, inbox.Message{ID: fmt.Sprintf("0193a5b0-%012d", n), Topic: "t", Group: "c"})
		}
		return msgs
	}
	// One statement for all, as a fast handler has it.
	write := func(ctx context.Context, tx pgx.Tx, msgs []inbox.Message) error {
		ids := make([]string, len(msgs))
		for i, m := range msgs {
			ids[i] = m.ID
		}
		_, err := tx.Exec(ctx, "INSERT INTO effects (id) SELECT unnest($1::text[])", ids)
		return err
	}
	bare := func(msgs []inbox.Message) error {
		return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return write(b.Context(), tx, msgs) })
	}
	single := func(msgs []inbox.Message) error {
		for i := range msgs {
			_, err := db.Once(b.Context(), "c", msgs[i], func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, msgs[i:i+1]) })
			if err != nil {
				return err
			}
		}
		return nil
	}
	var seen []inbox.Message
	forms := []struct {
		name, compared string
		do             func(msgs []inbox.Message) error
	}{
		{"bare", "bare", func(msgs []inbox.Message) error {
			for i := range msgs {
				if err := bare(msgs[i : i+1]); err != nil {
					return err
				}
			}
			return nil
		}},
		{"once", "bare", func(msgs []inbox.Message) error { seen = msgs; return single(msgs) }},
		{"again", "bare", func([]inbox.Message) error { return single(seen) }},
		{"bare-batch", "bare-batch", bare},
		{"batch", "bare-batch", func(msgs []inbox.Message) error { return inbox.BatchHandler(db, write)(b.Context(), msgs) }},
		{"store", "bare-batch", func(msgs []inbox.Message) error {
			_, err := db.Store(b.Context(), "stored", msgs...)
			return err
		}},
	}
	took, costs := map[string]time.Duration{}, map[string]cost{}
	for turn := 0; b.Loop(); turn++ {
		for _, f := range forms {
			msgs := messages()
			before, began := state(), time.Now()
			if err := f.do(msgs); err != nil {
				b.Fatal(err)
			}
			if took[f.name] += time.Since(began); turn == 0 { // it prepares statements
				took[f.name] = 0
				continue
			}
			after, c := state(), costs[f.name]
			costs[f.name] = cost{c.statements + after.statements - before.statements, c.rows + after.rows - before.rows, c.wal + after.wal - before.wal}
		}
	}
	events := float64(max(b.N-1, 1) * batch)
	table := fmt.Sprintf("%-10s %10s %10s %10s %10s", "", "µs", "statements", "rows", "WAL bytes")
	for _, f := range forms {
		micros, c := float64(took[f.name].Microseconds())/events, costs[f.name]
		table += fmt.Sprintf("\n%-10s %10.1f %10.2f %10.2f %10.0f", f.name, micros, float64(c.statements)/events, float64(c.rows)/events, float64(c.wal)/events)
		b.ReportMetric(micros, f.name+"-µs/event")
		if f.name != f.compared && took[f.compared] > 0 {
			b.ReportMetric(float64(took[f.name])/float64(took[f.compared]), f.name+"/"+f.compared)
		}
	}
	b.Logf("one event costs:\n%s", table)
}

// A cost is what a form has used.
type cost struct{ statements, rows, wal int64 }

// A counter counts statements.
type counter int64

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	*c++
	return ctx
}
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// BenchmarkRetain compares the ways to remove a million marks of one generation, side by side: Retain with the
// privilege to truncate and without it, and DROP as a table's owner could do it. It reports the time and
// the WAL of each, of the VACUUM after it, and what it took to write the marks, and how long a consumer
// waited beside it.
func BenchmarkRetain(b *testing.B) {
	const marks = 1_000_000
	pg := testenv.Postgres(b, "")
	for b.Loop() {
		dsn := pg.Database(b)
		pg.Exec(b, dsn, ddl, "CREATE ROLE inbox_bench LOGIN",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO inbox_bench")
		owner := open(b, dsn, 4)
		config := owner.Config()
		config.ConnConfig.User = "inbox_bench"
		service, err := pgxpool.NewWithConfig(b.Context(), config)
		if err != nil {
			b.Fatal(err)
		}
		exec := func(sql string) {
			b.Helper()
			if _, err := owner.Exec(b.Context(), sql); err != nil {
				b.Fatalf("%s: %v", sql, err)
			}
		}
		table := fmt.Sprintf("%d marks:\n%-16s %10s %12s %16s", marks, "", "ms", "WAL bytes", "longest Once, ms")
		generation := 0
		times := map[string]time.Duration{}
		measure := func(name string, do func()) {
			var before, after int64
			wal := "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
			errBefore := owner.QueryRow(b.Context(), wal).Scan(&before)
			ctx, stop := context.WithCancel(b.Context())
			waited := make(chan time.Duration)
			go func() { // a consumer
				var longest time.Duration
				for n := 0; ctx.Err() == nil; n++ {
					began := time.Now()
					m := inbox.Message{ID: fmt.Sprint(name, generation, n), Topic: "t"}
					if _, err := inbox.Pgx(owner).Once(ctx, "c", m, nothing); err == nil {
						longest = max(longest, time.Since(began))
					}
				}
				waited <- longest
			}()
			began := time.Now()
			do()
			times[name] = time.Since(began)
			time.Sleep(50 * time.Millisecond) // a Once that waits for the lock ends
			stop()
			longest := <-waited
			if err := errors.Join(errBefore, owner.QueryRow(b.Context(), wal).Scan(&after)); err != nil {
				b.Fatal(err)
			}
			table += fmt.Sprintf("\n%-16s %10.1f %12d %16.1f", name, float64(times[name].Microseconds())/1000, after-before, float64(longest.Microseconds())/1000)
		}
		for n, way := range []string{"delete", "truncate", "drop"} {
			generation = n + 2
			exec("CHECKPOINT")
			write := func() {
				exec(fmt.Sprintf("INSERT INTO inbox_processed (generation, consumer, scope, event_id) SELECT %d, 'payments', 'outbox.event.order', gen_random_uuid()::text FROM generate_series(1, %d)", generation, marks))
			}
			measure("write", write)
			exec(fmt.Sprintf("VACUUM ANALYZE inbox_processed_%d", generation))
			exec(fmt.Sprintf("UPDATE inbox_generations SET started_at = now() - interval '1 year', ended_at = now() - interval '1 month' WHERE generation = %d", generation))
			exec("CHECKPOINT")
			measure(way, func() {
				var done inbox.Retained
				switch way {
				case "delete":
					done, err = inbox.Pgx(service).Retain(b.Context(), inbox.Retention{})
				case "truncate":
					done, err = inbox.Pgx(owner).Retain(b.Context(), inbox.Retention{})
				case "drop":
					exec(fmt.Sprintf("DROP TABLE inbox_processed_%d", generation))
					return
				}
				if err != nil || len(done.Dropped) != 1 {
					b.Fatal(done, err)
				}
			})
			if way == "delete" {
				measure("vacuum after it", func() { exec(fmt.Sprintf("VACUUM inbox_processed_%d", generation)) })
				var size int64
				if err := owner.QueryRow(b.Context(), fmt.Sprintf("SELECT pg_total_relation_size('inbox_processed_%d')", generation)).Scan(&size); err != nil {
					b.Fatal(err)
				}
				table += fmt.Sprintf("\n%-16s %10s %12d bytes of the partition", "left", "", size)
			}
		}
		service.Close()
		exec("DROP OWNED BY inbox_bench; DROP ROLE inbox_bench")
		owner.Close()
		b.Log(table)
		b.ReportMetric(float64(times["delete"])/float64(times["truncate"]), "delete/truncate")
		b.ReportMetric(float64(times["drop"])/float64(times["truncate"]), "drop/truncate")
	}
}
