package inbox_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/walpost/walpost/inbox"
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
	run := func(role string, lines chan<- int) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "INBOX_TEST_PROCESS="+role, "INBOX_TEST_DSN="+p.dsn, fmt.Sprint("INBOX_TEST_EVENTS=", events))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for scan := bufio.NewScanner(out); scan.Scan(); {
				n, _ := strconv.Atoi(scan.Text())
				lines <- n
			}
		}()
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	lines := make(chan int, 1000)
	processes := []*exec.Cmd{run("random", lines), run("random", lines), run("random", lines)}
	for done := 0; done < deliveries || kills == 0 || cuts == 0 || turns == 0; {
		done += <-lines
		switch rand.IntN(12) {
		case 0:
			i := rand.IntN(len(processes))
			if err := processes[i].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			processes[i] = run("random", lines)
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
	for _, cmd := range processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	last := run("rest", lines) // the rest of every event, and no more kills
	go func() {
		for range lines {
		}
	}()
	if err := last.Wait(); err != nil {
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

// process is a process of the test above.
func process(role string) int {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("INBOX_TEST_DSN"))
	if err != nil {
		return 2
	}
	config.MaxConns = 8
	config.ConnConfig.RuntimeParams["application_name"] = "inbox_test"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 3
	}
	events, _ := strconv.Atoi(os.Getenv("INBOX_TEST_EVENTS"))
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
		return inbox.Message{ID: fmt.Sprint("event ", n), Topic: "t", Key: []byte(fmt.Sprint(n % 20)), Value: []byte("v")}
	}
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
		for _, o := range db.Batch(ctx, "batch", msgs, func(ctx context.Context, tx pgx.Tx, fresh []inbox.Message) error {
			for _, m := range fresh {
				if err := write("batch")(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}) {
			ok = ok && o.Err == nil
		}
		_, err := db.Store(ctx, "stored", msgs...)
		return ok && err == nil
	}
	const batch = 10
	for role == "random" {
		numbers := make([]int, batch)
		for i := range numbers {
			numbers[i] = rand.IntN(events)
		}
		deliver(numbers)
		fmt.Println(batch)
	}
	order := rand.Perm(events)
	for len(order) > 0 {
		n := min(batch, len(order))
		for !deliver(order[:n]) {
		}
		order = order[n:]
	}
	for {
		b, err := db.Backlog(ctx, "stored")
		if err == nil && b.Pending == 0 {
			return 0
		}
		time.Sleep(10 * time.Millisecond)
	}
}
