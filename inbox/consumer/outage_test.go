package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/inbox"
)

// While Postgres is away, one batch after another fails. They must not all become single messages in a moment.
func TestABatchIsSplitAfterAPauseIfPostgresIsUnavailable(t *testing.T) {
	code := func(state string) error { return fmt.Errorf("handle: %w", &pgconn.PgError{Code: state}) }
	for what, of := range map[string]struct {
		err    error
		pauses bool
	}{
		"no connection":         {fmt.Errorf("begin: %w", &pgconn.ConnectError{}), true},
		"a broken connection":   {code("08006"), true},
		"too many clients":      {code("53300"), true},
		"a shutdown":            {code("57P01"), true},
		"a table":               {code("42P01"), false},
		"a timeout":             {code("57014"), false},
		"the handler's own":     {errors.New("broken"), false},
		"a service, for a time": {inbox.Retryable(errors.New("broken")), false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var calls []string
				c, err := New(Config{
					Brokers: []string{"b:1"}, Group: "g", Topics: []string{"t"}, BatchSize: 2, Concurrency: 1, BackoffMin: time.Second, BackoffMax: time.Minute,
					Logger: slog.New(slog.DiscardHandler),
					BatchHandler: func(_ context.Context, batch []inbox.Message) error {
						mu.Lock()
						defer mu.Unlock()
						var ids []string
						for _, m := range batch {
							ids = append(ids, m.ID)
						}
						calls = append(calls, strings.Join(ids, "+"))
						if len(batch) > 1 && len(calls) <= 3 {
							return of.err
						}
						return nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				p := newPartition(t.Context(), place{"t", 0})
				c.mu.Lock()
				c.s.partitions[p.place] = p
				for i := range 8 {
					id := fmt.Sprint(i)
					c.s.add(p, &item{msg: inbox.Message{ID: id, Key: []byte(id)}, offset: int64(i)})
				}
				c.dispatch()
				c.mu.Unlock()
				seen := func() []string {
					mu.Lock()
					defer mu.Unlock()
					return slices.Clone(calls)
				}
				// The pauses take a half to all of 1 s, 2 s and 4 s.
				for n, wait := range []time.Duration{0, time.Second, 2 * time.Second} {
					if !of.pauses {
						break
					}
					time.Sleep(wait)
					synctest.Wait()
					if s := c.Stats(); len(seen()) != n+1 || s.Split != uint64(n+1) || s.InFlight != 0 {
						t.Fatalf("after %d pauses: calls %q, %+v", n, seen(), s)
					}
				}
				if of.pauses {
					time.Sleep(4 * time.Second)
				}
				synctest.Wait()
				if got := strings.Join(seen(), " "); got != "0+1 2+3 4+5 6+7 0 1 2 3 4 5" {
					t.Errorf("calls %s", got)
				}
				if s := c.Stats(); s.Handled != 8 || s.Split != 3 || s.InFlight != 0 || s.Failed != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}
