package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// A queue bounds how many spans wait, and tells of those that are lost. The SDK bounds them too, but tells nobody. It is in front of
// the SDK's processor, and behind it as its outlet.
type queue struct {
	sdk.SpanProcessor
	exporter sdk.SpanExporter
	most     int64
	log      *slog.Logger
	hide     func(err error) string // what may be logged of an exporter's error

	waiting atomic.Int64
	dropped atomic.Int64 // because too many waited, since the newest report

	lost atomic.Int64 // by the exporter or because too many waited, and not told
	all  atomic.Int64 // that were lost, told or not

	// Of the goroutine that exports.
	said time.Time // when the newest loss was told
	down bool      // it was told, and not that it is over
}

// OnEnd takes a span. It never waits.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() { // the SDK leaves it out
		return
	}
	if q.waiting.Add(1) > q.most {
		q.waiting.Add(-1)
		q.dropped.Add(1)
		q.all.Add(1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// An outlet of a queue sends what waited.
type outlet struct{ *queue }

func (o outlet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := o.exporter.ExportSpans(ctx, spans)
	o.waiting.Add(-int64(len(spans)))
	lost, why := o.dropped.Swap(0), ""
	if err != nil { // the collector may have taken a part
		lost, why = lost+int64(len(spans)), o.hide(err)
		o.all.Add(int64(len(spans)))
	} else if lost > 0 {
		why = fmt.Sprintf("more than %d spans waited: sample fewer (OTEL_TRACES_SAMPLER), or raise OTEL_BSP_MAX_QUEUE_SIZE", o.most)
	}
	o.report(lost, why, time.Now())
	return nil // it was told
}

func (o outlet) Shutdown(ctx context.Context) error { return o.exporter.Shutdown(ctx) }

// report logs that spans are lost: once, then now and then, and when it is over.
func (q *queue) report(lost int64, why string, now time.Time) {
	q.lost.Add(lost)
	switch {
	case lost > 0 && (q.said.IsZero() || now.Sub(q.said) >= sayEvery):
		q.log.Warn("spans are lost, and delivery goes on", "lost_at_most", q.lost.Swap(0), "err", why)
		q.said, q.down = now, true
	case lost == 0 && q.down:
		q.log.Info("spans reach the collector again", "lost_meanwhile", q.lost.Swap(0))
		q.down = false
	}
}
