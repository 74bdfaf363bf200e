package libraries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kotel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/inbox"
	"github.com/walpost/walpost/inbox/consumer"
	"github.com/walpost/walpost/internal/testenv"
	walpostotel "github.com/walpost/walpost/otel"
	"github.com/walpost/walpost/otel/otelstats"
	"github.com/walpost/walpost/outbox"
)

// A trace goes from the request that writes an event through Postgres, the relay and Kafka to the span
// of the handler, with kotel in the consumer and without it.
func TestATraceGoesFromTheWriterToTheHandler(t *testing.T) {
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "")
	for name, hooks := range map[string]func(trace.TracerProvider) []kgo.Hook{
		"alone": func(trace.TracerProvider) []kgo.Hook { return nil },
		"with kotel": func(spans trace.TracerProvider) []kgo.Hook {
			return kotel.NewKotel(kotel.WithTracer(kotel.NewTracer(kotel.TracerProvider(spans), kotel.TracerPropagator(propagation.TraceContext{})))).Hooks()
		},
	} {
		t.Run(name, func(t *testing.T) {
			exporter, reader := tracetest.NewInMemoryExporter(), sdkmetric.NewManualReader()
			spans := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
			metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
			telemetry := walpostotel.Telemetry{Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}), TracerProvider: spans, MeterProvider: metrics}

			dsn := pg.Database(t)
			o, err := outbox.New(outbox.Options{FromContext: telemetry.FromContext})
			if err != nil {
				t.Fatal(err)
			}
			table, _ := o.DDL()
			marks, _ := inbox.Schema("").DDL(0)
			pg.Exec(t, dsn, table, marks, "CREATE TABLE bookings (orders jsonb)")
			pool, err := pgxpool.New(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)

			kind := fmt.Sprintf("order%d", time.Now().UnixNano())
			topic := "outbox.event." + kind
			cfg := walpost.DefaultConfig()
			cfg.Source.DSN, cfg.Source.Table, cfg.Source.Snapshot = walpost.Secret(dsn), "public.outbox", "never"
			cfg.Source.Slot = kind
			cfg.Kafka.Brokers, cfg.Kafka.Topics.Create = kafka.Brokers(), true
			cfg.Router.AdditionalPlacement = o.Placement()
			relay, err := walpost.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 2)
			go func() { ended <- relay.Run(ctx) }()
			for !relay.Status().Ready {
				select {
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(10 * time.Millisecond):
				}
			}

			tenant, err := baggage.Parse("tenant=acme")
			if err != nil {
				t.Fatal(err)
			}
			request, span := spans.Tracer("shop").Start(baggage.ContextWithBaggage(t.Context(), tenant), "POST /orders")
			err = pgx.BeginFunc(request, pool, func(tx pgx.Tx) error {
				return o.Write(request, tx, outbox.Event{AggregateType: kind, AggregateID: "4711", Type: "OrderPlaced", Payload: Order{ID: "4711"}})
			})
			span.End()
			if err != nil {
				t.Fatal(err)
			}

			handled := make(chan string, 1)
			c, err := consumer.New(consumer.Config{
				Brokers: kafka.Brokers(), Group: "payments-" + kind, Topics: []string{topic}, BackoffMin: time.Millisecond,
				ClientOptions: []kgo.Opt{kgo.WithHooks(hooks(spans)...)},
				Handler: telemetry.Handler(inbox.Handler(inbox.Pgx(pool), func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
					if m.Attempt == 1 {
						return errors.New("no")
					}
					if _, err := tx.Exec(ctx, "INSERT INTO bookings VALUES ($1)", m.Value); err != nil {
						return err
					}
					handled <- baggage.FromContext(ctx).String()
					return nil
				})),
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := otelstats.Register("payments", c, metrics); err != nil {
				t.Fatal(err)
			}
			go func() { ended <- c.Run(ctx) }()
			select {
			case bag := <-handled:
				if bag != "tenant=acme" {
					t.Errorf("the handler has the baggage %q", bag)
				}
			case <-time.After(time.Minute):
				t.Fatalf("no event: %+v", relay.Status())
			}
			for c.Stats().Handled == 0 { // the transaction is not committed yet
				time.Sleep(time.Millisecond)
			}
			var all metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			stop()
			for range 2 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}

			got, parent := []string{}, span.SpanContext().SpanID()
			for _, s := range exporter.GetSpans() {
				if s.SpanContext.TraceID() != span.SpanContext().TraceID() {
					t.Errorf("%s is in the trace %s, and the writer is in %s", s.Name, s.SpanContext.TraceID(), span.SpanContext().TraceID())
				}
				if s.Name == topic+" receive" {
					parent = s.SpanContext.SpanID()
				}
			}
			for _, s := range exporter.GetSpans() {
				if s.Name == "process "+topic && (s.Parent.SpanID() != parent || len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != span.SpanContext().SpanID()) {
					t.Errorf("parent %s, want %s; links %v, want one to %s", s.Parent.SpanID(), parent, s.Links, span.SpanContext().SpanID())
				}
				got = append(got, fmt.Sprint(s.Name, " ", s.SpanKind, " ", s.Status.Code))
			}
			slices.Sort(got)
			want := []string{
				"POST /orders internal " + codes.Unset.String(), topic + " receive consumer " + codes.Unset.String(),
				"process " + topic + " consumer " + codes.Error.String(), "process " + topic + " consumer " + codes.Unset.String(),
			}
			if name == "alone" {
				want = slices.Delete(want, 1, 2)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("spans %q, want %q", got, want)
			}
			if n := pg.Value(t, dsn, "SELECT count(*) FROM bookings"); n != "1" {
				t.Errorf("%s bookings", n)
			}
			numbers := map[string]int64{}
			for _, scope := range all.ScopeMetrics {
				for _, m := range scope.Metrics {
					if sum, ok := m.Data.(metricdata.Sum[int64]); ok && len(sum.DataPoints) == 1 {
						numbers[m.Name] = sum.DataPoints[0].Value
					}
				}
			}
			if numbers["walpost.consumer.handled"] != 1 || numbers["walpost.consumer.failed"] != 1 || numbers["walpost.consumer.retried"] != 1 {
				t.Errorf("metrics %v", numbers)
			}
		})
	}
}
