//go:build linux || darwin

// Command parity runs Debezium itself, on a Kafka Connect and a Kafka and a Postgres that it starts, and keeps what it writes as the
// goldens that walpost is held to; and it makes random cases and runs both on them. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/internal/parity"
	"github.com/walpost/walpost/internal/testenv"
)

type options struct {
	dir     string
	only    string
	check   bool
	missing bool
	at      int
	version string

	random int
	seed   uint64
	first  uint64
	found  string
}

func main() {
	localpg.Init()
	var o options
	flag.StringVar(&o.dir, "dir", "router/testdata/debezium", "folder of the cases")
	flag.StringVar(&o.only, "case", "", "regular expression: only cases whose short name (group_name) matches")
	flag.BoolVar(&o.check, "check", false, "write nothing; fail where Debezium does not give what is kept")
	flag.BoolVar(&o.missing, "missing", false, "only cases for which nothing is kept yet")
	flag.IntVar(&o.at, "at-once", 16, "how many cases run at the same time")
	flag.StringVar(&o.version, "postgres", "15", "major version of Postgres")
	flag.IntVar(&o.random, "random", 0, "make this many random cases, run them on Debezium and on walpost, and compare")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().Unix()), "seed of the random cases")
	flag.Uint64Var(&o.first, "first", 0, "number of the first random case; -random 1 -seed S -first N repeats one")
	flag.StringVar(&o.found, "found", "", "folder for found.txt: the random cases that differ, with what Debezium gave")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "parity:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) error {
	if o.random > 0 {
		e := &env{host: &host{}}
		return e.with(o, func() error { return e.random(ctx, o) })
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-case: %w", err)
	}
	files, err := parity.ReadCorpus(o.dir)
	if err != nil {
		return err
	}
	var cases []*parity.Case
	for _, f := range files {
		for _, c := range f.Cases {
			if only.MatchString(c.Slug()) && (!o.missing || c.Want == "") {
				cases = append(cases, c)
			}
		}
	}
	if len(cases) == 0 {
		return errors.New("no cases")
	}
	e := &env{host: &host{}}
	return e.with(o, func() error { return e.record(ctx, o, files, cases) })
}

// with starts the servers, does what is wanted and stops them.
func (e *env) with(o *options, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if cause, ok := p.(error); !ok || !errors.Is(cause, errHost) {
				panic(p)
			}
		}
		e.host.cleanup()
		err = errors.Join(err, e.host.get(), testenv.Close())
	}()
	e.start(o)
	return do()
}
