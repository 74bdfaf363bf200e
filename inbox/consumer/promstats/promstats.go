// Package promstats shows the numbers of a consumer to Prometheus. It is a package of its own, so
// that only programs that import it link the Prometheus client.
package promstats

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost/inbox/consumer"
)

// New returns a collector of the numbers of c. Register it once for each consumer:
//
//	prometheus.MustRegister(promstats.New("payments", c))
//
// The group becomes the label "group".
func New(group string, c *consumer.Consumer) prometheus.Collector {
	col := &collector{c: c}
	for i := range totals {
		col.totals = append(col.totals, totals[i].describe(group))
	}
	for i := range ofPartitions {
		col.ofPartitions = append(col.ofPartitions, ofPartitions[i].describe(group, "topic", "partition"))
	}
	return col
}

type collector struct {
	c                    *consumer.Consumer
	totals, ofPartitions []*prometheus.Desc
}

type metric[T any] struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*T) float64
}

func (m *metric[T]) describe(group string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("walpost_consumer_"+m.name, m.help, labels, prometheus.Labels{"group": group})
}

const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue

type stats = consumer.Stats

var totals = []metric[stats]{
	{"handled_total", "Messages that the handler accepted.", counter, func(s *stats) float64 { return float64(s.Handled) }},
	{"failed_total", "Failed attempts that count towards the limit of attempts.", counter, func(s *stats) float64 { return float64(s.Failed) }},
	{"uncounted_total", "Attempts that failed, but not because of the message.", counter, func(s *stats) float64 { return float64(s.Uncounted) }},
	{"retried_total", "Messages that were given to the handler again.", counter, func(s *stats) float64 { return float64(s.Retried) }},
	{"split_total", "Batches that failed and were handled one by one.", counter, func(s *stats) float64 { return float64(s.Split) }},
	{"dead_total", "Messages that went to the dead letter topic.", counter, func(s *stats) float64 { return float64(s.Dead) }},
	{"missed_total", "Offsets that Kafka removed before they were read.", counter, func(s *stats) float64 { return float64(s.Missed) }},
	{"joined", "1 while the consumer is a member of its group.", gauge, func(s *stats) float64 { return number(s.Joined) }},
	{"in_flight", "Calls of the handler that are running.", gauge, func(s *stats) float64 { return float64(s.InFlight) }},
	{"dead_waiting", "Messages that wait for the dead letter topic.", gauge, func(s *stats) float64 { return float64(s.DeadWaiting) }},
}

type partition = consumer.PartitionStats

var ofPartitions = []metric[partition]{
	{"lag", "Messages from the first unfinished one to the end. Absent while it is not known.", gauge, func(p *partition) float64 { return float64(p.Lag) }},
	{"buffered", "Messages that were received and wait for their commit.", gauge, func(p *partition) float64 { return float64(p.Buffered) }},
	{"paused", "1 while the share of the buffer that the partition has is used up.", gauge, func(p *partition) float64 { return number(p.Paused) }},
	{"oldest_seconds", "Time since the oldest unfinished message was received.", gauge, func(p *partition) float64 { return p.Oldest.Seconds() }},
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range append(c.totals[:len(c.totals):len(c.totals)], c.ofPartitions...) {
		to <- d
	}
}

func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.c.Stats()
	for i := range totals {
		to <- prometheus.MustNewConstMetric(c.totals[i], totals[i].kind, totals[i].value(&s))
	}
	for _, p := range s.Partitions {
		for i := range ofPartitions {
			if ofPartitions[i].name != "lag" || p.Lag >= 0 {
				to <- prometheus.MustNewConstMetric(c.ofPartitions[i], gauge, ofPartitions[i].value(&p), p.Topic, strconv.Itoa(int(p.Partition)))
			}
		}
	}
}
