package spans

import (
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/walpost/walpost"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	writer  = "b7ad6b7169203331"
)

func traceparent(flags string) walpost.Header {
	return walpost.Header{Key: "traceparent", Value: []byte("00-" + traceID + "-" + writer + "-" + flags)}
}

// ended gives a delivery to an observer whose provider has the sampler, and returns its spans.
func ended(t *testing.T, sampler sdk.Sampler, all ...walpost.Delivery) []sdk.ReadOnlySpan {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	o := New(sdk.NewTracerProvider(sdk.WithSampler(sampler), sdk.WithSpanProcessor(rec)))
	for i := range all {
		o.Ended(&all[i])
	}
	return rec.Ended()
}

var committed = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func delivery() walpost.Delivery {
	return walpost.Delivery{
		EventID: "7f3", Topic: "orders", Partition: 2, Offset: 41, Key: []byte("42"), Value: []byte("{}"), Committed: committed, Ended: committed.Add(12 * time.Millisecond),
		Headers: []walpost.Header{traceparent("00"), {Key: "id", Value: []byte("7f3")}, traceparent("01"), {Key: "tracestate", Value: []byte("vendor=1")}}, // the last one counts
	}
}

func text(attrs []attribute.KeyValue) string {
	var parts []string
	for _, a := range attrs {
		parts = append(parts, string(a.Key)+"="+a.Value.String())
	}
	return strings.Join(parts, " ")
}

func TestASpanIsOfTheDeliveryAndLinksToTheWriter(t *testing.T) {
	all := ended(t, sdk.ParentBased(sdk.NeverSample()), delivery())
	if len(all) != 1 {
		t.Fatalf("%d spans", len(all))
	}
	s := all[0]
	if s.Name() != "send orders" || s.SpanKind() != trace.SpanKindProducer || !s.StartTime().Equal(committed) || s.EndTime().Sub(s.StartTime()) != 12*time.Millisecond || s.Status().Code != codes.Unset {
		t.Errorf("%s %s from %s to %s: %v", s.SpanKind(), s.Name(), s.StartTime(), s.EndTime(), s.Status())
	}
	for _, of := range []trace.SpanContext{s.Parent(), s.Links()[0].SpanContext} {
		if of.TraceID().String() != traceID || of.SpanID().String() != writer || of.TraceState().Get("vendor") != "1" {
			t.Errorf("%+v", of)
		}
	}
	const want = "messaging.system=kafka messaging.operation.type=send messaging.operation.name=send messaging.destination.name=orders " +
		"messaging.message.id=7f3 messaging.destination.partition.id=2 messaging.kafka.offset=41 messaging.kafka.message.key=42"
	if got := text(s.Attributes()); got != want || s.SpanContext().TraceID().String() != traceID || len(s.Links()) != 1 {
		t.Errorf("%s\n%s", got, want)
	}
}

// The writer's sampler decides for its events, and the provider's for others.
// The texts of an event are parts of its row, which must not wait in memory with the span. And one that isn't UTF-8 would cost the batch.
func TestASpanKeepsNothingOfARow(t *testing.T) {
	row := strings.Repeat("x", 1<<20) + "id\xff"
	d := delivery()
	d.EventID, d.Why, d.Reason, d.Topic = row[1<<20:], row[1<<20:], "unroutable", row[:2000]
	s := ended(t, sdk.AlwaysSample(), d)[0]
	if s.Status().Description != "id\uFFFD" || len(s.Name()) != len("send ")+maxText {
		t.Errorf("%+v, %d", s.Status(), len(s.Name()))
	}
	inRow := func(text string) bool {
		at, begin := uintptr(unsafe.Pointer(unsafe.StringData(text))), uintptr(unsafe.Pointer(unsafe.StringData(row)))
		return at >= begin && at < begin+uintptr(len(row))
	}
	if !strings.Contains(text(s.Attributes()), "messaging.message.id=id\uFFFD") {
		t.Error(text(s.Attributes()))
	}
	d.EventID, d.Why, d.Topic = row[:100], row[:100], row[:50]
	s = ended(t, sdk.AlwaysSample(), d)[0]
	for _, a := range s.Attributes() {
		if a.Value.Type() == attribute.STRING && inRow(a.Value.AsString()) {
			t.Errorf("%s is a part of the row", a.Key)
		}
	}
	if inRow(s.Status().Description) {
		t.Error("the status is a part of the row")
	}
}

func TestASpanIsSampledAsTheWriters(t *testing.T) {
	sampled, unsampled, without := delivery(), delivery(), delivery()
	unsampled.Headers = []walpost.Header{traceparent("00")}
	without.Headers = []walpost.Header{{Key: "traceparent", Value: []byte("00-nonsense")}}
	never, always := ended(t, sdk.ParentBased(sdk.NeverSample()), sampled, unsampled, without), ended(t, sdk.ParentBased(sdk.AlwaysSample()), sampled, unsampled, without)
	if len(never) != 1 || len(always) != 2 || always[1].Parent().IsValid() || len(always[1].Links()) != 0 || !always[1].SpanContext().TraceID().IsValid() {
		t.Errorf("%d spans, %d spans: %v", len(never), len(always), always)
	}
}

func TestASpanOfABadEventHasTheReason(t *testing.T) {
	d := delivery()
	d.Topic, d.Reason, d.Why, d.Offset, d.Partition, d.Key, d.Value = "", "unroutable", "column aggregate_type is NULL", -1, -1, make([]byte, maxText+1), nil
	s := ended(t, sdk.AlwaysSample(), d)[0]
	const want = "messaging.system=kafka messaging.operation.type=send messaging.operation.name=send messaging.message.id=7f3 error.type=unroutable"
	if got := text(s.Attributes()); got != want || s.Name() != "send" || s.Status().Code != codes.Error || s.Status().Description != d.Why {
		t.Errorf("%s %q %v", s.Name(), got, s.Status())
	}
}

func TestASpanIsNeverNegative(t *testing.T) {
	ahead, unknown, tombstone := delivery(), delivery(), delivery()
	ahead.Committed = ahead.Ended.Add(time.Hour)
	unknown.Committed, unknown.Topic = time.Time{}, "other"
	tombstone.Value = nil
	all := ended(t, sdk.AlwaysSample(), ahead, unknown, tombstone)
	for _, s := range all[:2] {
		if !s.StartTime().Equal(ahead.Ended) || !s.EndTime().Equal(ahead.Ended) {
			t.Errorf("from %s to %s", s.StartTime(), s.EndTime())
		}
	}
	if all[1].Name() != "send other" || all[2].Name() != "send orders" || !strings.HasSuffix(text(all[2].Attributes()), "messaging.kafka.message.tombstone=true") {
		t.Errorf("%s, %s, %s", all[1].Name(), all[2].Name(), text(all[2].Attributes()))
	}
}
