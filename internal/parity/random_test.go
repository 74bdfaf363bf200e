//go:build linux || darwin

package parity

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"
)

var (
	randomCases = flag.Int("random", 0, "make this many random cases, run them on Debezium and on walpost, and compare")
	seed        = flag.Uint64("seed", uint64(time.Now().Unix()), "the seed of the random cases")
	first       = flag.Uint64("first", 0, "the number of the first random case; -random 1 -seed S -first N repeats one case")
	foundDir    = flag.String("found", "", "the folder for found.txt: the random cases that differ, with what Debezium wrote")
)

// TestRandomRecordsEqualDebeziums makes cases from a seed, runs them on Debezium and on walpost from the same WAL, and compares. It
// runs only with -random, because it takes ten minutes for 2,000 cases. Cases that differ are written to found.txt in the folder of
// -found, so that they can become cases of the corpus.
func TestRandomRecordsEqualDebeziums(t *testing.T) {
	if *randomCases == 0 {
		t.Skip("takes minutes: runs with -random 2000")
	}
	o := startOracle(t)
	var mu sync.Mutex
	connectors, ran, records, refused, differ := 0, 0, 0, 0, 0
	reasons := map[string]int{}
	found := &File{Path: filepath.Join(*foundDir, "found.txt")}
	next := make(chan uint64)
	var wg sync.WaitGroup
	for i, dsn := range o.database {
		wg.Go(func() {
			for n := range next {
				c, tables := Random(*seed, n)
				debezium, walpost, err := o.both(t.Context(), c, dsn, i)
				mu.Lock()
				connectors++
				switch {
				case err != nil:
					t.Errorf("%s: %v\n%s", c.Name, err, c.Text())
				default:
					ran += tables
					records += len(debezium.Records)
					if debezium.Failure != "" {
						refused++
						reasons[addressed.ReplaceAllString(debezium.Failure, "…")]++
					}
					c.Want = debezium.String()
					if difference := walpost.Compare(c.Want); difference != "" {
						differ++
						t.Errorf("%s:\n%sDebezium: %s\nwalpost: %s\n\n", c.Name, difference, debezium.Failure, walpost.Failure)
						found.Cases = append(found.Cases, c)
					}
				}
				mu.Unlock()
			}
		})
	}
	for n := *first; ; n++ {
		mu.Lock()
		enough := ran >= *randomCases
		mu.Unlock()
		if enough {
			break
		}
		next <- n
	}
	close(next)
	wg.Wait()
	fmt.Printf("seed %d: %d cases on %d connectors, %d records, %d connectors failed, %d differ\n", *seed, ran, connectors, records, refused, differ)
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Printf("  failed %3d times: %.160s\n", reasons[reason], reason)
	}
	if differ > 0 && *foundDir != "" {
		if err := os.WriteFile(found.Path, found.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// addressed matches what differs between reasons of one kind.
var addressed = regexp.MustCompile(`random_\w+|[0-9]+`)

// both runs one case on Debezium and on walpost.
func (o *oracle) both(ctx context.Context, c *Case, dsn string, place int) (debezium, walpost Outcome, err error) {
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
		d := Debezium{Worker: o.worker, Brokers: o.kafka.Brokers()}
		debezium, errD = d.Run(ctx, c, p, p.Slots[0])
	})
	wg.Go(func() { walpost, errW = new(Relay).Run(ctx, c, p, p.Slots[1]) })
	wg.Wait()
	return debezium, walpost, errors.Join(errD, errW)
}
