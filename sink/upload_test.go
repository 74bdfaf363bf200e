package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// A gatedStore stores nothing before its gate for a key is open.
type gatedStore struct {
	mu      sync.Mutex
	fails   error
	gates   map[string]chan struct{}
	puts    map[string]int
	most, n int // at a time
}

func newGatedStore() *gatedStore {
	return &gatedStore{gates: map[string]chan struct{}{}, puts: map[string]int{}}
}

func (g *gatedStore) gate(key string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[key] == nil {
		g.gates[key] = make(chan struct{})
	}
	return g.gates[key]
}

func (g *gatedStore) Put(ctx context.Context, key string, data []byte) error {
	g.mu.Lock()
	g.n++
	g.most = max(g.most, g.n)
	fails := g.fails
	g.mu.Unlock()
	defer func() { g.mu.Lock(); g.n--; g.mu.Unlock() }()
	if string(data) != "payload "+key {
		return fmt.Errorf("payload of %s: %q", key, data)
	}
	if fails != nil {
		return fails
	}
	select {
	case <-g.gate(key):
	case <-ctx.Done():
		return ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.puts[key]++
	return nil
}

func (g *gatedStore) at() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

func claimOf(key string) *cdc.Claim {
	payload := []byte("payload " + key)
	return &cdc.Claim{Key: key, Payload: payload, Size: len(payload)}
}

func withStore(t *testing.T) (*bench, *gatedStore, *kfake.Cluster) {
	t.Helper()
	c := testenv.FakeKafka(t, kfake.SeedTopics(3, "a"), kfake.SeedTopics(1, "dead"))
	cfg := config(c.ListenAddrs())
	store := newGatedStore()
	cfg.Store = store
	return open1(t, cfg), store, c
}

// A record is behind its payload, and so is what was sent to its partition after it. Other partitions go on.
func TestARecordWaitsForItsPayload(t *testing.T) {
	b, store, c := withStore(t)
	send := func(n int32, key string) {
		rec := cdc.Record{Topic: "a", Key: []byte(fmt.Sprint("k", n)), Partition: n}
		if key != "" {
			rec.Claim = claimOf(key)
		}
		b.sendRecord(rec)
	}
	send(0, "")
	send(0, "one")
	send(0, "")
	send(0, "two")
	for range 20 {
		send(1, "")
	}
	b.collect(func() bool { return len(b.acked) == 21 })
	close(store.gate("two"))
	for store.at() > 1 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // two is stored, and nothing may follow from that
	if b.take(); len(b.acked) != 21 || b.acked["1"] {
		t.Fatalf("acknowledged behind a payload that is not stored: %v", b.acked)
	}
	b.collect(func() bool {
		err := b.Stalled()
		return err != nil && strings.Contains(err.Error(), "storing 11 bytes has taken")
	})
	close(store.gate("one"))
	b.all()
	b.checkLog(c.ListenAddrs(), "a")
	if err := b.Stalled(); err != nil {
		t.Error(err)
	}
}

// A store that fails is tried again for ever, and says why. A claim that is sent twice is stored once. Many are stored at a time.
func TestAStoreThatFailsIsWaitedFor(t *testing.T) {
	b, store, c := withStore(t)
	store.fails = errors.New("no such bucket")
	shared := claimOf("shared")
	for i := range 40 {
		rec := cdc.Record{Topic: "a", Key: fmt.Append(nil, i), Partition: -1, Claim: claimOf(fmt.Sprint("c", i))}
		if i%10 == 0 {
			rec.Claim = shared
		}
		b.sendRecord(rec)
	}
	b.collect(func() bool { return b.Stalled() != nil && strings.Contains(b.Stalled().Error(), "no such bucket") })
	store.mu.Lock()
	store.fails = nil
	store.mu.Unlock()
	for store.at() < uploadsAtOnce {
		time.Sleep(time.Millisecond)
	}
	for i := range 40 {
		close(store.gate(fmt.Sprint("c", i)))
	}
	close(store.gate("shared"))
	b.all()
	b.checkLog(c.ListenAddrs(), "a")
	if store.puts["shared"] != 1 || len(store.puts) != 37 || store.most != uploadsAtOnce {
		t.Errorf("%d stored, shared %d times, %d at a time", len(store.puts), store.puts["shared"], store.most)
	}
}

// A record that is taken back, or that is refused before its payload is stored, comes back with its claim: its letter waits, too.
func TestALetterWaitsForThePayload(t *testing.T) {
	b, store, c := withStore(t)
	b.sendRecord(cdc.Record{Topic: "a", Key: []byte("k"), Partition: -1, Claim: claimOf("one")})
	b.sendRecord(cdc.Record{Topic: "no topic", Key: []byte("k"), Partition: -1, Claim: claimOf("two")})
	b.collect(func() bool { return len(b.poison) == 1 })
	refused := b.buf[slices.IndexFunc(b.buf, func(a cdc.Ack) bool { return a.Err != nil })].Record
	b.TakeBack("a", func([]byte, *cdc.Ticket) bool { return true })
	b.collect(func() bool { return len(b.poison) == 2 })
	back := b.buf[0].Record
	if !back.Waits() || !refused.Waits() {
		t.Fatal("the payload is not stored yet")
	}
	for _, rec := range []*cdc.Record{back, refused} {
		letter := *rec
		letter.Topic = "dead"
		b.sendRecord(letter)
	}
	for store.at() < 2 {
		time.Sleep(time.Millisecond)
	}
	if b.take(); len(b.acked) > 0 {
		t.Fatal("a letter came before its payload")
	}
	close(store.gate("one"))
	close(store.gate("two"))
	b.collect(func() bool { return len(b.acked) == 2 })
	b.checkLog(c.ListenAddrs(), "dead")
}

// With exactly_once, a position is not committed before the payload of each of its records is stored.
func TestACommitWaitsForThePayloads(t *testing.T) {
	b := newTxBench(t)
	store := newGatedStore()
	b.s.uploads.store = store
	if err := b.s.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.s.Begin()
	b.send("a", "small")
	b.s.Send(&cdc.Record{Topic: "b", Key: []byte("k"), Value: []byte("claim"), Partition: -1, Claim: claimOf("one")}, cdc.Ticket{Tx: 2})
	if b.s.Commit("k", []byte("cp")) == 0 {
		t.Fatal("no commit")
	}
	for store.at() < 1 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // a commit would have been done
	if n, underWay, lost := b.s.Committed(); n != 0 || !underWay || lost != nil {
		t.Fatalf("%d commits, %t, %v", n, underWay, lost)
	}
	close(store.gate("one"))
	b.committed(1)
	if got := b.sees(3); got["claim"] != 1 || got["small"] != 1 || got["cp"] != 1 {
		t.Errorf("%v", got)
	}
}

// What was in the line stays in its array until the array is full, so it must not keep the payloads.
func TestAStoredPayloadIsFreed(t *testing.T) {
	u := uploads{open: map[string]*upload{}, line: []*upload{{key: "a", payload: []byte("x")}, {key: "b"}}}
	line := u.line
	first := u.next()
	u.stored(first)
	if line[0] != nil || first.payload != nil {
		t.Errorf("%v is still in the line, and has %q", line[0], first.payload)
	}
}
