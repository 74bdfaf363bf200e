//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
)

const (
	cleanupRate  = 1000 // rows a second
	cleanupKeep  = 10   // seconds
	cleanupSlice = 15   // seconds between two looks
)

// cleanup writes rows without and with a cleanup that keeps ten seconds of them, and shows how the table grows. The server has
// autovacuum on, which makes the space of deleted rows available again.
func (e *env) cleanup(ctx context.Context, path string, seconds int) error {
	err := e.sql(ctx, func(c *pgx.Conn) error {
		for _, s := range []string{
			"ALTER SYSTEM SET autovacuum = on", "ALTER SYSTEM SET autovacuum_naptime = '5s'", "SELECT pg_reload_conf()",
			"ALTER TABLE outbox ADD created_at timestamptz NOT NULL DEFAULT now()", "CREATE INDEX ON outbox (created_at)",
		} {
			if _, err := c.Exec(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("\nThe table at %d rows a second, %s\n", cleanupRate, path)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "cleanup\tafter\trows\ttable MB\tindexes MB\tWAL MB\t")
	for _, mode := range []string{"none", "delete"} {
		if err := e.grow(ctx, w, path, mode, seconds); err != nil {
			return err
		}
	}
	return w.Flush()
}

func (e *env) grow(ctx context.Context, w *tabwriter.Writer, path, mode string, seconds int) error {
	if err := e.sql(ctx, func(c *pgx.Conn) error { _, err := c.Exec(ctx, "TRUNCATE outbox"); return err }); err != nil {
		return err
	}
	slot, err := e.slot(ctx)
	if err != nil {
		return err
	}
	_, prefix := e.topic()
	source, extra := e.source, e.extra
	defer func() { e.source, e.extra = source, extra }()
	e.source = ", time_column: created_at"
	e.extra += fmt.Sprintf("\ncleanup: {mode: %s, keep: %ds}\n", mode, cleanupKeep)
	proc, err := e.readyRelay(ctx, path, slot, prefix)
	if err != nil {
		return err
	}
	defer proc.kill()
	var seq int64
	var from string
	if err := e.sql(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&from) }); err != nil {
		return err
	}
	for passed := 0; passed < seconds; passed += cleanupSlice {
		if seq, err = e.pace(ctx, seq, cleanupRate, cleanupSlice); err != nil {
			return err
		}
		var rows, table, indexes, wal int64
		if err := e.sql(ctx, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, "SELECT (SELECT count(*) FROM outbox), pg_table_size('outbox'), pg_indexes_size('outbox'), (pg_current_wal_lsn() - $1::text::pg_lsn)::bigint", from).
				Scan(&rows, &table, &indexes, &wal)
		}); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d s\t%d\t%.1f\t%.1f\t%.0f\t\n", mode, passed+cleanupSlice, rows, float64(table)/1e6, float64(indexes)/1e6, float64(wal)/1e6)
	}
	if err := proc.stop(); err != nil {
		return err
	}
	return e.drop(ctx, slot)
}
