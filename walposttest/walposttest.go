//go:build linux || darwin

// Package walposttest gives a service's test a Postgres, a Kafka broker and a relay between them:
//
//	w := walposttest.Start(t)
//
// The Postgres is a real one, which is downloaded once (15 MB) and shared by the tests of a binary.
// Each call of Start creates a database in it, with the tables of outbox and inbox, and starts a
// broker and a relay in the test's process. They last as long as the test, so tests can run in
// parallel. The server stops when the test binary exits, even if that is killed. You need no
// TestMain.
//
// It works on Linux and macOS, even as root, and without a network once Postgres is downloaded. The
// environment variable WALPOST_CACHE sets the folder for the download.
//
// Every user of the machine can connect to the server as any role without a password, so don't use
// this package on a host that you share with others. The test binary starts a second process of
// itself, which stops the server at the end. That process may initialize packages, but runs neither
// TestMain nor tests.
package walposttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/localpg"
	"github.com/walpost/walpost/outbox"
)

// The program is started once more to guard the server, and then does nothing else: see package keeper.
// A TestMain would be one more thing that every user has to write.
func init() { keeper.Init() }

// Options say what Start creates. The function Start uses the zero value.
type Options struct {
	// Version is the major version of Postgres, "14" to "18". Default: "17".
	Version string

	// Schema is SQL to run in the new database. Migrate is then called with the database's DSN, to
	// run a migration library. Afterwards, Start creates the tables of outbox and inbox if they're
	// missing.
	Schema  string
	Migrate func(dsn string) error

	// Outbox has the options that the service passes to outbox.New.
	Outbox outbox.Options

	// Topics exist from the start, with one partition each. The relay creates other topics, also
	// with one partition, at their first event. A consumer that starts earlier logs errors until
	// then. List your consumer's DeadLetterTopic: nothing else creates it.
	Topics []string

	// Relay changes the relay's configuration, such as its Router. By default, an event's type and
	// headers become headers of its record.
	Relay func(cfg *walpost.Config)
}

// A World is a database, a broker, and a relay that delivers what is in the outbox. Call its
// methods only from the test's goroutine.
type World struct {
	DSN     string   // of the database, for its superuser
	Brokers []string // of the broker

	t      testing.TB
	conn   *pgx.Conn
	broker *kfake.Cluster
	asked  sync.Map // the names of the topics that clients asked the broker for
	own    []string // topics that the relay asks for
	relay  *walpost.Relay
	ended  chan struct{} // closed when the relay has ended
	err    error         // of the relay; valid after ended
}

// patience is how long something may take that takes some milliseconds.
const patience = time.Minute

// Start starts a World that ends with the test. It returns when the relay is ready, so everything
// committed afterwards is delivered. The relay logs to the test's log. To create the relay's slot,
// Postgres waits until all writing transactions in any of the server's databases have ended, so
// call Start before the test begins one.
func Start(t testing.TB) *World {
	t.Helper()
	return Options{}.Start(t)
}

// Start is the function Start with options.
func (o Options) Start(t testing.TB) *World {
	t.Helper()
	w := &World{t: t, ended: make(chan struct{})}
	if err := w.start(o); err != nil {
		t.Fatalf("walposttest: %v", err)
	}
	return w
}

func (w *World) start(o Options) error {
	events, err := outbox.New(o.Outbox)
	if err != nil {
		return err
	}
	server, err := shared(w.t, cmp.Or(o.Version, "17"))
	if err != nil {
		return err
	}
	name := fmt.Sprintf("walposttest_%d", databases.Add(1))
	if err := w.makeDatabase(server, name); err != nil {
		return err
	}
	if err := w.makeTables(o, events); err != nil {
		return err
	}
	if w.broker, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(1), kfake.SeedTopics(1, o.Topics...)); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	w.t.Cleanup(w.broker.Close)
	w.broker.ControlKey(int16(kmsg.Metadata), w.noteTopics)
	w.Brokers = w.broker.ListenAddrs()

	cfg := walpost.DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Source.Slot = walpost.Secret(w.DSN), cmp.Or(o.Outbox.Table, "public.outbox"), name
	cfg.Source.Snapshot = "never"
	cfg.Router.AdditionalPlacement = events.Placement()
	if o.Outbox.PayloadType == "bytea" {
		cfg.Records.Value.Name = "bytes"
	}
	cfg.Kafka.Brokers, cfg.Kafka.Topics.Create = w.Brokers, true
	cfg.Checkpoint.Store, cfg.Checkpoint.Path = "file", filepath.Join(w.t.TempDir(), "checkpoint")
	cfg.HaltLinger = 0
	cfg.Logger = slog.New(slog.NewTextHandler(w.t.Output(), nil))
	if o.Relay != nil {
		o.Relay(&cfg)
	}
	if cfg.Source.Kind != walpost.KindWAL {
		return fmt.Errorf("source.kind is %s, and must be %s", cfg.Source.Kind, walpost.KindWAL)
	}
	w.own = []string{cfg.Delivery.DeadLetterTopic, cfg.Delivery.ParkingTopic}
	return w.startRelay(cfg)
}

// makeDatabase makes the database and connects to it. At the end of the test, the database and the slot
// of the same name are dropped.
func (w *World) makeDatabase(server *localpg.Server, name string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience) // not before: a download can take longer
	defer cancel()
	admin, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		return err
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		defer admin.Close(ctx)
		if err := drop(ctx, admin, name); err != nil {
			w.t.Errorf("walposttest: drop database %s: %v", name, err)
		}
	})
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	w.DSN = server.DSN(name)
	if w.conn, err = pgx.Connect(ctx, w.DSN); err != nil {
		return err
	}
	w.t.Cleanup(func() { _ = w.conn.Close(context.Background()) })
	return nil
}

// drop drops a database and its slots. A walsender ends a moment after its client, and holds the slot
// until then.
func drop(ctx context.Context, admin *pgx.Conn, name string) error {
	for {
		_, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		var state interface{ SQLState() string }
		if err == nil || !errors.As(err, &state) || state.SQLState() != "55006" {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// makeTables makes the tables of the service, and those of outbox and inbox that are missing. The service's
// migrations have the time of the test.
func (w *World) makeTables(o Options, events *outbox.Outbox) error {
	if _, err := w.conn.Exec(w.t.Context(), o.Schema); err != nil {
		return fmt.Errorf("Options.Schema: %w", err)
	}
	if o.Migrate != nil {
		if err := o.Migrate(w.DSN); err != nil {
			return fmt.Errorf("Options.Migrate: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	var hasInbox bool
	err := w.conn.QueryRow(ctx, "SELECT to_regclass('inbox_processed') IS NOT NULL").Scan(&hasInbox)
	if err == nil {
		err = events.Migrate(ctx, w.conn)
	}
	if err == nil && !hasInbox {
		err = inbox.Pgx(w.conn).Migrate(ctx)
	}
	if err != nil {
		return fmt.Errorf("make the tables of outbox and inbox: %w", err)
	}
	return nil
}

// startRelay returns when the relay is ready. The relay ends with the test.
func (w *World) startRelay(cfg walpost.Config) (err error) {
	if w.relay, err = walpost.New(cfg); err != nil {
		return err
	}
	running, stop := context.WithCancel(context.Background()) // the test's context ends before its cleanup
	go func() {
		defer close(w.ended)
		w.err = w.relay.Run(running)
	}()
	w.t.Cleanup(func() {
		stop()
		<-w.ended
		if w.err != nil && !w.t.Failed() {
			w.t.Errorf("walposttest: the relay: %v", w.err)
		}
	})
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	return w.await(ctx, func() error {
		if s := w.relay.Status(); !s.Ready {
			return fmt.Errorf("the relay is not ready: %s", s.Reason)
		}
		return nil
	})
}

// await waits until done returns nil. It returns an error if the relay or ctx ends before.
func (w *World) await(ctx context.Context, done func() error) error {
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-w.ended:
			return fmt.Errorf("the relay has ended: %w", w.err)
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

var (
	databases atomic.Int64
	servers   sync.Map // from a version to func() (*localpg.Server, error)
)

// shared returns the server of a version, which ends with the process.
func shared(t testing.TB, version string) (*localpg.Server, error) {
	start, _ := servers.LoadOrStore(version, sync.OnceValues(func() (*localpg.Server, error) {
		return localpg.Start(context.Background(), localpg.Config{
			Version: version, Reuse: true,
			// The transactions of autovacuum delay the start of a relay. Each World has a slot.
			Parameters: map[string]string{
				"autovacuum": "off", "max_connections": "500", "max_wal_senders": "250", "max_replication_slots": "250",
			},
			Progress: func(step string) { fmt.Fprintln(os.Stderr, "walposttest:", step) },
		})
	}))
	return start.(func() (*localpg.Server, error))()
}
