package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// markOfVersion1 is the statement by which version 1 marked an event.
const markOfVersion1 = `WITH fence AS MATERIALIZED (
	SELECT 1 FROM inbox_generations
	WHERE ended_at IS NULL AND current_setting('transaction_isolation') <> 'read committed' FOR SHARE)
INSERT INTO inbox_processed (generation, consumer, scope, event_id)
	SELECT (SELECT generation FROM inbox_generations WHERE ended_at IS NULL), $1::text, $2::text, $3::text
	WHERE (SELECT true FROM inbox_processed WHERE consumer = $1::text AND scope = $2::text AND event_id = $3::text LIMIT 1) IS NULL
		AND (SELECT count(*) FROM fence) < 2
	ON CONFLICT DO NOTHING`

// version1 makes the tables of version 1 with events a1, a2 and so on, each in a generation of its
// own. The first ones are dropped already, as Retain of version 1 did it.
func version1(t *testing.T, b *base, generations, dropped int) {
	t.Helper()
	up, _ := inbox.Schema("").DDL(0)
	rest, _ := inbox.Schema("").DDL(1)
	first, is := strings.CutSuffix(up, rest)
	if !is {
		t.Fatal("the SQL for a new database does not end with that for version 1")
	}
	b.exec(first)
	for n := 1; n <= generations; n++ {
		if n > 1 {
			b.exec(fmt.Sprintf(`CREATE TABLE inbox_processed_%d PARTITION OF inbox_processed FOR VALUES IN (%[1]d);
				UPDATE inbox_generations SET ended_at = clock_timestamp() WHERE ended_at IS NULL;
				INSERT INTO inbox_generations (generation, started_at) VALUES (%[1]d, clock_timestamp())`, n))
		}
		if _, err := b.pool.Exec(t.Context(), markOfVersion1, "c", "t", fmt.Sprint("a", n)); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= dropped; n++ {
		b.exec(fmt.Sprintf("DROP TABLE inbox_processed_%d; DELETE FROM inbox_generations WHERE generation = %[1]d", n))
	}
}

// Consumers of both versions deliver all the time, while the tables get version 2, go back to version
// 1, and get version 2 again.
func TestTheTablesAreUpgradedUnderRunningConsumers(t *testing.T) {
	for _, version := range []string{"14", "18"} {
		for _, generations := range []int{1, 5, 12} {
			t.Run(fmt.Sprintf("%s with %d", version, generations), func(t *testing.T) {
				b := &base{T: t, pg: testenv.Postgres(t, version)}
				b.dsn = b.pg.Database(t)
				b.pool = b.connect("")
				b.exec("CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, id text)")
				dropped := min(generations-1, 3)
				version1(t, b, generations, dropped)
				db := inbox.Pgx(b.pool)
				if _, err := db.Retain(t.Context(), inbox.Retention{}); err == nil || !strings.Contains(err.Error(), "have version 1, but this program needs version 2") {
					t.Errorf("Retain on tables of version 1: %v", err)
				}

				var delivered atomic.Int64
				var wg sync.WaitGroup
				ctx, stop := context.WithCancel(t.Context())
				write := func(ctx context.Context, tx pgx.Tx, id string) error {
					_, err := tx.Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", id)
					return err
				}
				for n := range 4 {
					wg.Go(func() {
						for i := 0; ctx.Err() == nil; i++ {
							id := fmt.Sprint(max(0, i-n)) // each event is delivered four times, at about the same time
							var err error
							if n%2 == 0 {
								_, err = db.Once(t.Context(), "c", message(id), func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, id) })
							} else {
								err = pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
									tag, err := tx.Exec(t.Context(), markOfVersion1, "c", "t", id)
									if err == nil && tag.RowsAffected() == 1 {
										err = write(t.Context(), tx, id)
									}
									return err
								})
							}
							if err != nil {
								t.Errorf("a consumer during the migration: %v", err)
								return
							}
							delivered.Add(1)
						}
					})
				}
				moveOn := func() {
					t.Helper()
					for from, limit := delivered.Load(), time.Now().Add(time.Minute); delivered.Load() < from+200 && !t.Failed(); time.Sleep(time.Millisecond) {
						if time.Now().After(limit) {
							t.Fatal("the consumers do not go on")
						}
					}
				}
				up, down := inbox.Schema("").DDL(1)
				migrate := func(sql string) {
					t.Helper()
					err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), sql); return err })
					if err != nil {
						t.Errorf("migrate: %v", err)
					}
				}
				moveOn()
				migrate(up)
				moveOn()
				b.exec("CREATE TABLE \"inbox_processed_-1\" PARTITION OF inbox_processed FOR VALUES IN (-1); INSERT INTO inbox_generations VALUES (-1, '-infinity', '-infinity')")
				for again := true; again; { // until no generation is free: the last one is -1
					b.age(1)
					done, err := db.Retain(t.Context(), inbox.Retention{Keep: 7 * 24 * time.Hour, LockWait: time.Minute})
					if err != nil || done.Dropped != nil {
						t.Errorf("Retain of version 2: %+v, %v", done, err)
					}
					moveOn()
					again = done.Began > 0
				}
				b.expect("-1", "SELECT generation FROM inbox_generations WHERE ended_at IS NULL")
				migrate(down)
				moveOn()
				b.expect("1", "SELECT count(*) FROM inbox_generations WHERE ended_at IS NULL AND generation = (SELECT max(generation) FROM inbox_generations)")
				b.expect("0", "SELECT count(*) FROM inbox_generations WHERE ended_at = '-infinity'")
				if err := db.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
				moveOn()
				stop()
				wg.Wait()
				b.expect("0", "SELECT count(*) - count(DISTINCT id) FROM effects")
				b.expect("0", "SELECT count(*) - (SELECT count(*) FROM inbox_processed WHERE event_id !~ '^a') FROM effects")
				for n := dropped + 1; n <= generations; n++ {
					b.once(db, false, fmt.Sprint("a", n))
				}
				b.expect("2", "SELECT version FROM inbox_retention")
				b.age(2000)
				b.exec("UPDATE inbox_retention SET keep = '0'")
				done, err := db.Retain(t.Context(), inbox.Retention{})
				if err != nil || len(done.Dropped) < generations-dropped-1 || done.Began == 0 {
					t.Errorf("the former generations: %+v, %v", done, err)
				}
				b.exec(whole(t))
				b.expect("0", "SELECT count(*) FROM pg_class WHERE relname ~ '^inbox_'")
			})
		}
	}
}

// whole is the SQL that removes everything.
func whole(t *testing.T) string {
	t.Helper()
	_, down := inbox.Schema("").DDL(0)
	return down
}

// Ten pods start with an empty database, and later with a new version of the tables.
func TestAnyNumberOfProcessesCanMigrate(t *testing.T) {
	b := &base{T: t, pg: testenv.Postgres(t, "")}
	b.dsn = b.pg.Database(t)
	b.pool = b.connect("")
	db := inbox.Pgx(b.pool)
	migrate := func() {
		t.Helper()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := db.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		b.expect("2 6", "SELECT concat_ws(' ', (SELECT version FROM inbox_retention), (SELECT count(*) FROM inbox_generations))")
	}
	migrate()
	_, down := inbox.Schema("").DDL(1)
	b.exec(down)
	migrate()
	b.exec("UPDATE inbox_retention SET version = 3")
	for what, err := range map[string]error{"Migrate": db.Migrate(t.Context()), "Retain": retain(t, db)} {
		if err == nil || !strings.Contains(err.Error(), "have version 3, but this program uses version 2: update the program") {
			t.Errorf("%s with tables of a later version: %v", what, err)
		}
	}
	b.exec(whole(t))
	if err := retain(t, db); err == nil || !strings.Contains(err.Error(), "the tables of the inbox are missing: call Migrate") {
		t.Errorf("Retain without tables: %v", err)
	}
}

func retain(t *testing.T, db *inbox.DB[pgx.Tx]) error {
	_, err := db.Retain(t.Context(), inbox.Retention{})
	return err
}
