// Package otelstats shows the numbers of a consumer to OpenTelemetry. It is a package of its own, so
// that a service that only writes events does not link the Kafka client.
package otelstats

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/walpost/walpost/inbox/consumer"
)

// Register shows the numbers of c as metrics, until Unregister of the result is called. Their names are
// "walpost.consumer." and those of the package promstats, so that Prometheus has the same names from
// either. The group is the attribute messaging.consumer.group.name. If provider is nil, it is
// otel.GetMeterProvider().
func Register(group string, c *consumer.Consumer, provider metric.MeterProvider) (metric.Registration, error) {
	return register(group, c.Stats, provider)
}

func register(group string, stats func() consumer.Stats, provider metric.MeterProvider) (metric.Registration, error) {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter("github.com/walpost/walpost/otel/otelstats", metric.WithSchemaURL(semconv.SchemaURL))
	var instruments []metric.Observable
	counter := func(name, description string) metric.Int64Observable {
		in, err := meter.Int64ObservableCounter("walpost.consumer."+name, metric.WithUnit("{message}"), metric.WithDescription(description))
		return observable(&instruments, in, err)
	}
	amount := func(name, unit, description string) metric.Int64Observable {
		in, err := meter.Int64ObservableUpDownCounter("walpost.consumer."+name, metric.WithUnit(unit), metric.WithDescription(description))
		return observable(&instruments, in, err)
	}
	gauge := func(name, unit, description string) metric.Float64Observable {
		in, err := meter.Float64ObservableGauge("walpost.consumer."+name, metric.WithUnit(unit), metric.WithDescription(description))
		return observable(&instruments, in, err)
	}

	handled := counter("handled", "Messages that the handler accepted.")
	failed := counter("failed", "Failed attempts that count towards the limit of attempts.")
	uncounted := counter("uncounted", "Attempts that failed, but not because of the message.")
	retried := counter("retried", "Messages that were given to the handler again.")
	split := counter("split", "Batches that failed and were handled one by one.")
	dead := counter("dead", "Messages that went to the dead letter topic.")
	missed := counter("missed", "Offsets that Kafka removed before they were read.")
	joined := gauge("joined", "", "1 while the consumer is a member of its group.")
	inFlight := amount("in_flight", "{call}", "Calls of the handler that are running.")
	deadWaiting := amount("dead_waiting", "{message}", "Messages that wait for the dead letter topic.")
	lag := amount("lag", "{message}", "Messages from the first unfinished one to the end. Absent while it is not known.")
	buffered := amount("buffered", "{message}", "Messages that were received and wait for their commit.")
	paused := gauge("paused", "", "1 while the share of the buffer that the partition has is used up.")
	oldest := gauge("oldest", "s", "Time since the oldest unfinished message was received.")

	ofGroup := semconv.MessagingConsumerGroupName(group)
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		all := metric.WithAttributeSet(attribute.NewSet(ofGroup))
		o.ObserveInt64(handled, int64(s.Handled), all)
		o.ObserveInt64(failed, int64(s.Failed), all)
		o.ObserveInt64(uncounted, int64(s.Uncounted), all)
		o.ObserveInt64(retried, int64(s.Retried), all)
		o.ObserveInt64(split, int64(s.Split), all)
		o.ObserveInt64(dead, int64(s.Dead), all)
		o.ObserveInt64(missed, int64(s.Missed), all)
		o.ObserveFloat64(joined, number(s.Joined), all)
		o.ObserveInt64(inFlight, int64(s.InFlight), all)
		o.ObserveInt64(deadWaiting, int64(s.DeadWaiting), all)
		for _, p := range s.Partitions {
			its := metric.WithAttributeSet(attribute.NewSet(ofGroup, semconv.MessagingDestinationName(p.Topic),
				semconv.MessagingDestinationPartitionID(strconv.Itoa(int(p.Partition)))))
			if p.Lag >= 0 {
				o.ObserveInt64(lag, p.Lag, its)
			}
			o.ObserveInt64(buffered, int64(p.Buffered), its)
			o.ObserveFloat64(paused, number(p.Paused), its)
			o.ObserveFloat64(oldest, p.Oldest.Seconds(), its)
		}
		return nil
	}, instruments...)
}

func observable[T metric.Observable](all *[]metric.Observable, in T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	*all = append(*all, in)
	return in
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
