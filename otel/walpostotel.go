// Package walpostotel carries a trace of OpenTelemetry from the writer of an event to its handler, and
// measures the handler:
//
//	var telemetry walpostotel.Telemetry
//
//	events, err := outbox.New(outbox.Options{FromContext: telemetry.FromContext})
//
//	c, err := consumer.New(consumer.Config{Handler: telemetry.Handler(inbox.Handler(db, book)), …})
//
// The writer's trace context is in the column headers of the event's row, from which the relay makes
// headers of the record (router.table.fields.additional.placement: headers:headers). So the headers are
// stored: see Telemetry.Propagator before you put baggage into them.
//
// Spans and attributes follow OpenTelemetry's conventions for messaging. Each attempt is a span
// "process <topic>" of the kind consumer, which covers the call of the handler and records its error and
// the attempt (walpost.attempt). The span links to the writer's span of each message. Its parent is
//   - the span that ctx already has, for example one of kotel, or of the ctx that Run got,
//   - otherwise the writer's span, if there is a single message,
//   - otherwise nothing: the span begins a trace.
//
// The plugin kotel of franz-go (its hooks in consumer.Config.ClientOptions) is not needed. It gives each
// record a span "<topic> receive", which becomes the parent of the handler's. Both together duplicate
// nothing, unless the handler calls kotel's WithProcessSpan. But kotel also traces the consumer's dead
// letters, which then carry its trace context instead of the writer's.
package walpostotel

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"strconv"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/walpost/walpost/inbox"
)

// Telemetry says where spans and metrics go, and which headers carry a trace context. The zero value
// uses what the program sets with go.opentelemetry.io/otel, even later.
type Telemetry struct {
	TracerProvider trace.TracerProvider // otel.GetTracerProvider() by default
	MeterProvider  metric.MeterProvider // otel.GetMeterProvider() by default
	// Propagator reads and writes the headers: otel.GetTextMapPropagator() by default. If the program has
	// not set that one, it is propagation.TraceContext: traceparent and tracestate. With one for baggage,
	// the outbox table, topics, dead letters and inbox tables store the baggage, and backups keep it.
	Propagator propagation.TextMapPropagator
}

// FromContext returns the headers with the trace context of ctx. It is for outbox.Options.FromContext.
func (t Telemetry) FromContext(ctx context.Context) map[string]string {
	headers := propagation.MapCarrier{}
	t.propagator().Inject(ctx, headers)
	return headers
}

// Handler returns a consumer.Handler that calls next in a span, and measures the call
// (messaging.process.duration). Its ctx has the span, and the writer's baggage if the Propagator carries
// it. Around an inbox.Handler, the span covers the transaction.
func (t Telemetry) Handler(next func(ctx context.Context, m inbox.Message) error) func(ctx context.Context, m inbox.Message) error {
	in := t.instruments()
	return func(ctx context.Context, m inbox.Message) error {
		return in.process(ctx, []inbox.Message{m}, false, func(ctx context.Context) error { return next(ctx, m) })
	}
}

// BatchHandler is Handler for a consumer.BatchHandler. The SDK keeps 128 links of a span by default, and
// drops others: for a larger BatchSize, raise OTEL_SPAN_LINK_COUNT_LIMIT.
func (t Telemetry) BatchHandler(next func(ctx context.Context, batch []inbox.Message) error) func(ctx context.Context, batch []inbox.Message) error {
	in := t.instruments()
	return func(ctx context.Context, batch []inbox.Message) error {
		if len(batch) == 0 {
			return next(ctx, batch)
		}
		return in.process(ctx, batch, true, func(ctx context.Context) error { return next(ctx, batch) })
	}
}

// HandlerFunc is Telemetry.Handler for the Handler of an inbox.Worker. The span is within the transaction,
// so it does not record that a commit fails.
func HandlerFunc[T any](t Telemetry, next inbox.HandlerFunc[T]) inbox.HandlerFunc[T] {
	in := t.instruments()
	return func(ctx context.Context, tx T, m inbox.Message) error {
		return in.process(ctx, []inbox.Message{m}, false, func(ctx context.Context) error { return next(ctx, tx, m) })
	}
}

// propagator is called for each message, because a program can set the global one later.
func (t Telemetry) propagator() propagation.TextMapPropagator {
	if t.Propagator != nil {
		return t.Propagator
	}
	if global := otel.GetTextMapPropagator(); len(global.Fields()) > 0 {
		return global
	}
	return propagation.TraceContext{}
}

const scope = "github.com/walpost/walpost/otel"

type instruments struct {
	Telemetry
	tracer   trace.Tracer
	duration metric.Float64Histogram
}

func (t Telemetry) instruments() *instruments {
	if t.TracerProvider == nil {
		t.TracerProvider = otel.GetTracerProvider()
	}
	if t.MeterProvider == nil {
		t.MeterProvider = otel.GetMeterProvider()
	}
	in := &instruments{Telemetry: t, tracer: t.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	var err error
	in.duration, err = t.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)).Float64Histogram("messaging.process.duration",
		metric.WithUnit("s"), metric.WithDescription("Duration of processing operation."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)) // as the conventions say
	if err != nil {
		otel.Handle(err)
	}
	return in
}

// process calls next in a span for messages of one partition.
func (in *instruments) process(ctx context.Context, msgs []inbox.Message, batch bool, next func(context.Context) error) (err error) {
	first := msgs[0]
	common := []attribute.KeyValue{
		semconv.MessagingSystemKafka, semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(first.Topic), semconv.MessagingConsumerGroupName(first.Group),
	}
	attrs := append(common[:len(common):len(common)], semconv.MessagingDestinationPartitionID(strconv.Itoa(int(first.Partition))))
	if batch {
		attrs = append(attrs, semconv.MessagingBatchMessageCount(len(msgs)))
	}
	if len(msgs) == 1 {
		attrs = append(append(attrs, ofMessage(first)...), attribute.Int("walpost.attempt", first.Attempt))
	}
	begin := time.Now()
	ctx, links := in.extract(ctx, msgs)
	ctx, span := in.tracer.Start(ctx, "process "+first.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(begin),
		trace.WithAttributes(attrs...), trace.WithLinks(links...))
	defer func() {
		var stack []attribute.KeyValue
		if v := recover(); v != nil { // the consumer would make the same of it, but without the span
			err = &inbox.PanicError{Value: v, Stack: debug.Stack()}
		}
		end := time.Now()
		if err != nil {
			if p, ok := errors.AsType[*inbox.PanicError](err); ok {
				stack = append(stack, semconv.ExceptionStacktrace(string(p.Stack)))
			}
			span.RecordError(err, trace.WithTimestamp(end), trace.WithAttributes(stack...))
			span.SetStatus(codes.Error, err.Error())
			span.SetAttributes(errorType(err))
			common = append(common, errorType(err))
		}
		span.End(trace.WithTimestamp(end))
		in.duration.Record(ctx, end.Sub(begin).Seconds(), metric.WithAttributes(common...))
	}()
	return next(ctx)
}

// extract returns the context for a span of messages, and links to their writers.
func (in *instruments) extract(ctx context.Context, msgs []inbox.Message) (context.Context, []trace.Link) {
	around := trace.SpanFromContext(ctx)
	without := trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // a message without a trace context must not seem to have this one
	propagator := in.propagator()
	var links []trace.Link
	var writer context.Context
	for _, m := range msgs {
		headers := propagation.MapCarrier{} // the last one with a name counts, as in Message.Header
		for _, h := range m.Headers {
			headers[h.Key] = string(h.Value)
		}
		writer = propagator.Extract(without, headers)
		if sc := trace.SpanContextFromContext(writer); sc.IsValid() {
			links = append(links, trace.Link{SpanContext: sc, Attributes: ofMessage(m)})
		}
	}
	if len(msgs) > 1 {
		return ctx, links
	}
	if around.SpanContext().IsValid() {
		writer = trace.ContextWithSpan(writer, around)
	}
	return writer, links
}

func ofMessage(m inbox.Message) []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.MessagingKafkaOffset(int(m.Offset)), semconv.MessagingMessageID(m.ID)}
	if m.Key != nil && utf8.Valid(m.Key) {
		attrs = append(attrs, semconv.MessagingKafkaMessageKey(string(m.Key)))
	}
	if m.Value == nil {
		attrs = append(attrs, semconv.MessagingKafkaMessageTombstone(true))
	}
	if typ := m.Type(); typ != "" {
		attrs = append(attrs, attribute.String("walpost.event.type", typ))
	}
	return attrs
}

// errorType returns what distinguishes an error from others: its SQLSTATE, or the type of its cause.
func errorType(err error) attribute.KeyValue {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		return semconv.ErrorTypeKey.String(cmp.Or(server.SQLState(), "_OTHER"))
	}
	for {
		_, named := err.(interface{ ErrorType() string })
		cause := errors.Unwrap(err)
		if named || cause == nil {
			return semconv.ErrorType(err)
		}
		err = cause
	}
}
