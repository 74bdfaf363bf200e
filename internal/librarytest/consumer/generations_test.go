//go:build linux || darwin

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
)

// A forgetting calls Retain every second, by the role of the service. No event of the test expires, because that would repeat its effect:
// the generations 2 to 4 have marks of another consumer, and whenever one of them is empty, it gets new ones, which have expired. The
// events are marked in the others, of which there are enough.
type forgetting struct {
	t       *testing.T
	pool    *pgxpool.Pool
	allowed atomic.Int64 // how many generations may have begun
	end     func()

	// After end:
	calls, busy int // of Retain, and those that found the table in use
	began       int // generations
	marks       int // that were removed
}

const (
	others     = 3 // generations with another consumer's marks
	turns      = 24
	otherMarks = 500 // in each generation
)

// newService makes the role of a service with the privileges of docs/consume-events.md, which owns nothing.
func newService(t *testing.T, pool *pgxpool.Pool) (role string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT 'service_' || current_database()").Scan(&role); err != nil {
		t.Fatal(err)
	}
	_, err := pool.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %[1]s LOGIN;
		GRANT SELECT, INSERT, DELETE ON inbox_processed TO %[1]s;
		GRANT SELECT, UPDATE ON inbox_generations, inbox_retention TO %[1]s;
		GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_messages TO %[1]s;
		GRANT INSERT ON effects TO %[1]s`, role))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	return role
}

func forget(t *testing.T, pool *pgxpool.Pool, role string) *forgetting {
	t.Helper()
	_, err := pool.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN FOR n IN 7 .. %d LOOP
		EXECUTE format('CREATE TABLE inbox_processed_%%s PARTITION OF inbox_processed FOR VALUES IN (%%1$s)', n);
		INSERT INTO inbox_generations VALUES (n, '-infinity', '-infinity');
	END LOOP; END $$`, 1+others+turns))
	if err != nil {
		t.Fatal(err)
	}
	config := pool.Config()
	config.ConnConfig.User = role
	service, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	f := &forgetting{t: t, pool: pool}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		db := inbox.Pgx(service)
		for ticks := time.Tick(time.Second); ctx.Err() == nil; {
			f.one(ctx, db.Retain)
			select {
			case <-ticks:
			case <-ctx.Done():
			}
		}
	}()
	f.end = sync.OnceFunc(func() {
		stop()
		<-done
		service.Close()
	})
	t.Cleanup(f.end)
	return f
}

// one gives Retain something to do, and calls it.
func (f *forgetting) one(ctx context.Context, retain func(context.Context, inbox.Retention) (inbox.Retained, error)) {
	age := "UPDATE inbox_retention SET pause_until = now()"
	if int64(f.began) < f.allowed.Load() {
		age += "; UPDATE inbox_generations SET started_at = now() - interval '1 year' WHERE ended_at IS NULL"
	}
	_, err := f.pool.Exec(ctx, fmt.Sprintf(`WITH empty AS (
			UPDATE inbox_generations SET started_at = now() - interval '1 year', ended_at = now() - interval '2 days'
			WHERE generation BETWEEN 2 AND %d AND ended_at = '-infinity' RETURNING generation)
		INSERT INTO inbox_processed (generation, consumer, scope, event_id)
		SELECT generation, 'other', 't', 'event ' || n FROM empty, generate_series(1, %d) n; `, 1+others, otherMarks)+age)
	if err != nil {
		if ctx.Err() == nil {
			f.t.Error(err)
		}
		return
	}
	r, err := retain(ctx, inbox.Retention{Keep: 24 * time.Hour})
	if ctx.Err() != nil {
		return
	}
	f.calls++
	if errors.As(err, new(*inbox.BusyError)) {
		f.busy++
	} else if err != nil {
		f.t.Errorf("Retain: %v", err)
	}
	if r.Began != 0 {
		f.began++
	}
	if len(r.Dropped) == 0 {
		return
	}
	var left int
	if err := f.pool.QueryRow(ctx, "SELECT count(*) FROM inbox_processed WHERE generation = ANY ($1)", r.Dropped).Scan(&left); err != nil {
		if ctx.Err() == nil {
			f.t.Error(err)
		}
		return
	}
	if left > 0 || slices.Max(r.Dropped) > 1+others || slices.Min(r.Dropped) < 2 {
		f.t.Errorf("Retain says that it emptied the generations %d, which have %d marks", r.Dropped, left)
	}
	f.marks += otherMarks * len(r.Dropped)
}
