package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// A load is a shop that writes while the test goes on.
type load struct {
	*shop.Shop
	done chan struct{} // closed when it has written all its rows, or was stopped
	stop func()
}

// load starts work. It ends when work.Rows are committed, when stop is called, or with the test.
func (s *setting) load(work *shop.Shop) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{Shop: work, done: make(chan struct{})}
	work.DSN = s.dsn
	go func() {
		defer close(l.done)
		if err := work.Run(ctx); err != nil {
			s.t.Errorf("shop: %v", err)
		}
	}()
	l.stop = sync.OnceFunc(func() { cancel(); <-l.done })
	s.t.Cleanup(l.stop)
	return l
}

// reach waits until so many rows are committed.
func (l *load) reach(t *testing.T, rows int64) {
	t.Helper()
	eventually(t, 2*time.Minute, fmt.Sprintf("%d rows committed", rows), func() bool { return l.Committed() >= rows })
}

// count is how many records have arrived, duplicates included.
func (w *watch) count() int {
	records, _ := w.ledger.Arrived()
	return records
}

// more waits until n more records have arrived than now. What must have been written before the call, such as one row, can
// arrive before it too: that is for total.
func (w *watch) more(t *testing.T, limit time.Duration, n int) {
	t.Helper()
	w.total(t, limit, w.count()+n)
}

// total waits until n records have arrived since the beginning.
func (w *watch) total(t *testing.T, limit time.Duration, n int) {
	t.Helper()
	eventually(t, limit, fmt.Sprintf("%d records arrived", n), func() bool { return w.count() >= n })
}

// expect waits, in expected, for a record with a key that has not been used before.
func (w *watch) expect(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted == nil {
		w.wanted = map[string]bool{}
	}
	w.wanted[key] = true
}

// expected is how many of the keys have not arrived.
func (w *watch) expected() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wanted)
}

// walsender is the process that serves the setting's slot, "" when there is none.
func (s *setting) walsender(pg *testenv.PG) string {
	s.t.Helper()
	return pg.Value(s.t, s.dsn, `SELECT max(active_pid)::text FROM pg_replication_slots WHERE database = current_database()`)
}

// notReady waits until readiness is false with a reason that has one of the words in it, and returns the reason.
func (r *relay) notReady(limit time.Duration, words ...string) (reason string) {
	r.t.Helper()
	limit = max(limit, patience)
	give := time.Now().Add(limit)
	for {
		code, body := r.get("/readyz")
		reason = body
		for _, word := range words {
			if code == 503 && strings.Contains(body, word) {
				return reason
			}
		}
		if time.Now().After(give) {
			r.t.Fatalf("readiness after %s: %d %q, wanted 503 with one of %q", limit, code, body, words)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// onceEach settles and wants everything exactly once, in order.
func (s *setting) onceEach(w *watch, limit time.Duration) {
	s.t.Helper()
	if rep := s.settle(w, limit); !rep.OK() || rep.Duplicates > 0 {
		s.t.Errorf("without a crash everything arrives once and in order, but: %s", &rep)
	}
}

// noLoss settles and wants everything in order, replays contiguous and byte-identical.
func (s *setting) noLoss(w *watch, limit time.Duration) (duplicates int) {
	s.t.Helper()
	rep := s.settle(w, limit)
	if !rep.OK() {
		s.t.Errorf("broken promises: %s", &rep)
	}
	return rep.Duplicates
}

// stopsClean stops and wants exit code 0.
func (r *relay) stopsClean() {
	r.t.Helper()
	if r.ended() {
		r.t.Error("the relay ended before SIGTERM")
	}
	if code := r.stop(); code != 0 {
		r.t.Errorf("exit code %d after SIGTERM", code)
	}
}

const mib = 1 << 20
