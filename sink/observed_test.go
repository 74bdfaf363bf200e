package sink

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

// An observed sink tells which record was delivered and where, and others keep nothing of it.
func TestAnAckHasTheDeliveredRecordIfSomebodyObserves(t *testing.T) {
	for _, observed := range []bool{true, false} {
		c := testenv.FakeKafka(t, kfake.SeedTopics(3, "a"))
		cfg := config(c.ListenAddrs())
		cfg.Observed = observed
		b := open1(t, cfg)
		const n = 300
		for i := range n {
			b.send("a", string(rune('a'+i%20)), 1)
		}
		acks := map[string]cdc.Ack{} // by event
		for len(acks) < n {
			<-b.Wake()
			for _, a := range b.Acks(nil) {
				acks[a.EventID] = a
			}
		}
		if !observed {
			for id, a := range acks {
				if a.Record != nil {
					t.Fatalf("nobody observes event %s, and its acknowledgement keeps its record", id)
				}
			}
			continue
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics("a"))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for seen := 0; seen < n; {
			fs := cl.PollFetches(patient(t))
			if err := fs.Err0(); err != nil {
				t.Fatal(err)
			}
			fs.EachRecord(func(r *kgo.Record) {
				seen++
				a := acks[string(r.Headers[0].Value)]
				if a.Record == nil || a.Partition != r.Partition || a.Offset != r.Offset || !slices.Equal(a.Record.Key, r.Key) || !slices.Equal(a.Record.Value, r.Value) ||
					len(a.Record.Headers) != 1 || !slices.Equal(a.Record.Headers[0].Value, r.Headers[0].Value) {
					t.Fatalf("%+v of the record %+v", a, r)
				}
			})
		}
	}
}

// With transactions, the acknowledgement comes when the transaction is committed, and has the same.
func TestACommittedAckHasItsRecordAndOffset(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a", "cp"))
	cfg := config(c.ListenAddrs())
	cfg.TransactionalID, cfg.Checkpoints, cfg.Observed = "relay.events", "cp", true
	b := open1(t, cfg)
	if err := b.Fence(patient(t)); err != nil {
		t.Fatal(err)
	}
	b.Begin()
	var acks []cdc.Ack
	for n := uint64(1); n <= 2; n++ {
		b.send("a", "k", 3)
		if got := b.Commit("key", []byte("checkpoint")); got != n {
			t.Fatalf("commit %d", got)
		}
		for done := uint64(0); done < n; done, _, _ = b.Committed() {
			if <-b.Wake(); b.Stalled() != nil {
				t.Fatal(b.Stalled())
			}
		}
		acks = b.Acks(acks)
		for { // behind a commit the sink rests
			if _, underWay, _ := b.Committed(); !underWay {
				break
			}
		}
	}
	for i, a := range acks {
		if want := int64(i + i/3); len(acks) != 6 || a.Offset != want || a.Record == nil || a.Record.EventID != a.EventID { // a marker follows each transaction
			t.Errorf("%d: %+v, offset must be %d", i, a, want)
		}
	}
}
