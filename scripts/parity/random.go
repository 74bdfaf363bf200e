//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/walpost/walpost/internal/parity"
)

// random makes cases of a seed, runs them on Debezium and on walpost from the same WAL, and compares. Cases that differ are written to
// found.txt in the folder given by -found, so that they can become cases of the corpus.
func (e *env) random(ctx context.Context, o *options) error {
	var mu sync.Mutex
	var errs []error
	connectors, cases, records, refused, differ := 0, 0, 0, 0, 0
	reasons := map[string]int{}
	found := &parity.File{Path: filepath.Join(o.found, "found.txt")}
	from := time.Now()
	next := make(chan uint64)
	var wg sync.WaitGroup
	for i, dsn := range e.database {
		wg.Go(func() {
			for n := range next {
				c, tables := parity.Random(o.seed, n)
				debezium, walpost, err := e.both(ctx, c, dsn, i)
				mu.Lock()
				connectors++
				switch {
				case err != nil:
					errs = append(errs, fmt.Errorf("%s: %w\n%s", c.Name, err, c.Text()))
				default:
					cases += tables
					records += len(debezium.Records)
					if debezium.Failure != "" {
						refused++
						reasons[addressed.ReplaceAllString(debezium.Failure, "…")]++
					}
					c.Want = debezium.String()
					if difference := walpost.Compare(c.Want); difference != "" {
						differ++
						fmt.Printf("%s:\n%sDebezium: %s\nwalpost: %s\n\n", c.Name, difference, debezium.Failure, walpost.Failure)
						found.Cases = append(found.Cases, c)
					}
				}
				if connectors%50 == 0 {
					fmt.Fprintf(os.Stderr, "%d cases in %s, %d differ\n", cases, time.Since(from).Round(time.Second), differ)
				}
				mu.Unlock()
			}
		})
	}
	for n := o.first; ctx.Err() == nil; n++ {
		mu.Lock()
		enough := cases >= o.random
		mu.Unlock()
		if enough {
			break
		}
		next <- n
	}
	close(next)
	wg.Wait()
	fmt.Printf("seed %d: %d cases on %d connectors in %s, %d records, %d connectors failed, %d differ, %d could not be run\n",
		o.seed, cases, connectors, time.Since(from).Round(time.Second), records, refused, differ, len(errs))
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Printf("  failed %3d times: %.160s\n", reasons[reason], reason)
	}
	if differ > 0 {
		if o.found != "" {
			errs = append(errs, os.WriteFile(found.Path, found.Bytes(), 0o644))
		}
		errs = append(errs, fmt.Errorf("%d connectors differ", differ))
	}
	return errors.Join(errs...)
}

// addressed is what makes reasons of one kind look like many.
var addressed = regexp.MustCompile(`random_\w+|[0-9]+`)

// both runs one case on Debezium and on walpost.
func (e *env) both(ctx context.Context, c *parity.Case, dsn string, place int) (debezium, walpost parity.Outcome, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, caseTime, errors.New("no end after "+caseTime.String()))
	defer cancel()
	p, err := c.Put(ctx, dsn, fmt.Sprintf("parity_%d", place), 2)
	if err != nil {
		return debezium, walpost, err
	}
	defer func() { err = errors.Join(err, p.Leave(context.WithoutCancel(ctx))) }()
	var wg sync.WaitGroup
	var errD, errW error
	wg.Go(func() {
		d := parity.Debezium{Worker: e.worker, Brokers: e.kafka.Brokers()}
		debezium, errD = d.Run(ctx, c, p, p.Slots[0])
	})
	wg.Go(func() { walpost, errW = new(parity.Relay).Run(ctx, c, p, p.Slots[1]) })
	wg.Wait()
	return debezium, walpost, errors.Join(errD, errW)
}
