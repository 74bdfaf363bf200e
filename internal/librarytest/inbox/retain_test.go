package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/testenv"
)

// A base is a database with the tables in the schema box, which the search_path does not have.
type base struct {
	*testing.T
	pg   *testenv.PG
	dsn  string
	pool *pgxpool.Pool
	db   *inbox.DB[pgx.Tx]
	// The name of a table in SQL begins with it.
	prefix string
}

const box = inbox.Schema(`the "box's"`)

func newBase(t *testing.T, version string) *base {
	t.Helper()
	b := &base{T: t, pg: testenv.Postgres(t, version), prefix: `"the ""box's""".`}
	b.dsn = b.pg.Database(t)
	b.pool = b.connect("")
	b.db = inbox.Pgx(b.pool).In(box)
	b.exec(`CREATE SCHEMA "the ""box's"""; CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, id text)`)
	if err := b.db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// connect opens a pool as a role, or as the owner.
func (b *base) connect(role string) *pgxpool.Pool {
	b.Helper()
	config, err := pgxpool.ParseConfig(b.dsn)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 20
	if role != "" {
		config.ConnConfig.User = role
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// role makes a role with privileges on the tables. A % stands for the schema.
func (b *base) role(grants ...string) string {
	b.Helper()
	name := "service_" + b.pg.Value(b.T, b.dsn, "SELECT current_database()")
	b.exec("CREATE ROLE " + name + " LOGIN; GRANT INSERT ON effects TO " + name + `; GRANT USAGE ON SCHEMA "the ""box's""" TO ` + name)
	for _, g := range grants {
		b.exec("GRANT " + strings.ReplaceAll(g, "%", `"the ""box's"""`) + " TO " + name)
	}
	b.Cleanup(func() {
		if _, err := b.pool.Exec(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			b.Error(err)
		}
	})
	return name
}

// exec runs SQL with @ before the names of tables of the schema.
func (b *base) exec(sql string) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), b.named(sql)); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

func (b *base) named(sql string) string {
	return strings.ReplaceAll(sql, "@", b.prefix)
}

func (b *base) expect(want, sql string) {
	b.Helper()
	if got := b.pg.Value(b.T, b.dsn, b.named(sql)); got != want {
		b.Errorf("%s gives %q, want %q", sql, got, want)
	}
}

// age makes the current generation old enough to end, and the ended ones older by some hours.
func (b *base) age(hours int) {
	b.Helper()
	b.exec(fmt.Sprintf(`UPDATE @inbox_generations SET started_at = started_at - interval '100 days', ended_at = ended_at - interval '%d hours'
		WHERE started_at > '-infinity'`, hours))
}

func (b *base) once(db *inbox.DB[pgx.Tx], want bool, ids ...string) {
	b.Helper()
	for _, id := range ids {
		fresh, err := db.Once(b.Context(), "c", message(id), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", id)
			return err
		})
		if fresh != want || err != nil {
			b.Errorf("event %s is new: %t, %v; want %t", id, fresh, err, want)
		}
	}
}

func message(id string) inbox.Message { return inbox.Message{ID: id, Topic: "t", Key: []byte("k")} }

// The grants are those of the comment on DDL. A role that owns nothing keeps the tables small.
func TestARoleOfAServiceCanDoEverything(t *testing.T) {
	for name, grants := range map[string][]string{
		"each": {
			"SELECT, INSERT, DELETE ON %.inbox_processed", "SELECT, UPDATE ON %.inbox_generations", "SELECT, UPDATE ON %.inbox_retention",
			"SELECT, INSERT, UPDATE, DELETE ON %.inbox_messages",
		},
		"usual":    {"SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %"},
		"truncate": {"SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA %"},
	} {
		for _, version := range []string{"14", "18"} {
			t.Run(name+" "+version, func(t *testing.T) {
				b := newBase(t, version)
				db := inbox.Pgx(b.connect(b.role(grants...))).In(box)
				b.once(db, true, "a", "b")
				b.once(db, false, "a")
				if fresh, err := handleBatch(t.Context(), db, "c", message("c"), message("a")); len(fresh) != 1 || fresh[0].ID != "c" || err != nil {
					t.Errorf("batch: %+v, %v", fresh, err)
				}
				work(t, db, "stored")
				for turn := range 12 { // twice around: a generation is kept for 7 hours after its end
					b.age(2)
					began := int64(turn+1)%6 + 1
					done, err := db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour, Processed: time.Nanosecond})
					if err != nil || done.Began != began || turn < 4 && done.Dropped != nil || turn >= 4 && !slices.Equal(done.Dropped, []int64{int64(turn-4)%6 + 1}) {
						t.Errorf("turn %d: %+v, %v", turn, done, err)
					}
					b.once(db, turn == 4 || turn == 9, "a")
					b.once(db, true, fmt.Sprint("turn ", turn))
				}
				b.expect("0", "SELECT count(*) FROM @inbox_messages")
				// Each turn has left one mark, beside that of a: five generations are in use.
				b.expect("6", "SELECT count(*) FROM @inbox_processed")
				b.expect("5", "SELECT count(*) FROM @inbox_generations WHERE started_at > '-infinity'")
			})
		}
	}
}

// work stores messages in a transaction of its own and in one of the caller's, and handles them.
func work(t *testing.T, db *inbox.DB[pgx.Tx], consumer string) {
	t.Helper()
	if n, err := db.Store(t.Context(), consumer, message("a"), message("b"), message("dead")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w := inbox.Worker[pgx.Tx]{
		DB: db, Consumer: consumer, Concurrency: 1, Attempts: 2, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond, Poll: time.Millisecond,
		Handler: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if m.ID == "dead" {
				return errors.New("no")
			}
			_, err := tx.Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", m.ID)
			return err
		},
		Failed: func(f inbox.Failure) {
			if f.Dead || f.Message.ID == "" {
				stop()
			}
		},
	}
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if b, err := db.Backlog(t.Context(), consumer); b.Dead != 1 || b.Pending != 0 || err != nil {
		t.Errorf("backlog: %+v, %v", b, err)
	}
	n, err := db.RetryDead(t.Context(), consumer, "t", "dead")
	more, errAll := db.RetryAllDead(t.Context(), consumer)
	if n != 1 || more != 0 || err != nil || errAll != nil {
		t.Errorf("retried %d and %d, %v, %v", n, more, err, errAll)
	}
	w.Handler = func(context.Context, pgx.Tx, inbox.Message) error { stop(); return nil }
	ctx, stop = context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if b, err := db.Backlog(t.Context(), consumer); b.Dead+b.Pending != 0 || err != nil {
		t.Errorf("backlog: %+v, %v", b, err)
	}
}

// Two sets of tables in one database do not see each other's marks.
func TestTheTablesOfASchemaAreAloneInItsTransactions(t *testing.T) {
	b := newBase(t, "")
	b.exec("CREATE SCHEMA other")
	other := inbox.Schema("other")
	if err := inbox.Pgx(b.pool).In(other).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for turn := range 2 {
		for _, s := range []inbox.Schema{box, other} {
			err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
				fresh, err := s.Once(t.Context(), tx, "c", message("a"), func(context.Context) error { return nil })
				if fresh != (turn == 0) || err != nil {
					t.Errorf("schema %s, delivery %d: %t, %v", s, turn, fresh, err)
				}
				n, err := s.Store(t.Context(), tx, "stored", message("a"))
				if n != int64(1-turn) || err != nil {
					t.Errorf("schema %s, delivery %d: stored %d, %v", s, turn, n, err)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	b.expect("2 2 1 1", `SELECT concat_ws(' ', (SELECT count(*) FROM @inbox_processed), (SELECT count(*) FROM other.inbox_processed),
		(SELECT count(*) FROM @inbox_messages), (SELECT count(*) FROM other.inbox_messages))`)
	if _, err := inbox.Pgx(b.pool).Once(t.Context(), "c", message("a"), nil); err == nil || !strings.Contains(err.Error(), "inbox_") {
		t.Errorf("without the schema: %v", err)
	}
}

// A backup holds up neither the beginning of a generation nor its end: what cannot be truncated is
// deleted, and no caller pauses.
func TestAReaderDelaysNothing(t *testing.T) {
	b := newBase(t, "")
	b.once(b.db, true, "a")
	reader, err := b.pool.Begin(t.Context())
	if err == nil {
		_, err = reader.Exec(t.Context(), b.named("SELECT count(*) FROM @inbox_processed"))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	r := inbox.Retention{Keep: 7 * time.Hour, LockWait: 20 * time.Millisecond}
	for range 2 {
		b.age(4)
		if done, err := b.db.Retain(t.Context(), r); err != nil || done.Began == 0 {
			t.Errorf("a turn beside a reader: %+v, %v", done, err)
		}
	}
	b.age(4)
	if done, err := b.db.Retain(t.Context(), r); err != nil || done.Began != 4 || !slices.Equal(done.Dropped, []int64{1}) {
		t.Errorf("the end of a generation beside a reader: %+v, %v", done, err)
	}
	b.expect("0", "SELECT count(*) FROM @inbox_processed")
	b.expect("0", "SELECT failures FROM @inbox_retention")
}

// While one caller waits for its lock, another one has emptied a generation and begun it again.
func TestAGenerationThatBeganAgainIsNotEmptied(t *testing.T) {
	b := newBase(t, "")
	b.once(b.db, true, "a")
	b.age(8)
	if done, err := b.db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour}); err != nil || done.Began != 2 {
		t.Fatalf("%+v, %v", done, err)
	}
	long, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Rollback(context.Background()) }()
	if _, err := box.Once(t.Context(), long, "c", message("b"), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	b.age(8)
	done := make(chan inbox.Retained)
	go func() {
		r, err := b.db.Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour, LockWait: time.Minute})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	until(t, "it waits for the lock", func() bool {
		return b.pg.Value(t, b.dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1"
	})
	b.exec("UPDATE @inbox_generations SET ended_at = now() WHERE generation = 1")
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.Began != 3 || r.Dropped != nil {
		t.Errorf("%+v", r)
	}
	b.once(b.db, false, "a", "b")
}

// More marks than one transaction deletes. A process ends in the middle, and the next one goes on
// from there.
func TestAGenerationIsDeletedInParts(t *testing.T) {
	b := newBase(t, "")
	b.exec("INSERT INTO @inbox_processed (generation, consumer, scope, event_id) SELECT 1, 'c', 't', repeat('x', 900) || n FROM generate_series(1, 20000) n")
	b.expect("true", "SELECT pg_relation_size(oid) > 2000 * 8192 FROM pg_class WHERE relname = 'inbox_processed_1'")
	service := inbox.Pgx(b.connect(b.role("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %"))).In(box)
	b.exec(`CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the process ends'; END $$;
		CREATE TRIGGER stop BEFORE DELETE ON @inbox_processed_1 FOR EACH ROW WHEN (OLD.event_id LIKE '%x20000') EXECUTE FUNCTION stop()`)
	r := inbox.Retention{Keep: 7 * time.Hour}
	for _, want := range []string{"", "the process ends"} {
		b.age(8)
		if done, err := service.Retain(t.Context(), r); fmt.Sprint(err) != "<nil>" && want == "" || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || done.Dropped != nil {
			t.Errorf("%+v, %v", done, err)
		}
	}
	b.exec("DROP TRIGGER stop ON @inbox_processed_1")
	b.exec("VACUUM @inbox_processed_1")
	b.exec("INSERT INTO @inbox_processed (generation, consumer, scope, event_id) VALUES (1, 'c', 't', 'in the first part')")
	b.expect("true", "SELECT (ctid::text::point)[0] < 1000 FROM @inbox_processed WHERE event_id = 'in the first part'")
	if done, err := service.Retain(t.Context(), r); err != nil || !slices.Equal(done.Dropped, []int64{1}) {
		t.Errorf("%+v, %v", done, err)
	}
	b.expect("in the first part", "SELECT string_agg(event_id, ' ') FROM @inbox_processed")

	// The generation comes round again, and is emptied from its beginning.
	for turn := 0; b.pg.Value(t, b.dsn, b.named("SELECT count(*) FROM @inbox_processed")) != "0"; turn++ {
		if turn == 12 {
			t.Fatal("the mark is still there")
		}
		b.age(8)
		if _, err := service.Retain(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// Without this error, the tables would grow and nobody would know why.
func TestAPartitionThatIsMissingIsAnError(t *testing.T) {
	for what, sql := range map[string]string{
		"inbox_processed_1": "ALTER TABLE @inbox_processed DETACH PARTITION @inbox_processed_1",
		"inbox_processed_3": "DELETE FROM @inbox_generations WHERE generation = 3",
	} {
		b := newBase(t, "")
		b.exec(sql)
		done, err := b.db.Retain(t.Context(), inbox.Retention{})
		if err == nil || !strings.Contains(err.Error(), what+" is not both a partition") || done.Began != 0 {
			t.Errorf("%s: %+v, %v", sql, done, err)
		}
	}
	b := newBase(t, "")
	b.exec("DELETE FROM @inbox_retention")
	if _, err := b.db.Retain(t.Context(), inbox.Retention{}); err == nil || !strings.Contains(err.Error(), "inbox_retention has no row") {
		t.Errorf("without a row in inbox_retention: %v", err)
	}
}

// The command in the advice is the one that helps.
func TestTheAdviceHasTheSchema(t *testing.T) {
	b := newBase(t, "")
	_, err := inbox.Pgx(b.pool).In("gone").Retain(t.Context(), inbox.Retention{})
	if err == nil || !strings.Contains(err.Error(), `walpost setup --inbox --migration up --schema "gone"`) {
		t.Errorf("without tables: %v", err)
	}
	_, down := box.DDL(1)
	if _, err := b.pool.Exec(t.Context(), down); err != nil {
		t.Fatal(err)
	}
	_, err = b.db.Retain(t.Context(), inbox.Retention{})
	if want := fmt.Sprintf("--from 1 --schema %q", box); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// Several processes keep the tables small by themselves.
func TestRunRetentionGoesOnUntilItsContextEnds(t *testing.T) {
	b := newBase(t, "")
	b.once(b.db, true, "a")
	log := &testenv.Output{}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	r := inbox.Retention{Keep: time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))}
	for range 4 {
		wg.Go(func() {
			if err := b.db.RunRetention(ctx, r); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "the mark is gone", func() bool { return b.pg.Value(t, b.dsn, b.named("SELECT count(*) FROM @inbox_processed")) == "0" })
	if text := log.String(); text != "" {
		t.Errorf("it logged %s", text)
	}
	b.exec("ALTER TABLE @inbox_retention RENAME TO gone")
	until(t, "it is logged", func() bool { return strings.Count(log.String(), "its tables grow") == 4 })
	b.exec("ALTER TABLE @gone RENAME TO inbox_retention")
	until(t, "it is logged", func() bool { return strings.Count(log.String(), "works again") == 4 })
	stop()
	wg.Wait()
	if text := log.String(); strings.Count(text, "\n") != 8 || !strings.Contains(text, "the tables of the inbox are missing") {
		t.Errorf("it logged %s", text)
	}
	if err := b.db.RunRetention(t.Context(), inbox.Retention{Keep: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "Keep 1ms") {
		t.Errorf("a short Keep: %v", err)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
