package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/testenv"
)

// Only a relay drops parked events. Without one, drop says so and leaves its request in the topic. With one, it tells the result.
func TestDropAsksTheRelay(t *testing.T) {
	brokers := testenv.FakeKafka(t, kfake.SeedTopics(1, "dead", "parked")).ListenAddrs()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("parked"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	produce := func(rec *cdc.Record) {
		t.Helper()
		r := &kgo.Record{Topic: "parked", Key: rec.Key, Value: rec.Value}
		for _, h := range rec.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for row, token := range []string{"t", "u"} {
		rec, err := (&deadletter.Letter{
			Token: token, Reason: cdc.TooLarge, Table: "public.outbox", ID: token, Commit: 7, Row: row + 1, CommitTime: time.Now(), Partition: -1,
			Name: "shop", Timeline: 1, Key: []byte("k"), KeyKnown: true, Record: &cdc.Record{},
		}).Encode("parked")
		if err != nil {
			t.Fatal(err)
		}
		produce(rec)
	}
	config := filepath.Join(t.TempDir(), "walpost.yaml")
	write(t, config, "delivery: {dead_letter_topic: dead, parking_topic: parked}\nsource: {table: public.outbox}\n")
	drop := func(args ...string) (code int, out string) {
		t.Helper()
		return command(t, append([]string{"dead", "drop", "-c", config, "--name", "shop", "--brokers", strings.Join(brokers, ","), "--reason", "INC-17"}, args...)...)
	}
	var d show.DeadDrop
	code, out := drop("--timeout", "0s", "--json", "t")
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitOK || d.Dead != 0 || *d.Parked != (badevents.Requested{Keys: 1, Events: 1, Requests: 1, Waiting: 1}) {
		t.Errorf("asked: %d %v\n%s", code, err, out)
	}
	if code, out := drop("--timeout", "10ms", "t"); code != exitFailed || !strings.Contains(out, "waiting for the relay: 1\n") || !strings.Contains(out, "walpost run with this name must hold the slot") {
		t.Errorf("without a relay: %d\n%s", code, out)
	}
	if code, out := drop("--timeout", "-1s", "t"); code != exitUsage {
		t.Errorf("a negative time: %d\n%s", code, out)
	}
	go func() { // the relay
		for asked := false; !asked && t.Context().Err() == nil; {
			client.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
				_, m, err := deadletter.Decode(r)
				asked = asked || err == nil && m != nil && m.State == deadletter.Drop && m.Token == "u"
			})
		}
		produce(parking.DroppedMark("parked", "shop", &parking.Entry{Token: "u", Key: parking.Key{Table: "public.outbox", Key: "k"}, Why: "INC-17"}, time.Now()))
	}()
	if code, out := drop("--timeout", "1h", "u"); code != exitOK || !strings.HasSuffix(out, "open events: 1\nparked events: 1\ndropped by the relay: 1\n") {
		t.Errorf("with a relay: %d\n%s", code, out)
	}
}
