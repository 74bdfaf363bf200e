//go:build linux

// Command bench starts a Postgres and a Kafka, and compares walpost with pg_recvlogical on the same backlog. It also measures the
// time of an event from commit to acknowledgement and to a consumer. The figures depend on the machine and its load: compare
// only lines of one run. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/walpost/walpost/internal/keeper"
)

type options struct {
	rows, txns, rounds int
	rates              string
	seconds            int
	version            string
	builds             string
	recvlogical        string
	extra              string
	rest               bool
	cleanup            int
}

func main() {
	keeper.Init()
	var o options
	flag.IntVar(&o.rows, "rows", 500_000, "rows of the backlog in one transaction; 0: skip it")
	flag.IntVar(&o.txns, "txns", 300_000, "transactions of the backlog with one row each; 0: skip it")
	flag.IntVar(&o.rounds, "rounds", 3, "times that each reader reads each backlog")
	flag.StringVar(&o.rates, "rates", "200,1000,3000", "events per second for the measurement of latency; empty: skip it")
	flag.IntVar(&o.seconds, "seconds", 15, "seconds for each rate")
	flag.StringVar(&o.version, "postgres", "15", "major version of Postgres")
	flag.StringVar(&o.builds, "walpost", "", "programs to compare, separated by commas; empty: build this one")
	flag.StringVar(&o.recvlogical, "pg_recvlogical", "", "path of pg_recvlogical; empty: search for it")
	flag.StringVar(&o.extra, "config", "", "a file with further sections of walpost.yaml, such as delivery")
	flag.IntVar(&o.cleanup, "cleanup", 0, "seconds to watch the table's size, without and with a cleanup; 0: skip it")
	flag.BoolVar(&o.rest, "idle", false, "wait for a load average below 0.5 before each figure")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) (err error) {
	dir, err := os.MkdirTemp("", "walpost-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	builds := strings.Split(o.builds, ",")
	if o.builds == "" {
		builds[0] = filepath.Join(dir, "walpost")
		build := exec.CommandContext(ctx, "go", "build", "-o", builds[0], "github.com/walpost/walpost/cmd/walpost")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build walpost: %w", err)
		}
	}
	e, err := start(o.version)
	if err != nil {
		return err
	}
	defer func() {
		if closing := e.close(); err == nil {
			err = closing
		}
	}()
	e.dir, e.idle = dir, o.rest
	if o.extra != "" {
		b, err := os.ReadFile(o.extra)
		if err != nil {
			return err
		}
		e.extra = string(b)
	}
	var readers []reader
	if path := recvlogical(o.recvlogical, o.version); path != "" {
		readers = append(readers, &pgReader{env: e, path: path})
	} else {
		fmt.Println("pg_recvlogical is not installed (Debian: postgresql-client or postgresql): walpost runs alone")
	}
	for _, path := range builds {
		name := "walpost"
		if len(builds) > 1 {
			name = path
		}
		readers = append(readers, &walpostReader{env: e, path: path, name: name})
	}
	backlogs := []backlog{{name: "one transaction", rows: o.rows, whole: true}, {name: "one row each", rows: o.txns}}
	for i := range backlogs {
		if backlogs[i].rows == 0 || o.rounds == 0 {
			continue
		}
		if err := e.compare(ctx, &backlogs[i], readers, o.rounds); err != nil {
			return err
		}
	}
	for _, path := range builds {
		if o.rates == "" {
			break
		}
		var rates []int
		for text := range strings.SplitSeq(o.rates, ",") {
			rate, err := strconv.Atoi(text)
			if err != nil || rate < 1 {
				return fmt.Errorf("-rates: %q is not a rate", text)
			}
			rates = append(rates, rate)
		}
		if err := e.latency(ctx, path, rates, o.seconds); err != nil {
			return err
		}
	}
	if o.cleanup > 0 {
		return e.cleanup(ctx, builds[0], o.cleanup)
	}
	return nil
}

// recvlogical finds the program, preferring the server's version.
func recvlogical(path, version string) string {
	for _, p := range []string{path, "/usr/lib/postgresql/" + version + "/bin/pg_recvlogical", "pg_recvlogical"} {
		if found, err := exec.LookPath(p); p != "" && err == nil {
			return found
		}
	}
	return ""
}
