// Command faults breaks a relay in every way that this machine can, and judges whether it kept its promises: a real Postgres 15
// or 18, three real Kafka brokers, networks that fail, writers of every shape of transaction, a consumer that shares no code with
// the relay, and a judge.
//
//	go run ./scripts/faults                           # each scenario once
//	go run ./scripts/faults -guarantee both -seeds 3  # each three times with at_least_once, and three times with exactly_once
//	go run ./scripts/faults -minutes 60               # again with other seeds, for an hour
//	go run ./scripts/faults -scenario kill -seed 17   # one run: the seed decides its schedule
//	go run ./scripts/faults -scenario kill -times 84  # one run with 504 kills in place of 6
//	go run ./scripts/faults -older /tmp/walpost       # with two_versions, which needs a build of another revision
//	go run ./scripts/faults -relay 'my-relay -f {config}' -template my.conf   # another relay
//
// The template of another relay has the placeholders {dsn}, {brokers}, {prefix} (of the topics order and invoice), {slot}, {name},
// {window}, {guarantee} and {dir}. The suite starts it whenever it has ended. Of the table public.outbox, it must write each
// inserted row, with the key aggregate_id and a header id.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/keeper"
)

func main() {
	keeper.Init()
	testing.Init() // the test environment asks for -test.short
	os.Exit(suite())
}

func suite() int {
	minutes := flag.Int("minutes", 0, "run scenarios with new seeds for so long, whatever -seeds is")
	seed := flag.Uint64("seed", 1, "the first seed")
	seeds := flag.Int("seeds", 1, "run each scenario with so many seeds")
	guarantee := flag.String("guarantee", atLeastOnce, "at_least_once, exactly_once or both")
	names := flag.String("scenario", "", "names, separated by commas; empty: all")
	relay := flag.String("relay", "", "the command line of another relay, with placeholders")
	template := flag.String("template", "", "the file with the template of its configuration")
	older := flag.String("older", "", "an older build of walpost, for two_versions")
	program := flag.String("walpost", "", "a walpost to run in place of the checkout's")
	window := flag.Int("window", 500, "events that the relay may have in flight")
	times := flag.Int("times", 1, "how often a scenario repeats what it repeats")
	write := flag.String("write", "", "the page to write the table of results into")
	verbose := flag.Bool("v", false, "print each step")
	flag.Usage = usage
	flag.Parse()
	o := options{relay: *relay, window: *window, times: *times, older: *older}
	if *template != "" {
		text, err := os.ReadFile(*template)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		o.template = string(text)
	}
	chosen, unknown := find(*names, false, o.relay == "")
	guarantees := map[string][]string{atLeastOnce: {atLeastOnce}, exactlyOnce: {exactlyOnce}, "both": {atLeastOnce, exactlyOnce}}[*guarantee]
	if unknown != "" || guarantees == nil || (o.relay == "") != (o.template == "") {
		fmt.Fprintf(os.Stderr, "unknown scenario %q or guarantee %q, or only one of -relay and -template\n", unknown, *guarantee)
		usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	say := func(line string) { fmt.Println(strings.TrimSuffix(line, "\n")) }
	var outcomes []outcome
	_, failures := on(ctx, "servers", say, func(t testing.TB) {
		s := start(t, 3)
		s.walpost = *program
		limit := time.Duration(*minutes) * time.Minute
		for from, n := time.Now(), *seed; limit > 0 || n < *seed+uint64(*seeds); n++ {
			for i := range len(chosen) * len(guarantees) {
				sc := &chosen[i/len(guarantees)]
				o.exactlyOnce = guarantees[i%len(guarantees)] == exactlyOnce
				if o.exactlyOnce && sc.promise == refuses { // the checkpoint cannot be in a file
					continue
				}
				out := one(ctx, s, sc, o, n, *verbose)
				for again := n; !out.counts() && again < n+2000; { // another seed may reach it
					say(out.String())
					again += 1000
					out = one(ctx, s, sc, o, again, *verbose)
				}
				outcomes = append(outcomes, out)
				say(out.String())
				if *write != "" {
					if err := writePage(*write, outcomes); err != nil {
						t.Fatal(err)
					}
				}
				if ctx.Err() != nil || limit > 0 && time.Since(from) > limit {
					return
				}
			}
		}
	})
	code := 0
	if len(failures) > 0 || ctx.Err() != nil {
		code = 1
	}
	for _, out := range outcomes {
		if !out.ok() {
			code = 1
			say(fmt.Sprintf("again with: go run ./scripts/faults -scenario %s -seed %d -guarantee %s", out.scenario.name, out.seed, out.guarantee()))
		}
	}
	return code
}

// one runs a scenario and takes what fails into the outcome.
func one(ctx context.Context, s *servers, sc *scenario, o options, seed uint64, verbose bool) (out outcome) {
	var say func(string)
	if verbose {
		say = func(line string) { fmt.Println("   ", strings.TrimSuffix(line, "\n")) }
	}
	from := time.Now()
	out = outcome{scenario: sc, seed: seed, version: []string{"15", "18"}[seed%2], once: o.exactlyOnce}
	lines, failures := on(ctx, sc.name, say, func(t testing.TB) { out = once(t, s, sc, o, seed) })
	out.failures, out.took = failures, cmp.Or(out.took, time.Since(from))
	if !out.ok() && !verbose {
		fmt.Println("    " + strings.Join(lines, "\n    "))
	}
	return out
}

func usage() {
	fmt.Fprintln(os.Stderr, "Usage: go run ./scripts/faults [flags]. The scenarios are:")
	for _, s := range scenarios {
		fmt.Fprintf(os.Stderr, "  %-26s %s\n", s.name, s.promise)
	}
	fmt.Fprintln(os.Stderr, "Flags:")
	flag.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			fmt.Fprintf(os.Stderr, "  -%-12s %s (%q)\n", f.Name, f.Usage, f.DefValue)
		}
	})
}
