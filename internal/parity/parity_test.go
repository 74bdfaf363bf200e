//go:build linux || darwin

package parity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

const corpus = "../../router/testdata/debezium"

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestRecordsEqualDebeziums runs every case of the corpus through walpost, from a real Postgres to what a consumer reads. The cases
// say what Debezium wrote; TestRecord records it again.
func TestRecordsEqualDebeziums(t *testing.T) {
	files, err := ReadCorpus(corpus)
	if err != nil {
		t.Fatal(err)
	}
	list, err := ReadList(filepath.Join(corpus, "DIFFERENCES"))
	if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t, "", testenv.Param("max_connections", "300"), testenv.Param("autovacuum", "off"))
	next := make(chan *Case)
	var mu sync.Mutex
	ran, differ := 0, 0
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 4 * runtime.GOMAXPROCS(0) {
		dsn := pg.Database(t)
		wg.Go(func() {
			for c := range next {
				wrong, different := replay(t.Context(), c, dsn, fmt.Sprintf("replay_%d", i), list)
				mu.Lock()
				ran++
				seen[c.Slug()] = true
				if different {
					differ++
				}
				if wrong != "" {
					t.Errorf("%s %s", c.Slug(), wrong)
				}
				mu.Unlock()
			}
		})
	}
	match, err := regexp.Compile(*cases)
	if err != nil {
		t.Fatalf("-case: %v", err)
	}
	for _, f := range files {
		for _, c := range f.Cases {
			if match.MatchString(c.Slug()) {
				next <- c
			}
		}
	}
	close(next)
	wg.Wait()
	if *cases == "" {
		for name := range list {
			if !seen[name] {
				t.Errorf("%s is listed as different and is no case", name)
			}
		}
		if ran < 700 {
			t.Errorf("only %d cases", ran)
		}
	}
	t.Logf("%d cases, %d of them different on purpose", ran, differ)
}

func replay(ctx context.Context, c *Case, dsn, name string, list List) (wrong string, different bool) {
	if c.Want == "" {
		return "has no record of what Debezium writes: run TestRecord with -record -missing", false
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no end after a minute"))
	defer cancel()
	p, err := c.Put(ctx, dsn, name, 1)
	if err != nil {
		return "cannot be put: " + err.Error(), false
	}
	got, err := new(Relay).Run(ctx, c, p, p.Slots[0])
	if err = errors.Join(err, p.Leave(context.WithoutCancel(ctx))); err != nil {
		return "cannot be run: " + err.Error(), false
	}
	difference := got.Compare(c.Want)
	if wrong = list.Judge(c, difference); wrong != "" && got.Failure != "" {
		wrong += "walpost says: " + got.Failure + "\n"
	}
	return wrong, difference != ""
}
