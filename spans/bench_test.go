//go:build linux || darwin

package spans

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/sink"
)

// BenchmarkDelivery is the path of a record through the sink to a broker that keeps nothing, and what spans add to it: without them, with
// a sampler that takes none, and with one that takes all. One event in two has a writer's trace context, which is not sampled and sampled
// in the same way.
func BenchmarkDelivery(b *testing.B) {
	for _, c := range []struct {
		name   string
		flags  string
		tracer *sdk.TracerProvider
	}{
		{name: "off"},
		{"ratio=0", "00", sdk.NewTracerProvider(sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(0))), sdk.WithBatcher(tracetest.NewNoopExporter()))},
		{"ratio=1", "01", sdk.NewTracerProvider(sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(1))), sdk.WithBatcher(tracetest.NewNoopExporter()))},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg := sink.DefaultConfig()
			cfg.Brokers, cfg.WindowBytes = testenv.FakeKafka(b, kfake.SeedTopics(4, "a"), kfake.BlackholeProduce()).ListenAddrs(), 64<<20
			cfg.Observed, cfg.Logger = c.tracer != nil, slog.New(slog.DiscardHandler)
			s, err := sink.Open(cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close(context.Background()) //nolint:errcheck // nothing is in flight
			var o walpost.Observer
			if c.tracer != nil {
				o = New(c.tracer)
			}
			deliver(b, s, o, traceparent(c.flags), 10_000)
			b.ReportAllocs()
			b.ResetTimer()
			deliver(b, s, o, traceparent(c.flags), b.N)
		})
	}
}

// deliver sends n records with at most 20,000 in flight, and tells the observer of them as the relay does.
func deliver(b *testing.B, s *sink.Kafka, o walpost.Observer, trace cdc.Header, n int) {
	rec := cdc.Record{Topic: "a", Key: []byte("key"), Value: testenv.Incompressible(300), Partition: -1, Time: time.Now(), EventID: "7f3", Committed: time.Now()}
	headers := []cdc.Header{{Key: "id", Value: rec.Key}, trace}
	var buf []cdc.Ack
	var d walpost.Delivery
	for sent, done := 0, 0; done < n; {
		for ; sent < n && sent-done < 20_000; sent++ {
			rec.Headers, rec.Key[2] = headers[:1+sent%2], byte(sent)
			rec.Key = append([]byte(nil), rec.Key...)
			s.Send(&rec, cdc.Ticket{Tx: uint64(sent)})
		}
		<-s.Wake()
		buf = s.Acks(buf[:0])
		for i := range buf {
			if a := &buf[i]; a.Err != nil {
				b.Fatal(a.Err)
			} else if o != nil {
				d = walpost.Delivery{
					EventID: a.EventID, Topic: a.Topic, Partition: a.Partition, Offset: a.Offset, Key: a.Record.Key, Value: a.Record.Value,
					Headers: a.Record.Headers, Committed: a.Record.Committed, Ended: a.Record.Committed.Add(a.Latency),
				}
				o.Ended(&d)
			}
		}
		done += len(buf)
	}
}
