package walpostotel_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/walpost/walpost/inbox"
	walpostotel "github.com/walpost/walpost/otel"
)

// A world has what services send to OpenTelemetry.
type world struct {
	walpostotel.Telemetry
	exporter *tracetest.InMemoryExporter
	reader   *sdkmetric.ManualReader
	tracer   trace.Tracer // of the services
}

func newWorld() *world {
	w := &world{exporter: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	spans := sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.exporter))
	w.Telemetry = walpostotel.Telemetry{
		TracerProvider: spans, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)),
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
	w.tracer = spans.Tracer("service")
	return w
}

// write returns the message of an event that is written in a span, and the context of the span.
func (w *world) write(t *testing.T, offset int64) (inbox.Message, trace.SpanContext) {
	t.Helper()
	tenant, err := baggage.NewMember("tenant", "acme")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(tenant)
	if err != nil {
		t.Fatal(err)
	}
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	ctx := trace.ContextWithSpanContext(baggage.ContextWithBaggage(t.Context(), bag), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{15: byte(offset + 1)}, SpanID: trace.SpanID{7: byte(offset + 1)}, TraceFlags: trace.FlagsSampled, TraceState: state,
	}))
	ctx, span := w.tracer.Start(ctx, "place order")
	defer span.End()
	return message(offset, w.FromContext(ctx)), span.SpanContext()
}

func message(offset int64, headers map[string]string) inbox.Message {
	m := inbox.Message{
		Group: "payments", Topic: "outbox.event.order", Partition: 3, Offset: offset, ID: fmt.Sprintf("id-%d", offset),
		Key: []byte("4711"), Value: []byte("{}"), Attempt: 1,
	}
	for name, value := range headers {
		m.Headers = append(m.Headers, inbox.Header{Key: name, Value: []byte(value)})
	}
	return m
}

// processed returns the spans of handlers, in their order.
func (w *world) processed() (spans []tracetest.SpanStub) {
	for _, s := range w.exporter.GetSpans() {
		if s.InstrumentationScope.Name == "github.com/walpost/walpost/otel" {
			spans = append(spans, s)
		}
	}
	return spans
}

func (w *world) only(t *testing.T) tracetest.SpanStub {
	t.Helper()
	spans := w.processed()
	if len(spans) != 1 {
		t.Fatalf("%d spans of handlers, want 1", len(spans))
	}
	return spans[0]
}

func attributes(kvs []attribute.KeyValue) map[string]any {
	all := map[string]any{}
	for _, kv := range kvs {
		all[string(kv.Key)] = kv.Value.AsInterface()
	}
	return all
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

func TestTheSpanOfAHandlerIsInTheTraceOfTheWriter(t *testing.T) {
	w := newWorld()
	m, writer := w.write(t, 7)
	m.Headers = append(m.Headers, inbox.Header{Key: "eventType", Value: []byte("OrderPlaced")})
	want(t, "header tracestate", m.Header("tracestate"), "vendor=1")
	m.Attempt = 2
	var follow trace.SpanContext
	handler := w.Handler(func(ctx context.Context, got inbox.Message) error {
		want(t, "message", got, m)
		want(t, "baggage", baggage.FromContext(ctx), "tenant=acme")
		next := message(8, w.FromContext(ctx)) // what the handler writes to its own outbox
		return w.Handler(func(ctx context.Context, _ inbox.Message) error {
			follow = trace.SpanContextFromContext(ctx)
			return nil
		})(t.Context(), next)
	})
	if err := handler(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	spans := w.processed()
	if len(spans) != 2 {
		t.Fatalf("%d spans of handlers, want 2", len(spans))
	}
	s := spans[1] // the first one that ends is that of the second message
	want(t, "name", s.Name, "process outbox.event.order")
	want(t, "kind", s.SpanKind, trace.SpanKindConsumer)
	want(t, "trace", s.SpanContext.TraceID(), writer.TraceID())
	want(t, "parent", s.Parent.SpanID(), writer.SpanID())
	want(t, "state", s.SpanContext.TraceState(), "vendor=1")
	want(t, "status", s.Status.Code, codes.Unset)
	of := map[string]any{
		"messaging.kafka.offset": 7, "messaging.message.id": "id-7", "messaging.kafka.message.key": "4711", "walpost.event.type": "OrderPlaced",
	}
	if len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != writer.SpanID() {
		t.Fatalf("links %v, want one to %s", s.Links, writer.SpanID())
	}
	want(t, "attributes of the link", attributes(s.Links[0].Attributes), of)
	maps.Copy(of, map[string]any{
		"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.operation.name": "process",
		"messaging.destination.name": "outbox.event.order", "messaging.destination.partition.id": "3",
		"messaging.consumer.group.name": "payments", "walpost.attempt": 2,
	})
	want(t, "attributes", attributes(s.Attributes), of)
	want(t, "trace of what the handler writes", follow.TraceID(), writer.TraceID())
	want(t, "parent of what the handler writes", spans[0].Parent.SpanID(), s.SpanContext.SpanID())
}

func TestAMessageWithoutATraceBeginsOne(t *testing.T) {
	for _, key := range [][]byte{nil, {0xff}} {
		w := newWorld()
		m := message(1, nil)
		m.Key, m.Value = key, nil
		if err := w.Handler(func(context.Context, inbox.Message) error { return nil })(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		s := w.only(t)
		if s.Parent.IsValid() || len(s.Links) > 0 || !s.SpanContext.IsValid() {
			t.Errorf("parent %v, links %v", s.Parent, s.Links)
		}
		attrs := attributes(s.Attributes)
		want(t, "tombstone", attrs["messaging.kafka.message.tombstone"], true)
		for _, absent := range []string{"messaging.kafka.message.key", "walpost.event.type", "error.type", "messaging.batch.message_count"} {
			if v, is := attrs[absent]; is {
				t.Errorf("%s is %v", absent, v)
			}
		}
	}
}

// kotel, or the caller of Run, can have put a span into the context.
func TestASpanAroundTheHandlerIsItsParent(t *testing.T) {
	for _, batch := range []bool{false, true} {
		for _, traced := range []bool{false, true} {
			w := newWorld()
			m, writer := w.write(t, 1)
			if !traced {
				m.Headers = nil
			}
			ctx, around := w.tracer.Start(t.Context(), "around")
			bag := ""
			var err error
			if batch {
				err = w.BatchHandler(func(ctx context.Context, _ []inbox.Message) error {
					bag = baggage.FromContext(ctx).String()
					return nil
				})(ctx, []inbox.Message{m, m})
			} else {
				err = w.Handler(func(ctx context.Context, _ inbox.Message) error {
					bag = baggage.FromContext(ctx).String()
					return nil
				})(ctx, m)
			}
			if err != nil {
				t.Fatal(err)
			}
			s := w.only(t)
			want(t, "trace", s.SpanContext.TraceID(), around.SpanContext().TraceID())
			want(t, "parent", s.Parent.SpanID(), around.SpanContext().SpanID())
			var links []trace.SpanID
			for _, l := range s.Links {
				links = append(links, l.SpanContext.SpanID())
			}
			var wanted []trace.SpanID
			wantedBag := ""
			if traced {
				wanted = slices.Repeat([]trace.SpanID{writer.SpanID()}, map[bool]int{false: 1, true: 2}[batch])
			}
			if traced && !batch {
				wantedBag = "tenant=acme"
			}
			want(t, "links", links, wanted)
			want(t, "baggage", bag, wantedBag)
		}
	}
}

func TestABatchLinksToEachOfItsWriters(t *testing.T) {
	w := newWorld()
	var batch []inbox.Message
	var writers []trace.SpanContext
	for i := range 3 {
		m, writer := w.write(t, int64(i))
		batch, writers = append(batch, m), append(writers, writer)
	}
	batch = append(batch, message(3, nil))
	ofCtx := trace.SpanContext{}
	handler := w.BatchHandler(func(ctx context.Context, got []inbox.Message) error {
		want(t, "batch", got, batch)
		ofCtx = trace.SpanContextFromContext(ctx)
		return nil
	})
	if err := handler(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	s := w.only(t)
	want(t, "span of ctx", ofCtx.SpanID(), s.SpanContext.SpanID())
	want(t, "parent", s.Parent.IsValid(), false)
	want(t, "kind", s.SpanKind, trace.SpanKindConsumer)
	if len(s.Links) != 3 {
		t.Fatalf("%d links, want 3", len(s.Links))
	}
	for i, l := range s.Links {
		want(t, "link", l.SpanContext.SpanID(), writers[i].SpanID())
		want(t, "offset of a link", attributes(l.Attributes)["messaging.kafka.offset"], i)
	}
	want(t, "attributes", attributes(s.Attributes), map[string]any{
		"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.operation.name": "process",
		"messaging.destination.name": "outbox.event.order", "messaging.destination.partition.id": "3",
		"messaging.consumer.group.name": "payments", "messaging.batch.message_count": 4,
	})

	// After a failure the consumer hands over each message alone.
	w.exporter.Reset()
	alone := batch[1:2]
	batch = alone
	if err := handler(t.Context(), alone); err != nil {
		t.Fatal(err)
	}
	s = w.only(t)
	want(t, "parent of a single message", s.Parent.SpanID(), writers[1].SpanID())
	want(t, "attempt of a single message", attributes(s.Attributes)["walpost.attempt"], 1)
	want(t, "count of a single message", attributes(s.Attributes)["messaging.batch.message_count"], 1)

	w.exporter.Reset()
	batch = nil
	if err := handler(t.Context(), nil); err != nil || len(w.processed()) > 0 {
		t.Errorf("an empty batch: %v, %v", err, w.processed())
	}
}

type typed struct{ error }

func (typed) ErrorType() string { return "declined" }

func (e typed) Unwrap() error { return e.error }

func TestAnErrorIsInTheSpanAndInTheDuration(t *testing.T) {
	plain := errors.New("no")
	for _, c := range []struct {
		err  error
		typ  string
		same bool // the error is a code, and not the name of a type
	}{
		{nil, "", true},
		{&inbox.HandlerError{Err: fmt.Errorf("book: %w", plain)}, "*errors.errorString", false},
		{&inbox.HandlerError{Err: &pgconn.PgError{Code: "23505", Message: "twice"}}, "23505", true},
		{inbox.Permanent(driver.ErrBadConn), "*errors.errorString", false},
		{fmt.Errorf("pay: %w", typed{plain}), "declined", true},
		{context.DeadlineExceeded, "context.deadlineExceededError", false},
	} {
		t.Run(fmt.Sprint(c.err), func(t *testing.T) {
			w := newWorld()
			m, writer := w.write(t, 1)
			if got := w.Handler(func(context.Context, inbox.Message) error { return c.err })(t.Context(), m); got != c.err { //nolint:errorlint // the very same
				t.Errorf("the handler returned %v, and the consumer gets %v", c.err, got)
			}
			s := w.only(t)
			want(t, "trace", s.SpanContext.TraceID(), writer.TraceID())
			attrs := map[string]any{
				"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.operation.name": "process",
				"messaging.destination.name": "outbox.event.order", "messaging.consumer.group.name": "payments",
			}
			if c.err != nil {
				attrs["error.type"] = c.typ
				want(t, "status", s.Status, sdktrace.Status{Code: codes.Error, Description: c.err.Error()})
				want(t, "type of the error", attributes(s.Attributes)["error.type"], c.typ)
				if len(s.Events) != 1 || s.Events[0].Name != "exception" || attributes(s.Events[0].Attributes)["exception.message"] != c.err.Error() {
					t.Errorf("events %v", s.Events)
				}
			}
			d := w.duration(t)
			want(t, "calls", d.Count, 1)
			want(t, "attributes of the duration", attributes(d.Attributes.ToSlice()), attrs)
			want(t, "duration", d.Sum, s.EndTime.Sub(s.StartTime).Seconds())
		})
	}
}

func (w *world) duration(t *testing.T) metricdata.HistogramDataPoint[float64] {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.ScopeMetrics) != 1 || len(all.ScopeMetrics[0].Metrics) != 1 {
		t.Fatalf("metrics %v", all.ScopeMetrics)
	}
	m := all.ScopeMetrics[0].Metrics[0]
	want(t, "metric", m.Name+" "+m.Unit, "messaging.process.duration s")
	points := m.Data.(metricdata.Histogram[float64]).DataPoints
	if len(points) != 1 {
		t.Fatalf("durations %v", points)
	}
	want(t, "bounds", points[0].Bounds, "[0.005 0.01 0.025 0.05 0.075 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10]")
	return points[0]
}

// The consumer decides by the error, as without the span.
func TestAPanicIsAnErrorWithItsStack(t *testing.T) {
	w := newWorld()
	m, _ := w.write(t, 1)
	err := w.Handler(func(context.Context, inbox.Message) error { panic("no") })(t.Context(), m)
	p, ok := errors.AsType[*inbox.PanicError](err)
	if !ok || p.Value != "no" {
		t.Fatalf("got %v", err)
	}
	s := w.only(t)
	want(t, "status", s.Status, sdktrace.Status{Code: codes.Error, Description: "the handler panicked: no"})
	want(t, "type of the error", attributes(s.Attributes)["error.type"], "*inbox.PanicError")
	if len(s.Events) != 1 || !strings.Contains(fmt.Sprint(attributes(s.Events[0].Attributes)["exception.stacktrace"]), "walpostotel_test.go") {
		t.Errorf("events %v", s.Events)
	}
}

func TestEachAttemptOfAWorkerIsASpan(t *testing.T) {
	w := newWorld()
	m, writer := w.write(t, 1)
	handler := walpostotel.HandlerFunc(w.Telemetry, func(ctx context.Context, tx string, got inbox.Message) error {
		want(t, "tx", tx, "tx")
		want(t, "message", got, m)
		if got.Attempt == 1 {
			return errors.New("no")
		}
		return nil
	})
	for attempt := range 2 {
		m.Attempt = attempt + 1
		want(t, "failed", handler(t.Context(), "tx", m) != nil, attempt == 0)
	}
	spans := w.processed()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	for i, s := range spans {
		want(t, "attempt", attributes(s.Attributes)["walpost.attempt"], i+1)
		want(t, "parent", s.Parent.SpanID(), writer.SpanID())
		want(t, "status", s.Status.Code, []codes.Code{codes.Error, codes.Unset}[i])
	}
}

// other is a propagator with a header of its own.
type other string

func (o other) Inject(_ context.Context, c propagation.TextMapCarrier) { c.Set(string(o), "1") }
func (o other) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context {
	return ctx
}
func (o other) Fields() []string { return []string{string(o)} }

func TestTheHeadersAreThoseOfTheProgramsPropagator(t *testing.T) {
	w := newWorld()
	user, err := baggage.Parse("user=jane")
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := w.tracer.Start(baggage.ContextWithBaggage(t.Context(), user), "place order")
	span.End()
	names := func() []string { return slices.Sorted(maps.Keys(w.FromContext(ctx))) }
	want(t, "a propagator with baggage", names(), []string{"baggage", "traceparent"})
	w.Propagator = nil
	want(t, "no propagator is set", names(), []string{"traceparent"}) // a table is no place for baggage
	want(t, "no span", len(w.FromContext(t.Context())), 0)
	t.Cleanup(func() { otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator()) })
	otel.SetTextMapPropagator(other("global"))
	want(t, "one is set", names(), []string{"global"})
	w.Propagator = other("own")
	want(t, "Telemetry has one", names(), []string{"own"})
}

// A program can set its providers after it has made the handler.
func TestTheZeroValueUsesTheProgramsProviders(t *testing.T) {
	w := newWorld()
	handler := walpostotel.Telemetry{}.Handler(func(context.Context, inbox.Message) error { return nil })
	otel.SetTracerProvider(w.TracerProvider)
	otel.SetMeterProvider(w.MeterProvider)
	m, writer := w.write(t, 1)
	if err := handler(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want(t, "parent", w.only(t).Parent.SpanID(), writer.SpanID())
	want(t, "calls", w.duration(t).Count, 1)
}
