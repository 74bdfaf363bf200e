// Package spans makes an OpenTelemetry span of each event that a relay delivers, for a service that has the relay inside itself:
//
//	cfg.Observer = spans.New(otel.GetTracerProvider())
//
// "walpost run" does the same with tracing.endpoint.
//
// The spans follow OpenTelemetry's conventions for messaging. "send <topic>" of the kind producer begins with the commit in Postgres, and
// ends when Kafka has acknowledged the record or, with exactly_once, committed its transaction. Where the two clocks disagree, it has no
// length, and so has that of a row that was read from the table. The record's headers traceparent and tracestate, in which the writer left
// its trace context, stay as they are. So by the conventions the span links to the writer's. It is also a child of that one: it is
// in the trace of the request that wrote the event, and a sampler that follows the parent does what the writer's did. An event
// without a trace context begins a trace.
//
// An event that can't be delivered has a span with the status error, and the reason in error.type. If the router makes no record of it, it
// has no trace context either.
package spans

import (
	"context"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/walpost/walpost"
)

const scope = "github.com/walpost/walpost/spans"

// maxText bounds what a span keeps of an event. A span waits in memory, and an id or a key can be as large as a record. A longer key is
// left out, because its beginning is another key.
const maxText = 1 << 10

// New returns an observer for one relay. Its spans come from provider.
func New(provider trace.TracerProvider) walpost.Observer {
	return &observer{tracer: provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)), kind: trace.WithSpanKind(trace.SpanKindProducer)}
}

type observer struct {
	tracer trace.Tracer
	kind   trace.SpanStartOption
	topic  string // of the newest span, with what all of its spans begin with:
	name   string
	common trace.SpanStartOption
}

func (o *observer) Ended(d *walpost.Delivery) {
	if o.common == nil || d.Topic != o.topic {
		o.begin(d.Topic)
	}
	start := d.Committed
	if start.IsZero() || start.After(d.Ended) {
		start = d.Ended
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), headers(d.Headers))
	options := [4]trace.SpanStartOption{o.common, o.kind, trace.WithTimestamp(start)}
	used := options[:3]
	if writer := trace.SpanContextFromContext(ctx); writer.IsValid() {
		used = append(used, trace.WithLinks(trace.Link{SpanContext: writer}))
	}
	_, span := o.tracer.Start(ctx, o.name, used...)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attributes(d)...)
	if d.Reason != "" {
		span.SetStatus(codes.Error, own(d.Why))
	}
	span.End(trace.WithTimestamp(d.Ended))
}

// own copies what a span keeps of a text of the event: the text can be a part of a row that is as large as a record. OTLP takes valid
// UTF-8 alone, and refuses the whole batch for another text.
func own(text string) string {
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), maxText)]), "\uFFFD")
}

func (o *observer) begin(topic string) {
	topic = own(topic)
	o.topic, o.name = topic, "send"
	common := []attribute.KeyValue{semconv.MessagingSystemKafka, semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("send")}
	if topic != "" {
		o.name += " " + topic
		common = append(common, semconv.MessagingDestinationName(topic))
	}
	o.common = trace.WithAttributes(common...)
}

// attributes are those that an event doesn't share with others of its topic.
func attributes(d *walpost.Delivery) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 6)
	if d.EventID != "" {
		attrs = append(attrs, semconv.MessagingMessageID(own(d.EventID)))
	}
	if d.Partition >= 0 {
		attrs = append(attrs, semconv.MessagingDestinationPartitionID(strconv.Itoa(int(d.Partition))))
	}
	if d.Offset >= 0 {
		attrs = append(attrs, semconv.MessagingKafkaOffset(int(d.Offset)))
	}
	if d.Key != nil && len(d.Key) <= maxText && utf8.Valid(d.Key) {
		attrs = append(attrs, semconv.MessagingKafkaMessageKey(string(d.Key)))
	}
	if d.Value == nil && d.Reason == "" {
		attrs = append(attrs, semconv.MessagingKafkaMessageTombstone(true))
	}
	if d.Reason != "" {
		attrs = append(attrs, semconv.ErrorTypeKey.String(d.Reason))
	}
	return attrs
}

// headers are a record's, for a propagator that reads. The last one with a name counts.
type headers []walpost.Header

func (hs headers) Get(name string) string {
	for i := len(hs) - 1; i >= 0; i-- {
		if hs[i].Key == name {
			return string(hs[i].Value)
		}
	}
	return ""
}

func (headers) Set(string, string) {}

func (headers) Keys() []string { return nil }
