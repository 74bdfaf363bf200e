// Command bench runs the benchmarks of this folder side by side and writes what they measured as JSON,
// tables and pictures. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A result is what one pass of one reader measured.
type result struct {
	Benchmark string             // Backlog or Latency
	Workload  string             // the backlog, or the rate in events/s
	Reader    string             // such as pg_recvlogical or walpost
	Round     int                // from 1
	Metrics   map[string]float64 // by unit, such as events/s
}

func main() {
	quick := flag.Bool("quick", false, "a smaller run, of less than ten minutes")
	write := flag.String("write", "", "a page whose tables to write anew, such as docs/performance.md; its pictures are in pictures/ beside it")
	out := flag.String("o", "bench.json", "the file for the results of each pass")
	only := flag.Bool("report", false, "measure nothing: read the file of -o")
	flag.Parse()
	if err := run(context.Background(), *quick, *only, *write, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, quick, only bool, write, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if !only {
		if err := measureAll(ctx, quick, out); err != nil {
			return err
		}
	}
	all, err := read(out)
	if err != nil {
		return err
	}
	fmt.Print(backlogTable(all), "\n", latencyTable(all))
	if write == "" {
		return nil
	}
	return writePage(write, all)
}

// A plan is one run of a benchmark, by its flags.
type plan []string

const (
	best   = "pg_recvlogical,walpost,walpost-exactly-once,debezium-tuned"
	steady = "direct,walpost,walpost-exactly-once,debezium-tuned"
)

var (
	whole = []plan{
		{"-bench", "Backlog", "-backlogs", "transaction=200000,rows=200000,hundred=250000", "-readers", best + ",debezium", "-rounds", "2"},
		{"-bench", "Backlog", "-backlogs", "busy=100000,1key=200000,5000keys=200000,2kB=100000,64kB=6000", "-readers", best, "-rounds", "2"},
		{"-bench", "Backlog", "-backlogs", "5M-at-once=5000000,10M=10000000", "-readers", "walpost", "-rounds", "1"},
		{"-bench", "Latency", "-rates", "100,1000,3000,20000", "-readers", steady, "-rounds", "2", "-seconds", "12", "-warmup", "10"},
	}
	quickly = []plan{
		{"-bench", "Backlog", "-backlogs", "transaction=100000,rows=50000,hundred=100000", "-readers", best, "-rounds", "1"},
		{"-bench", "Latency", "-rates", "1000", "-readers", steady, "-rounds", "1", "-seconds", "8", "-warmup", "8"},
	}
)

// measureAll runs the benchmarks, which append their results to a file.
func measureAll(ctx context.Context, quick bool, out string) error {
	if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	plans := whole
	if quick {
		plans = quickly
	}
	for _, p := range plans {
		args := append([]string{"test", "-run", "^$", "-timeout", "0", "github.com/walpost/walpost/scripts/bench", "-results", out}, p...)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}

func read(file string) (all []result, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	for d := json.NewDecoder(f); ; {
		var r result
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, r)
	}
}
