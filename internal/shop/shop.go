// Package shop is the workload of the demo and the end-to-end tests: a small service that changes
// its tables and writes outbox rows in the same transaction, and a consumer of the records.
package shop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/ledger"
	"github.com/walpost/walpost/internal/wait"
)

// Schema creates the shop's tables in a new database.
const Schema = `
CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL, changed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE outbox (
	id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	aggregate_type text NOT NULL,
	aggregate_id   text NOT NULL,
	event_type     text NOT NULL,
	payload        jsonb NOT NULL,
	created_at     timestamptz NOT NULL DEFAULT now()
);`

// Types are the aggregate types of the events, which are the ends of the topics' names.
var Types = []string{"order", "invoice"}

// Topics are the topics that the router's defaults give.
func Topics() []string {
	topics := make([]string, len(Types))
	for i, t := range Types {
		topics[i] = "outbox.event." + t
	}
	return topics
}

const keysOfWriter = 20

// A Shop writes outbox rows. Each writer has its own keys, so n in the payload numbers the events
// of a key in commit order, from 1 without gaps. A transaction that is rolled back uses no numbers.
type Shop struct {
	DSN     string
	Writers int
	Rows    int64         // the number of committed rows, roughly, after which it stops; 0 is no limit
	MaxRows int           // most rows of a transaction; 0 is 50
	Pause   time.Duration // of each writer after each transaction
	Seed    uint64
	Tag     string // begins the keys: each shop on a table needs another one
	History string // the table that keeps every row, if rows are removed from outbox; "" is outbox

	// Wild adds transactions of 1,500 rows, ones that delete their rows again, ones with 1,000 other keys, and, if the server
	// takes them, prepared ones. It needs a History.
	Wild bool
	// Wrote, if not nil, gets the highest number of each key of a committed transaction, and a position behind the commit.
	Wrote func(numbers map[string]int64, behind uint64)

	committed atomic.Int64
}

// Committed is the number of committed rows.
func (s *Shop) Committed() int64 { return s.committed.Load() }

// Run writes until ctx ends or Rows are committed, and then returns nil. It opens a lost connection
// again.
func (s *Shop) Run(ctx context.Context) error {
	s.MaxRows = cmp.Or(s.MaxRows, 50)
	errs := make([]error, s.Writers)
	var wg sync.WaitGroup
	for i := range s.Writers {
		wg.Go(func() { errs[i] = s.write(ctx, i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *Shop) done(ctx context.Context) bool {
	return ctx.Err() != nil || s.Rows > 0 && s.committed.Load() >= s.Rows
}

func (s *Shop) write(ctx context.Context, id int) error {
	rnd := rand.New(rand.NewPCG(s.Seed, uint64(id)))
	for !s.done(ctx) {
		err := s.session(ctx, id, rnd)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		var sql interface{ SQLState() string }
		if errors.As(err, &sql) && sql.SQLState()[:2] != "57" && sql.SQLState()[:2] != "08" {
			return fmt.Errorf("writer %d: %w", id, err)
		}
		wait.For(ctx, 200*time.Millisecond)
	}
	return nil
}

// session writes on one connection. Its counters come from the table, because the answer to a
// commit may have been lost.
func (s *Shop) session(ctx context.Context, id int, rnd *rand.Rand) error {
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	prefix := fmt.Sprintf("%s%d-", s.Tag, id)
	if err := finishPrepared(ctx, conn, prefix); err != nil {
		return err
	}
	next := map[string]int64{}
	rows, err := conn.Query(ctx, `SELECT aggregate_id, max((payload->>'n')::bigint) FROM `+cmp.Or(s.History, "outbox")+` WHERE starts_with(aggregate_id, $1) GROUP BY 1`, prefix)
	if err != nil {
		return err
	}
	var key string
	var n int64
	if _, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { next[key] = n; return nil }); err != nil {
		return err
	}
	for !s.done(ctx) {
		if err := s.transaction(ctx, conn, prefix, next, rnd); err != nil {
			return err
		}
		if s.Pause > 0 {
			wait.For(ctx, s.Pause)
		}
	}
	return nil
}

// transaction changes orders and writes their events, by single statements or by COPY, whose rows
// share one LSN. One transaction in ten is rolled back, and one in ten rolls back to a savepoint.
func (s *Shop) transaction(ctx context.Context, conn *pgx.Conn, prefix string, next map[string]int64, rnd *rand.Rand) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it does nothing after a commit
	count, copied, undone := 1+rnd.IntN(s.MaxRows), rnd.IntN(4) == 0, rnd.IntN(10) == 0
	shape, keys := shape(0), keysOfWriter
	if s.Wild {
		shape = pick(rnd)
	}
	switch shape {
	case large:
		count, copied = 1500, true
	case manyKeys:
		count, copied, keys = 50, true, 1000
	case plain, deleted, prepared:
	}
	counters := map[string]int64{}
	write := func(tx pgx.Tx, n int, counters map[string]int64) error {
		var events [][]any
		for range n {
			k := rnd.IntN(keys)
			key := prefix + strconv.Itoa(k)
			if _, ok := counters[key]; !ok {
				counters[key] = next[key]
			}
			counters[key]++
			events = append(events, []any{Types[k%len(Types)], key, "Changed", fmt.Sprintf(`{"n": %d, "note": "%x"}`, counters[key], rnd.Uint64())})
		}
		cols := []string{"aggregate_type", "aggregate_id", "event_type", "payload"}
		if copied {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"outbox"}, cols, pgx.CopyFromRows(events))
			return err
		}
		var b pgx.Batch
		b.Queue(`INSERT INTO orders VALUES ($1, 'changed') ON CONFLICT (id) DO UPDATE SET status = 'changed', changed_at = now()`, events[0][1])
		for _, e := range events {
			b.Queue(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4)`, e...)
		}
		return tx.SendBatch(ctx, &b).Close()
	}
	if undone {
		sp, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := write(sp, 1+rnd.IntN(5), map[string]int64{}); err != nil {
			return err
		}
		if err := sp.Rollback(ctx); err != nil {
			return err
		}
	}
	if err := write(tx, count, counters); err != nil {
		return err
	}
	if shape == deleted {
		if _, err := tx.Exec(ctx, `DELETE FROM outbox WHERE xmin = pg_current_xact_id()::xid`); err != nil {
			return err
		}
	}
	if rnd.IntN(10) == 0 {
		return tx.Rollback(ctx)
	}
	// Run waits for the answer to a COMMIT, so that nothing is committed after Run has returned.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if shape == prepared {
		if _, err := tx.Exec(end, fmt.Sprintf("PREPARE TRANSACTION '%s%d'", prefix, rnd.Uint64())); err != nil {
			return err
		}
		if err := finishPrepared(end, conn, prefix); err != nil {
			return err
		}
	}
	if err := tx.Commit(end); err != nil && shape != prepared { // it is over
		return err
	}
	if s.Wrote != nil {
		var behind int64
		if err := conn.QueryRow(end, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&behind); err != nil {
			return err
		}
		s.Wrote(counters, uint64(behind))
	}
	for k, n := range counters {
		next[k] = n
	}
	s.committed.Add(int64(count))
	return nil
}

// Truth enters every row of the outbox, as committed, into l.
func Truth(ctx context.Context, dsn string, l *ledger.Ledger) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	rows, err := conn.Query(ctx, `SELECT id::text, aggregate_id, (payload->>'n')::bigint FROM outbox`)
	if err != nil {
		return err
	}
	var id, key string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &n}, func() error { l.Commit(id, key, n); return nil })
	return err
}
