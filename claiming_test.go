package walpost

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
)

// Workers have one record in common, and keep their positions for themselves.
func TestWorkersShareOneRecord(t *testing.T) {
	shared := memoryStore{}
	rec := func(epoch uint64, holder, system, strategy string) *checkpoint.Record {
		return &checkpoint.Record{Name: "shop", Epoch: epoch, SystemID: system, Timeline: 1, Polled: &cdc.Polled{Strategy: strategy}, Database: "shop", Position: cdc.Numbered(1), Holder: holder, RunID: "run", Time: time.Now()}
	}
	save := func(s *claimStore, r *checkpoint.Record) {
		t.Helper()
		if err := s.Save(t.Context(), r.HolderKey(), r.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	load := func(s *claimStore) string {
		t.Helper()
		all, err := s.Load(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(slices.Sorted(maps.Keys(all)), " ")
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, must be %q", what, got, want)
		}
	}
	a, b := &claimStore{Store: shared, memory: map[string][]byte{}}, &claimStore{Store: shared, memory: map[string][]byte{}}
	want("nothing", load(a), "")
	save(a, rec(1, "a", "7", poll.Claim))
	want("the first worker makes the shared record", load(&claimStore{Store: shared}), "shop/1.a")
	want("the second worker finds it", load(b), "shop/1.a")
	save(b, rec(2, "b", "7", poll.Claim))
	want("and has its own", load(b), "shop/2.b")
	if err := b.Save(t.Context(), "shop/1.a", nil); err != nil {
		t.Fatal(err)
	}
	want("and removes nothing", load(&claimStore{Store: shared}), "shop/1.a")
	reaches := func(what string, wal cdc.LSN) {
		t.Helper()
		stored, err := checkpoint.Read("shop", shared)
		if err != nil || stored.Rec.WAL != wal {
			t.Errorf("%s: the shared record says %d, must say %d (%v)", what, stored.Rec.WAL, wal, err)
		}
	}
	further := rec(2, "a", "7", poll.Claim)
	further.WAL = 500
	save(a, further)
	reaches("so soon", 0)
	a.moved = a.moved.Add(-claimWALEvery)
	save(a, further)
	reaches("the server's WAL", 500)
	behind := rec(2, "b", "7", poll.Claim)
	behind.WAL = 300
	b.moved = b.moved.Add(-claimWALEvery)
	save(b, behind)
	reaches("a worker that is behind", 500)
	back := rec(3, "a", "7", poll.Claim)
	back.WAL = 100
	save(a, back)
	reaches("an accepted gap", 100)
	want("in a record of its own", load(&claimStore{Store: shared}), "shop/1.a shop/3.a")
	delete(shared, "shop/3.a")
	save(a, rec(2, "a", "8", poll.Claim))
	want("another server is written down", load(&claimStore{Store: shared}), "shop/1.a shop/2.a")
}

// The record of a relay that read the WAL is replaced after its gap was accepted.
func TestAWorkerFollowsARelayOfTheWAL(t *testing.T) {
	was := &checkpoint.Record{Name: "shop", Epoch: 1, SystemID: "7", Timeline: 1, Slot: "walpost", Database: "shop", Position: cdc.LSN(500).Position(), Holder: "a", RunID: "run", Time: time.Now()}
	shared := memoryStore{was.HolderKey(): was.Encode()}
	s := &claimStore{Store: shared, memory: map[string][]byte{}}
	if _, err := s.Load(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	next := &checkpoint.Record{Name: "shop", Epoch: 2, SystemID: "7", Timeline: 1, Polled: &cdc.Polled{Strategy: poll.Claim}, Database: "shop", Position: cdc.Numbered(1), Holder: "a", RunID: "run", Time: time.Now()}
	if err := s.Save(t.Context(), next.HolderKey(), next.Encode()); err != nil {
		t.Fatal(err)
	}
	if stored, err := checkpoint.Read("shop", shared); err != nil || stored.Rec.Polled == nil {
		t.Errorf("%+v, %v", stored.Rec, err)
	}
}

type memoryStore map[string][]byte

func (m memoryStore) Load(_ context.Context, _ string) (map[string][]byte, error) {
	return maps.Clone(m), nil
}

func (m memoryStore) Save(_ context.Context, key string, value []byte) error {
	m[key] = value
	return nil
}

func TestWhatMakesNoSenseWithClaimsIsRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"delivery.on_poison: must be halt or dead_letter with source.poll.strategy: claim": func(c *Config) { c.Delivery.OnPoison = relay.Policies{relay.DefaultPolicy: relay.PolicyParkKey} },
		"source.snapshot: must be initial, or not set":                                     func(c *Config) { c.Source.Snapshot = "never" },
		"cleanup.mode: must be none with source.poll.strategy: claim":                      func(c *Config) { c.Cleanup.Mode = "delete" },
		"source.poll.lease: must be":                                                       func(c *Config) { c.Source.Poll.Lease = time.Second },
	} {
		cfg := DefaultConfig()
		cfg.Source.Kind, cfg.Source.DSN, cfg.Source.Table, cfg.Source.OrderColumn, cfg.Source.Poll.Strategy = KindPoll, "postgres://h/d", "public.outbox", "seq", poll.Claim
		cfg.Kafka.Brokers = []string{"k:9092"}
		if wrong := cfg.Validate(); len(wrong) > 0 {
			t.Fatal(wrong)
		}
		if change(&cfg); !strings.Contains(cfg.Validate().Error(), want) {
			t.Errorf("%s: %v", want, cfg.Validate())
		}
	}
}
