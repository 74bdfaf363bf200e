package otelstats

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/walpost/walpost/inbox/consumer"
)

// fill gives each number of a struct a value of its own.
func fill(v reflect.Value, next *int64) {
	for i := range v.NumField() {
		*next++
		switch f := v.Field(i); {
		case f.Type() == reflect.TypeFor[time.Duration]():
			f.SetInt(*next * int64(time.Second))
		case f.CanInt():
			f.SetInt(*next)
		case f.CanUint():
			f.SetUint(uint64(*next))
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.String:
			f.SetString("outbox.event.order")
		}
	}
}

func TestEachNumberOfAConsumerIsAMetric(t *testing.T) {
	var s consumer.Stats
	var n int64
	fill(reflect.ValueOf(&s).Elem(), &n)
	var p consumer.PartitionStats
	fill(reflect.ValueOf(&p).Elem(), &n)
	unknown := p
	unknown.Partition, unknown.Lag, unknown.Paused = 99, -1, false
	s.Partitions = []consumer.PartitionStats{p, unknown}

	reader := sdkmetric.NewManualReader()
	registration, err := register("payments", func() consumer.Stats { return s }, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	collect := func() []string {
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		var lines []string
		point := func(m metricdata.Metrics, kind string, value any, of attribute.Set) {
			line := fmt.Sprintf("%s %s %v", strings.TrimPrefix(m.Name, "walpost.consumer."), kind+m.Unit, value)
			group, _ := of.Value("messaging.consumer.group.name")
			if partition, ok := of.Value("messaging.destination.partition.id"); ok {
				topic, _ := of.Value("messaging.destination.name")
				line += " " + topic.AsString() + "/" + partition.AsString()
			}
			lines = append(lines, line+" "+group.AsString())
		}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				switch d := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range d.DataPoints {
						point(m, map[bool]string{true: "counter", false: "amount"}[d.IsMonotonic], p.Value, p.Attributes)
					}
				case metricdata.Gauge[float64]:
					for _, p := range d.DataPoints {
						point(m, "gauge", p.Value, p.Attributes)
					}
				default:
					t.Errorf("%s is a %T", m.Name, d)
				}
			}
		}
		slices.Sort(lines)
		return lines
	}
	want := func(name, kind string, value any, of string) string {
		return strings.Join(strings.Fields(fmt.Sprintf("%s %s %v %s payments", name, kind, value, of)), " ")
	}
	wanted := []string{
		want("handled", "counter{message}", s.Handled, ""), want("failed", "counter{message}", s.Failed, ""),
		want("uncounted", "counter{message}", s.Uncounted, ""), want("retried", "counter{message}", s.Retried, ""),
		want("split", "counter{message}", s.Split, ""), want("dead", "counter{message}", s.Dead, ""),
		want("missed", "counter{message}", s.Missed, ""), want("joined", "gauge", 1, ""),
		want("in_flight", "amount{call}", s.InFlight, ""), want("dead_waiting", "amount{message}", s.DeadWaiting, ""),
	}
	for _, p := range s.Partitions {
		at := fmt.Sprintf("%s/%d", p.Topic, p.Partition)
		wanted = append(wanted, want("buffered", "amount{message}", p.Buffered, at), want("oldest", "gauges", p.Oldest.Seconds(), at))
	}
	at := fmt.Sprintf("%s/%d", p.Topic, p.Partition)
	wanted = append(wanted, want("lag", "amount{message}", p.Lag, at), want("paused", "gauge", 1, at), want("paused", "gauge", 0, p.Topic+"/99"))
	slices.Sort(wanted)
	if got := collect(); !slices.Equal(got, wanted) {
		t.Errorf("got  %q\nwant %q", got, wanted)
	}
	if fields := reflect.TypeFor[consumer.Stats]().NumField() + reflect.TypeFor[consumer.PartitionStats]().NumField(); fields != 19 {
		t.Errorf("Stats and PartitionStats have %d fields now: is each of them a metric, or in the list of this test?", fields)
	}

	if err := registration.Unregister(); err != nil {
		t.Fatal(err)
	}
	if got := collect(); len(got) > 0 {
		t.Errorf("after Unregister: %q", got)
	}
}
