package relay

import (
	"context"
	"sync"
	"time"
)

const helperLimit = 5 * time.Second // for goroutines beside the loop to end

// tasks are the goroutines beside the loop. They end with background, and report by sending a
// function that the loop calls.
type tasks struct {
	background context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	reports    chan func()
}

func newTasks() *tasks {
	t := &tasks{reports: make(chan func(), 3)}
	t.background, t.cancel = context.WithCancel(context.Background())
	return t
}

// beside runs work beside the loop, and the function that work returns on the loop.
func (t *tasks) beside(work func() (report func())) {
	t.wg.Go(func() { t.report(work()) })
}

// report has the loop call f, unless the run ends before. It is called beside the loop.
func (t *tasks) report(f func()) {
	select {
	case t.reports <- f:
	case <-t.background.Done():
	}
}

// within calls do with a context that ends after limit.
func (t *tasks) within(limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(t.background, limit)
	defer cancel()
	return do(ctx)
}

// end ends all goroutines. It reports whether they have returned in time.
func (t *tasks) end() bool {
	t.cancel()
	done := make(chan struct{})
	go func() {
		t.wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(helperLimit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
