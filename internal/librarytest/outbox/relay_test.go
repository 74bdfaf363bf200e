package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/router"
)

// walpost relays what Write writes: the topic, key, headers and value are those of the event.
func TestWalpostRelaysWhatWriteWrites(t *testing.T) {
	kafka := testenv.Kafka(t)
	topic := kafka.Topic(t, 1, nil)
	store := outbox.FileStore(t.TempDir())
	o := open(t, outbox.Options{
		Headers: []string{"traceparent"}, MaxPayload: 1000, Store: store,
		Topic: func(aggregateType string) string { return aggregateType },
	})
	_, dsn := database(t, o)

	cfg := walpost.DefaultConfig()
	cfg.Source.DSN, cfg.Source.Table, cfg.Source.Slot, cfg.Source.OrderColumn = walpost.Secret(dsn), "public.outbox", "outbox_"+fmt.Sprint(time.Now().UnixNano()), "seq"
	cfg.Source.Snapshot = "never"
	cfg.Kafka.Brokers = kafka.Brokers()
	cfg.Checkpoint.Store, cfg.Checkpoint.Path = "file", t.TempDir()+"/checkpoint"
	cfg.Router = router.DefaultConfig().Options
	cfg.Router.TopicRegex, cfg.Router.TopicReplacement, cfg.Router.AdditionalPlacement = "(.*)", "$1", o.Placement()
	relay, err := walpost.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()

	large := `{"large": "` + strings.Repeat("x", 2000) + `"}`
	events := []outbox.Event{
		{ID: outbox.NewID(), AggregateType: topic, AggregateID: "1", Type: "Placed", Payload: order{"12.50"}, Headers: map[string]string{"traceparent": "00-ab-cd-01"}},
		{ID: outbox.NewID(), AggregateType: topic, AggregateID: "ä", Type: "Large", Payload: []byte(large)},
		{ID: outbox.NewID(), AggregateType: topic, AggregateID: "1", Type: "Removed", Payload: outbox.Null},
	}
	// The relay makes its slot at its start, and events from before the slot are not its own.
	consumer := kafka.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for !relay.Status().Ready {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	h := handles["pgx"](t, dsn)
	if err := o.Write(t.Context(), h.tx, events...); err != nil {
		t.Fatal(err)
	}
	if err := h.commit(); err != nil {
		t.Fatal(err)
	}
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var records []*kgo.Record
	for len(records) < len(events) {
		records = append(records, consumer.PollFetches(deadline).Records()...)
		if deadline.Err() != nil {
			t.Fatalf("%d records: %+v", len(records), relay.Status())
		}
	}
	for i, want := range []string{`{"total": "12.50"}`, large, ""} {
		r, e := records[i], events[i]
		value, err := outbox.Fetch(t.Context(), store, r.Value)
		if err != nil || string(r.Key) != e.AggregateID || (r.Value == nil) != (want == "") || string(value) != want {
			t.Errorf("record %s %q %q, %v", r.Key, r.Value, value, err)
		}
		trace := kgo.RecordHeader{Key: "traceparent"}
		if v, ok := e.Headers["traceparent"]; ok {
			trace.Value = []byte(v)
		}
		if got, want := fmt.Sprintf("%q", r.Headers), fmt.Sprintf("%q", []kgo.RecordHeader{{Key: "id", Value: []byte(e.ID)}, {Key: "eventType", Value: []byte(e.Type)}, trace}); got != want {
			t.Errorf("headers %s, want %s", got, want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
