//go:build linux || darwin

package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
)

// A process of this test binary that finds this variable is a member of the group, and runs no tests.
const memberVariable = "WALPOST_INBOX_MEMBER"

type memberConfig struct {
	Brokers                 []string
	Group, Topic, Dead, DSN string
	Batch                   bool
}

// process is a member that can be killed.
type process struct {
	*exec.Cmd
	alive io.WriteCloser // the member ends when this process does
}

func startProcess(t *testing.T, cfg memberConfig) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(exe)}
	p.Env = append(os.Environ(), memberVariable+"="+string(text))
	p.Stderr = os.Stderr
	if p.alive, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	ready, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil { // from here on it can be asked to stop
		t.Fatal(err)
	}
	return p
}

func (p *process) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Error(err)
	}
	err := p.Wait()
	if sig == syscall.SIGTERM && err != nil {
		t.Errorf("a member that was asked to stop: %v", err)
	}
}

func runMember() int {
	var cfg memberConfig
	if err := json.Unmarshal([]byte(os.Getenv(memberVariable)), &cfg); err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready")
	pool, err := pgxpool.New(ctx, cfg.DSN)
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	db := inbox.Pgx(pool)
	c := consumer.Config{
		Brokers: cfg.Brokers, Group: cfg.Group, Topics: []string{cfg.Topic}, DeadLetterTopic: cfg.Dead,
		ClientOptions: []kgo.Opt{kgo.SessionTimeout(3 * time.Second), kgo.HeartbeatInterval(200 * time.Millisecond)},
		Logger:        slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if cfg.Batch {
		c.BatchHandler = func(ctx context.Context, batch []inbox.Message) error {
			for _, o := range db.Batch(ctx, "shop", batch, writeEffects) {
				if o.Err != nil {
					return o.Err
				}
			}
			return nil
		}
	} else {
		c.Handler = func(ctx context.Context, m inbox.Message) error {
			_, err := db.Once(ctx, "shop", m, func(ctx context.Context, tx pgx.Tx) error {
				return writeEffects(ctx, tx, []inbox.Message{m})
			})
			return err
		}
	}
	loop, err := consumer.New(c)
	if err != nil {
		panic(err)
	}
	if err := loop.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
	}
	return 0
}

func writeEffects(ctx context.Context, tx pgx.Tx, messages []inbox.Message) error {
	var keys, values []string
	for _, m := range messages {
		keys, values = append(keys, string(m.Key)), append(values, string(m.Value))
	}
	_, err := tx.Exec(ctx, "INSERT INTO effects (key, n) SELECT key, n::int FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS m (key, n, place) ORDER BY place", keys, values)
	return err
}
