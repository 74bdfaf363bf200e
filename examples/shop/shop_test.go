package main

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestTheShopRunsByOneCommand(t *testing.T) {
	short.Skip(t, "servers")
	if err := all(t.Context(), 2*time.Second); err != nil {
		t.Error(err)
	}
}

// The services, their Postgres and Kafka are killed at random, at least six times, and for
// WALPOST_SHOP_KILLS (10s). Then everything runs on until every saga has ended, and the books must balance.
func TestTheBooksBalanceWhateverIsKilled(t *testing.T) {
	short.Skip(t, "servers")
	length := 10 * time.Second
	if text := os.Getenv("WALPOST_SHOP_KILLS"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "shop")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pg := testenv.Postgres(t, "17", testenv.Private())
	kafka := testenv.KafkaPrivate(t, 1, nil)
	if err := makeDatabases(t.Context(), pg.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s", text[max(0, len(text)-20_000):])
		}
		log.Close()
	}()
	running := map[string]*exec.Cmd{}
	start := func(name string, args ...string) {
		cmd := exec.Command(program, append(args, "-dsn", pg.DSN(name), "-brokers", strings.Join(kafka.Brokers(), ","), name)...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[name] = cmd
	}
	kill := func(name string) {
		_ = running[name].Process.Kill() // it may have ended by itself: the restart is what counts
		_ = running[name].Wait()
	}
	start("orders")
	start("payments")
	defer func() {
		kill("orders")
		kill("payments")
	}()

	begun := time.Now()
	const patience = 10 * time.Minute // so that a lost event ends the test
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	killed := map[string]int{}
	audited := func() (report, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return audit(ctx, pg.DSN("orders"), pg.DSN("payments"))
	}
	// The kills begin when the first order has been shipped, so that both ways work.
	for r, err := audited(); err != nil || r.shipped == 0; r, err = audited() {
		if time.Sleep(200 * time.Millisecond); time.Since(begun) > patience {
			t.Fatal("nothing was shipped: ", err)
		}
	}
	for end, kills := time.Now().Add(length), 0; kills < 6 || time.Now().Before(end); kills++ {
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		switch n := random.IntN(10); {
		case n < 4:
			kill("orders")
			start("orders")
			killed["orders"]++
		case n < 8:
			kill("payments")
			start("payments")
			killed["payments"]++
		case n == 8:
			if err := pg.Kill(); err != nil {
				t.Fatal(err)
			}
			pg.Start(t)
			killed["Postgres"]++
		default:
			if err := kafka.Kill(); err != nil {
				t.Fatal(err)
			}
			kafka.Start(t)
			killed["Kafka"]++
		}
	}
	kill("orders")
	start("orders", "-closed")
	r, err := audited()
	for ; err != nil && r.placed == 0 || r.open > 0; r, err = audited() {
		if time.Sleep(500 * time.Millisecond); time.Since(begun) > length+patience {
			t.Fatalf("%s: %v", r, err)
		}
	}
	t.Logf("%s; killed: %v", r, killed)
	if err != nil {
		t.Error(err)
	}
	if r.shipped == 0 || r.cancelled == 0 || r.refunded == 0 {
		t.Errorf("not every way was taken: %s", r)
	}
}
