package inbox_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/librarytest/process"
)

// size returns a number of the environment.
func size(t testing.TB, name string, byDefault int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), fmt.Sprint(byDefault)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Processes deliver events in random order, alone, in batches and store-first. Handlers fail and
// panic, connections are cut, generations change, and the processes are killed all the time.
// WALPOST_INBOX_DELIVERIES sets the number of deliveries, five for each event.
func TestEveryEffectHappensOnceAlthoughProcessesAreKilled(t *testing.T) {
	p := newPlace(t, "")
	deliveries := size(t, "WALPOST_INBOX_DELIVERIES", 1500)
	events := deliveries / 5
	p.exec("CREATE INDEX ON effects (consumer, id)")
	kills, cuts, turns := 0, 0, 0
	lines := make(chan int, 1000)
	cfg := delivererConfig{DSN: p.dsn, Events: events}
	run := func() *process.Process {
		return process.Start(t, cfg, func(line string) {
			n, _ := strconv.Atoi(line)
			select {
			case lines <- n:
			case <-t.Context().Done():
			}
		})
	}
	processes := []*process.Process{run(), run(), run()}
	for done := 0; done < deliveries || kills == 0 || cuts == 0 || turns == 0; {
		done += <-lines
		switch rand.IntN(12) {
		case 0:
			i := rand.IntN(len(processes))
			processes[i].Signal(syscall.SIGKILL)
			processes[i] = run()
			kills++
		case 1:
			p.exec("SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'inbox_test' ORDER BY random() LIMIT 2) s")
			cuts++
		case 2:
			p.exec("UPDATE inbox_generations SET started_at = now() - interval '2 hours' WHERE ended_at IS NULL")
			p.exec("UPDATE inbox_retention SET pause_until = '-infinity'")
			if done, err := inbox.Pgx(p.pool).Retain(t.Context(), inbox.Retention{Keep: 7 * time.Hour, Processed: 1000 * time.Hour, LockWait: 100 * time.Millisecond}); err == nil && done.Began > 0 {
				turns++
			}
		}
	}
	go func() {
		for range lines {
		}
	}()
	for _, p := range processes {
		if _, err := p.End(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	cfg.Rest = true // of every event, and no more kills
	if _, err := run().Wait(); err != nil {
		t.Fatal(err)
	}
	for _, consumer := range []string{"once", "batch", "stored"} {
		p.expect(fmt.Sprint(events), "SELECT count(*) FROM effects WHERE consumer = $1", consumer)
		p.expect(fmt.Sprint(events), "SELECT count(DISTINCT id) FROM effects WHERE consumer = $1", consumer)
	}
	p.expect("0", `SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY m.lane ORDER BY m.id) AS before
		FROM inbox_messages m JOIN effects e ON e.consumer = 'stored' AND e.id = m.event_id) o WHERE before > n`)
	p.expect("0", "SELECT count(*) FROM inbox_messages WHERE state <> 'processed'")
	t.Logf("%d kills, %d cuts, %d generations; %s failed attempts of stored messages", kills, cuts, turns,
		p.value("SELECT coalesce(sum(attempts), 0)::text FROM inbox_messages"))
}

// A delivererConfig says what a process of the test above delivers.
type delivererConfig struct {
	DSN    string
	Events int
	Rest   bool // deliver each event until it is processed, and end
}

func (cfg delivererConfig) run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return err
	}
	config.MaxConns = 8
	config.ConnConfig.RuntimeParams["application_name"] = "inbox_test"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	db := inbox.Pgx(pool)
	write := func(consumer string) func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		return func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if _, err := tx.Exec(ctx, "INSERT INTO effects (id, consumer) VALUES ($1, $2)", m.ID, consumer); err != nil {
				return err
			}
			switch rand.IntN(60) {
			case 0:
				return errHandler
			case 1:
				panic("no")
			}
			return nil
		}
	}
	worker := &inbox.Worker[pgx.Tx]{
		DB: db, Consumer: "stored", Handler: write("stored"), Concurrency: 3, Attempts: inbox.Unlimited,
		BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond, Poll: 5 * time.Millisecond,
	}
	go func() { _ = worker.Run(ctx) }()
	message := func(n int) inbox.Message {
		return inbox.Message{ID: fmt.Sprint("event ", n), Topic: "t", Group: "batch", Key: []byte(fmt.Sprint(n % 20)), Value: []byte("v")}
	}
	batch := inbox.BatchHandler(db, func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error {
		for _, m := range fresh {
			if err := write("batch")(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	// deliver reports whether every event has had its effect, or is stored.
	deliver := func(numbers []int) bool {
		msgs := make([]inbox.Message, len(numbers))
		for i, n := range numbers {
			msgs[i] = message(n)
		}
		ok := true
		for _, m := range msgs {
			_, err := db.Once(ctx, "once", m, func(ctx context.Context, tx pgx.Tx) error { return write("once")(ctx, tx, m) })
			ok = ok && err == nil
		}
		if batch(ctx, msgs) != nil { // one by one, as a consumer does
			for i := range msgs {
				ok = batch(ctx, msgs[i:i+1]) == nil && ok
			}
		}
		_, err := db.Store(ctx, "stored", msgs...)
		return ok && err == nil
	}
	const atOnce = 10
	for !cfg.Rest {
		numbers := make([]int, atOnce)
		for i := range numbers {
			numbers[i] = rand.IntN(cfg.Events)
		}
		deliver(numbers)
		fmt.Println(atOnce)
	}
	order := rand.Perm(cfg.Events)
	for len(order) > 0 {
		n := min(atOnce, len(order))
		for !deliver(order[:n]) {
		}
		order = order[n:]
	}
	for {
		b, err := db.Backlog(ctx, "stored")
		if err == nil && b.Pending == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
