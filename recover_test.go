package walpost

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
)

// A relay with the default name looks for a record under the default name of the other kind of source. It does not mind records of other
// names that it cannot read.
func TestADefaultNameMindsOnlyRecordsOfTheOtherDefaultName(t *testing.T) {
	for _, c := range []struct {
		kind, name string
		minds      bool
	}{
		{"", "shop.reports", false},
		{"", "shop.public.reports", false},
		{"", "shop.public.outbox", true},
		{"poll", "shop.public.reports", false},
		{"poll", "shop.walpost", true},
	} {
		cfg := DefaultConfig()
		cfg.Source.DSN, cfg.Source.Table = "postgres://h/shop", "public.outbox"
		if c.kind != "" {
			cfg.Source.Kind, cfg.Source.OrderColumn, cfg.Source.Poll.XIDColumn = c.kind, "seq", "xid"
		}
		cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
		cfg.Checkpoint.Store, cfg.Checkpoint.Path = "file", filepath.Join(t.TempDir(), "position")
		newer := statelog.NewFileStore(cfg.Checkpoint.Path)
		if err := newer.Save(t.Context(), c.name+"/1.h", []byte(`{"version":99}`)); err != nil {
			t.Fatal(err)
		}
		_ = newer.Close()
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		store, free, err := r.openStore()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Look(t.Context(), r.cfg.Name); (err != nil) != c.minds || c.minds && !strings.Contains(err.Error(), "version 99") {
			t.Errorf("%+v: %v", c, err)
		}
		free()
	}
}

// If the store cannot be read, skip and recover end, and advise what helps with this store, and with this fault of it.
func TestSkipAdvisesWhatHelpsWithTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, cfg *Config)
		hint    string
		person  bool
	}{
		"the file is held": {func(t *testing.T, cfg *Config) {
			held := statelog.NewFileStore(cfg.Checkpoint.Path)
			if _, err := held.Load(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = held.Close() })
		}, "even while it is halted", false},
		"the file is damaged": {func(t *testing.T, cfg *Config) {
			if err := os.WriteFile(cfg.Checkpoint.Path, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "move the file away", true},
		"Kafka is unreachable": {func(_ *testing.T, cfg *Config) { cfg.Checkpoint.Store, cfg.Checkpoint.Path = "kafka", "" }, "Start the brokers", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table = "postgres://h/shop", "public.outbox"
			cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
			cfg.Checkpoint.Store, cfg.Checkpoint.Path = "file", filepath.Join(t.TempDir(), "position")
			c.prepare(t, &cfg)
			_, err := Skip(t.Context(), cfg, "0-1-1-00000000", SkipOptions{})
			if hint := fault.Hint(err); err == nil || fault.NeedsPerson(err) != c.person || !strings.Contains(hint, c.hint) {
				t.Errorf("%v, hint %q", err, hint)
			}
			if cfg.Checkpoint.Store == "kafka" {
				return // Recover waits for Kafka
			}
			if _, err := Recover(t.Context(), cfg, RecoverOptions{}); fault.NeedsPerson(err) != c.person || !strings.Contains(fault.Hint(err), c.hint) {
				t.Errorf("recover: %v, hint %q", err, fault.Hint(err))
			}
		})
	}
}

// Too few replicas are in sync: the brokers refuse the request, and the client tries again for ever. Skip says so and ends.
func TestSkipEndsWhereTheStoreTakesNothing(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t)
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table = "postgres://h/shop", "public.outbox"
	cfg.Kafka.Brokers = c.ListenAddrs()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	halt := &checkpoint.Halt{Name: r.cfg.Name, SystemID: "7", Timeline: 1, Database: "shop", Slot: "walpost", Commit: 5, Row: 1}
	halt.Token = halt.NewToken()
	store, free, err := r.openStore()
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	if err := store.Save(t.Context(), halt.Key(), halt.Encode()); err != nil {
		t.Fatal(err)
	}
	skipLimit = 5 * time.Second
	defer func() { skipLimit = time.Minute }()
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: cfg.Checkpoint.Topic, Err: kerr.NotEnoughReplicas, Count: -1})
	if _, err := Skip(t.Context(), cfg, halt.Token, SkipOptions{}); err == nil || fault.NeedsPerson(err) || !strings.Contains(err.Error(), "has not accepted the request") {
		t.Errorf("skip: %v", err)
	}
	h.Remove()
	skipLimit = time.Minute
	if _, err := Skip(t.Context(), cfg, halt.Token, SkipOptions{}); err != nil {
		t.Errorf("once the replicas are back: %v", err)
	}
}

// The event that halted a relay halts nothing once the relay reads another source.
func TestSkipRefusesAHaltOfAnotherSource(t *testing.T) {
	for name, c := range map[string]struct {
		rec  func(*checkpoint.Record)
		want string
	}{
		"no checkpoint":     {nil, ""},
		"the same source":   {func(*checkpoint.Record) {}, ""},
		"a later timeline":  {func(r *checkpoint.Record) { r.Timeline = 3 }, ""},
		"an older timeline": {func(r *checkpoint.Record) { r.Timeline = 1 }, "another source"},
		"another server":    {func(r *checkpoint.Record) { r.SystemID = "8" }, "another source"},
		"another slot":      {func(r *checkpoint.Record) { r.Slot = "second" }, "another source"},
		"a polled table": {func(r *checkpoint.Record) {
			r.Slot, r.Polled, r.Position = "", &cdc.Polled{Strategy: "cursor"}, cdc.Numbered(5)
		}, "another source"},
		"a later position": {func(r *checkpoint.Record) { r.Position = 6 }, "is delivered or skipped"},
	} {
		cfg := DefaultConfig()
		cfg.Source.DSN, cfg.Source.Table = "postgres://h/shop", "public.outbox"
		cfg.Kafka.Brokers, cfg.Checkpoint.Store, cfg.Checkpoint.Path = []string{"localhost:1"}, "file", filepath.Join(t.TempDir(), "position")
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		halt := &checkpoint.Halt{Name: r.cfg.Name, SystemID: "7", Timeline: 2, Database: "shop", Slot: "walpost", Commit: 5, Row: 1}
		halt.Token = halt.NewToken()
		store, free, err := r.openStore()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Load(t.Context(), r.cfg.Name); err != nil {
			t.Fatal(err)
		}
		if err := store.Save(t.Context(), halt.Key(), halt.Encode()); err != nil {
			t.Fatal(err)
		}
		if c.rec != nil {
			rec := &checkpoint.Record{Name: r.cfg.Name, Epoch: 1, SystemID: "7", Timeline: 2, Database: "shop", Slot: "walpost", Position: 5, RunID: "r", Time: time.Now()}
			c.rec(rec)
			if err := store.Save(t.Context(), rec.HolderKey(), rec.Encode()); err != nil {
				t.Fatal(err)
			}
		}
		free()
		_, err = Skip(t.Context(), cfg, halt.Token, SkipOptions{})
		if (err != nil) != (c.want != "") || err != nil && (!fault.Misconfigured(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A recover that changes the source from a slot to polling was interrupted or declined. The next one still tells which slot to drop.
func TestAnInterruptedChangeOfTheSourceRemembersTheSlot(t *testing.T) {
	pg := testenv.Postgres(t, "")
	cfg := DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table = conf.Secret(pg.Database(t)), "public.outbox"
	cfg.Source.Kind, cfg.Source.OrderColumn, cfg.Source.Poll.XIDColumn = KindPoll, "seq", "xid"
	cfg.Kafka.Brokers, cfg.Checkpoint.Store, cfg.Checkpoint.Path = []string{"localhost:1"}, "file", filepath.Join(t.TempDir(), "position")
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	slot := r.database
	pg.Exec(t, string(cfg.Source.DSN), "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	was := &checkpoint.Record{Name: r.cfg.Name, Epoch: 1, SystemID: "7", Timeline: 1, Database: slot, Slot: slot, Position: 5, RunID: "r", Time: time.Now()}
	rec := *was
	rec.Epoch, rec.Slot, rec.Polled, rec.Position, rec.WAL = 2, "", r.cfg.counts(), cdc.Numbered(3), 6
	rec.Copy = &checkpoint.Copy{Origin: checkpoint.OriginRecover, From: was.Position, Former: was}
	store, free, err := r.openStore()
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range []*checkpoint.Record{was, &rec} {
		if _, err := store.Load(t.Context(), r.cfg.Name); err != nil {
			t.Fatal(err)
		}
		if err := store.Save(t.Context(), rec.HolderKey(), rec.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	free()
	if got, err := r.formerSlot(t.Context()); err != nil || got != slot {
		t.Errorf("the slot to drop is %q, must be %q: %v", got, slot, err)
	}
}
