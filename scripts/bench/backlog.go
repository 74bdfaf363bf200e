//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
)

// A backlog is a number of rows that were written while no reader ran.
type backlog struct {
	name  string
	rows  int
	whole bool // in one transaction

	first, last int64  // the numbers of its first and last row in the order of writing
	end         string // the LSN after its last row
}

// A result has the figures of one reader for one backlog.
type result struct {
	rate float64 // events per second
	cpu  float64 // seconds per million events
	rss  float64 // peak, MB
	load string  // at its start
}

// A reader reads a backlog from a slot and is measured. Its records are checked after the measurement.
type reader interface {
	String() string
	read(ctx context.Context, b *backlog, slot string) (result, error)
}

// compare writes a backlog. Then the readers read it in turn, each from its own slot on the same WAL.
func (e *env) compare(ctx context.Context, b *backlog, readers []reader, rounds int) error {
	var slots []string
	for range rounds * len(readers) {
		name, err := e.slot(ctx)
		if err != nil {
			return fmt.Errorf("make a slot: %w", err)
		}
		slots = append(slots, name)
	}
	if err := e.write(ctx, b); err != nil {
		return fmt.Errorf("write the backlog: %w", err)
	}
	results := map[string][]result{}
	for round := range rounds {
		for i := range readers {
			r := readers[(round+i)%len(readers)] // a different reader is first in each round
			slot := slots[0]
			slots = slots[1:]
			res, err := r.read(ctx, b, slot)
			if err != nil {
				return fmt.Errorf("%s: %w", r, err)
			}
			results[r.String()] = append(results[r.String()], res)
			if err := e.drop(ctx, slot); err != nil {
				return fmt.Errorf("drop a slot: %w", err)
			}
		}
	}
	show(b, readers, results)
	return nil
}

// write writes the backlog.
func (e *env) write(ctx context.Context, b *backlog) error {
	return e.sql(ctx, func(c *pgx.Conn) error {
		if err := c.QueryRow(ctx, "SELECT count(*) + 1 FROM outbox").Scan(&b.first); err != nil {
			return err
		}
		b.last = b.first + int64(b.rows) - 1
		commit := "COMMIT;"
		if b.whole {
			commit = ""
		}
		for _, sql := range []string{
			"SET synchronous_commit = off",
			fmt.Sprintf("DO $$ BEGIN FOR n IN %d..%d LOOP CALL put(n); %s END LOOP; END $$", b.first, b.last, commit),
			"SET synchronous_commit = on",
			"CHECKPOINT", // also flushes the commits
		} {
			if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return c.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&b.end)
	})
}

// show prints every figure, the medians, and their ratios to the first reader.
func show(b *backlog, readers []reader, results map[string][]result) {
	fmt.Printf("\nBacklog of %d rows, %s\n", b.rows, b.name)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "reader\tevents/s\tCPU s per million\tpeak RSS MB\tload\t")
	var base result
	for i, r := range readers {
		all := results[r.String()]
		for _, res := range all {
			fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0f\t%s\t\n", r, res.rate, res.cpu, res.rss, res.load)
		}
		m := medians(all)
		fmt.Fprintf(w, "%s, median\t%.0f\t%.2f\t%.0f\t\t\n", r, m.rate, m.cpu, m.rss)
		if i == 0 {
			base = m
			continue
		}
		fmt.Fprintf(w, "%s / %s\t%.2f\t%.2f\t%.1f\t\t\n", r, readers[0], m.rate/base.rate, m.cpu/base.cpu, m.rss/base.rss)
	}
	_ = w.Flush() // standard output
}

func medians(all []result) result {
	middle := func(of func(result) float64) float64 {
		var v []float64
		for _, r := range all {
			v = append(v, of(r))
		}
		slices.Sort(v)
		return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
	}
	return result{
		rate: middle(func(r result) float64 { return r.rate }),
		cpu:  middle(func(r result) float64 { return r.cpu }),
		rss:  middle(func(r result) float64 { return r.rss }),
	}
}
