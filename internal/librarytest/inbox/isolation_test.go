package inbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// set opens a pool whose sessions have a parameter set.
func (b *base) set(name, value string) *pgxpool.Pool {
	b.Helper()
	config := b.pool.Config()
	config.ConnConfig.RuntimeParams[name] = value
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// Ten pods start and keep the tables small, where a snapshot lasts until the end of its transaction.
func TestMigrateAndRetainReadWhatOthersHaveCommitted(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			b := &base{T: t, pg: testenv.Postgres(t, "")}
			b.dsn = b.pg.Database(t)
			b.pool = b.connect("")
			db := inbox.Pgx(b.set("default_transaction_isolation", level))
			var mu sync.Mutex
			var dropped []int64
			all := func(do func() error) {
				t.Helper()
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						if err := do(); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			}
			all(func() error { return db.Migrate(t.Context()) })
			for range 5 {
				b.exec(`INSERT INTO inbox_messages (consumer, scope, event_id, lane, topic, partition, "offset", time, state, processed_at)
					SELECT 'c', 't', n, 'x', 't', 0, n, now(), 'processed', '-infinity' FROM generate_series(1, 20000) n`)
				b.exec(`UPDATE inbox_generations SET started_at = started_at - interval '100 days', ended_at = ended_at - interval '10 days'
					WHERE started_at > '-infinity'`)
				all(func() error {
					done, err := db.Retain(t.Context(), inbox.Retention{LockWait: time.Minute})
					mu.Lock()
					defer mu.Unlock()
					dropped = append(dropped, done.Dropped...)
					return err
				})
				b.expect("0", "SELECT count(*) FROM inbox_messages")
			}
			if slices.Sort(dropped); !slices.Equal(dropped, []int64{1, 2, 3}) {
				t.Errorf("dropped %v", dropped)
			}
		})
	}
}

// A schema's name is data: no part of it stands for anything else.
func TestTheNameOfASchemaIsLeftAsItIs(t *testing.T) {
	b := newBase(t, "")
	r := inbox.Retention{Keep: 7 * time.Hour}
	names := []string{"tenant1", "tenant@1", "tenant@@1", "$inbox$", "$inbox$$iinbox$"}
	dbs := map[string]*inbox.DB[pgx.Tx]{}
	for _, name := range names {
		quoted := pgx.Identifier{name}.Sanitize() // b.exec replaces @
		if _, err := b.pool.Exec(t.Context(), "CREATE SCHEMA "+quoted); err != nil {
			t.Fatal(err)
		}
		if err := inbox.Pgx(b.pool).In(inbox.Schema(name)).Migrate(t.Context()); err != nil {
			t.Errorf("migrate %s: %v", name, err)
			continue
		}
		dbs[name] = inbox.Pgx(b.set("search_path", quoted)) // Postgres finds the schema
		if fresh, err := dbs[name].Once(t.Context(), "c", event("a"), nothing); !fresh || err != nil {
			t.Errorf("%s: %t, %v", name, fresh, err)
		}
	}
	for i, name := range names {
		db := dbs[name]
		if i == 0 || db == nil { // tenant1 keeps its marks
			continue
		}
		for turn := range 2 {
			quoted := pgx.Identifier{name}.Sanitize()
			if _, err := b.pool.Exec(t.Context(), "UPDATE "+quoted+`.inbox_generations SET started_at = started_at - interval '100 days',
				ended_at = ended_at - interval '8 hours' WHERE started_at > '-infinity'`); err != nil {
				t.Fatal(err)
			}
			if done, err := db.Retain(t.Context(), r); err != nil || len(done.Dropped) != turn {
				t.Errorf("%s: %+v, %v", name, done, err)
			}
		}
		if got := b.pg.Value(t, b.dsn, "SELECT count(*) FROM "+pgx.Identifier{name}.Sanitize()+".inbox_processed"); got != "0" {
			t.Errorf("%s has %s marks", name, got)
		}
	}
	if fresh, err := dbs["tenant1"].Once(t.Context(), "c", event("a"), nothing); fresh || err != nil {
		t.Errorf("the mark of tenant1 is gone: %t, %v", fresh, err)
	}
}
