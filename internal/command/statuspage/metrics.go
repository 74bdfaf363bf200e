package statuspage

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/latency"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// newRegistry makes a registry with what the process says of itself. The relay's metrics join it by newCollector.
func newRegistry(b Build) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "walpost_build_info", Help: "Always 1; the labels show the version.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.GoVersion},
	})
	info.Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// kafkaMetrics are the Kafka client's own. The plugin registers its metrics once for each client and would refuse the
// second; the sink may have several, which count together here.
type kafkaMetrics struct {
	*kprom.Metrics
	once sync.Once

	mu     sync.Mutex
	topics map[string]struct{} // that have series of their own
}

func newKafkaMetrics(reg prometheus.Registerer) *kafkaMetrics {
	m := &kafkaMetrics{topics: map[string]struct{}{}}
	m.Metrics = kprom.NewMetrics("walpost_kafka", kprom.Registerer(withoutBuffers{reg}))
	return m
}

// withoutBuffers refuses the plugin's gauges of what is buffered: the sink has a buffer of its own (walpost_in_flight).
type withoutBuffers struct{ prometheus.Registerer }

func (r withoutBuffers) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if g, ok := c.(prometheus.GaugeFunc); !ok || !strings.Contains(g.Desc().String(), "_buffered_") {
			r.Registerer.MustRegister(c)
		}
	}
}

// OnProduceBatchWritten counts topics beyond the first ones together, as walpost_events_total does: each is a series.
func (m *kafkaMetrics) OnProduceBatchWritten(meta kgo.BrokerMetadata, topic string, partition int32, batch kgo.ProduceBatchMetrics) {
	m.mu.Lock()
	if _, ok := m.topics[topic]; !ok && len(m.topics) >= sink.MaxTopicSeries {
		topic = sink.OtherTopics
	}
	m.topics[topic] = struct{}{}
	m.mu.Unlock()
	m.Metrics.OnProduceBatchWritten(meta, topic, partition, batch)
}

// OnNewClient registers for the first client only.
func (m *kafkaMetrics) OnNewClient(c *kgo.Client) { m.once.Do(func() { m.Metrics.OnNewClient(c) }) }

// OnClientClosed keeps the metrics: counters must not vanish when a client is replaced.
func (m *kafkaMetrics) OnClientClosed(*kgo.Client) {}

// A collector translates walpost.Status into metrics, at every scrape.
type collector struct {
	relay Relay
	now   func() time.Time
}

func newCollector(relay Relay) *collector { return &collector{relay: relay, now: time.Now} }

var (
	ofSlot = []string{"slot", "database"}

	slotExists     = desc("walpost_slot_exists", "Whether the slot exists, even if lost.", ofSlot...)
	slotRetained   = desc("walpost_slot_retained_bytes", "WAL that the slot retains.", ofSlot...)
	slotUnconfirm  = desc("walpost_slot_unconfirmed_bytes", "WAL that walpost has not confirmed.", ofSlot...)
	slotSafe       = desc("walpost_slot_safe_wal_bytes", "WAL that can be written before the slot is lost; absent without max_slot_wal_keep_size.", ofSlot...)
	slotWALStatus  = desc("walpost_slot_wal_status", "1 for the slot's wal_status, 0 for the others.", "slot", "database", "status")
	slotKeep       = desc("walpost_slot_max_wal_keep_bytes", "The server's max_slot_wal_keep_size; absent without a limit.", ofSlot...)
	slotInvalid    = desc("walpost_slot_invalidated", "1, with the reason, if the slot is invalidated; absent otherwise.", "slot", "database", "reason")
	slotActive     = desc("walpost_slot_active", "Whether a process is reading the slot.", ofSlot...)
	slotInactive   = desc("walpost_slot_inactive_seconds", "Time since any process last read the slot; before Postgres 17, at most walpost's uptime.", ofSlot...)
	slotExhaustion = desc("walpost_slot_exhaustion_seconds", "Forecast: seconds until max_slot_wal_keep_size or monitor.wal_disk_size is used up; +Inf if never, 0 if the next Postgres checkpoint may invalidate the slot; absent without a limit.", ofSlot...)
	slotWriteRate  = desc("walpost_slot_wal_write_bytes_per_second", "WAL that the server wrote per second, over the last minute.", ofSlot...)
	slotBlockerIs  = desc("walpost_slot_restart_blocker_info", "Always 1; the labels show what retains confirmed WAL. kind is transaction, prepared or slot.", "slot", "database", "kind", "pid", "blocker_database", "state")
	slotBlocker    = desc("walpost_slot_restart_blocker_age_seconds", "Age of what retains confirmed WAL, 0 if nothing does.", ofSlot...)
	slotXmin       = desc("walpost_slot_catalog_xmin_age", "Transactions since the slot's catalog_xmin, which keeps VACUUM from removing dead catalog rows.", ofSlot...)
	slotSpill      = desc("walpost_slot_spill_bytes_total", "Bytes that decoding large transactions wrote to the server's disk.", ofSlot...)
	clockSkew      = desc("walpost_clock_skew_seconds", "The database's clock minus this machine's clock.")
	monitorSuccess = desc("walpost_monitor_last_success_timestamp_seconds", "When the slot or the polled table was last read; 0 if never.")

	events      = desc("walpost_events_total", "Events acknowledged by the brokers.", "topic")
	commitToAck = desc("walpost_commit_to_ack_seconds", "Latency from commit to acknowledgement.")
	oldest      = desc("walpost_oldest_unacked_seconds", "Age of the oldest transaction that is not fully acknowledged, 0 if none.")
	inEvents    = desc("walpost_in_flight_events", "Events sent but not yet acknowledged.")
	inBytes     = desc("walpost_in_flight_bytes", "Bytes sent but not yet acknowledged.")
	windowFull  = desc("walpost_window_full_seconds_total", "How long the window has been full.")
	sessions    = desc("walpost_sessions_total", "Sessions with the database, by how they ended.", "ended")
	deadLetters = desc("walpost_dead_letters_total", "Events written to the dead letter topic.", "reason")
	parkedKeys  = desc("walpost_parked_keys", "Parked keys; 0 until the process has held the slot.")
	parkedNow   = desc("walpost_parked_events", "Parked events that wait to be released.")
	parkedAge   = desc("walpost_parked_oldest_seconds", "Age of the oldest parked event, 0 if none.")
	abandoned   = desc("walpost_topics_abandoned_total", "How often a partition got a new producer id after a response was lost. Events may be delivered twice.")
	skipped     = desc("walpost_events_skipped_total", "Events skipped with walpost skip.")
	remarks     = desc("walpost_remarks_total", "What the router ignored, by kind.", "what")
	ready       = desc("walpost_ready", "Whether the relay is ready, as on /readyz.")
	stateIs     = desc("walpost_state", "1 for the relay's state, as on /readyz, 0 for the others.", "state")

	cleanupRows  = desc("walpost_cleanup_rows_total", "Rows deleted or archived.")
	cleanupParts = desc("walpost_cleanup_partitions_total", "Partitions created in advance, or dropped.", "done")
	cleanupLast  = desc("walpost_cleanup_last_success_timestamp_seconds", "When the cleanup last succeeded; 0 if never.")

	breakerIs = desc("walpost_breaker_state", "1 for the breaker's state, 0 for the others: armed, tripped (past monitor.retained_critical or monitor.breaker_forecast) or dropped (the slot is dropped).",
		"slot", "database", "state")

	breakerStates = []slot.BreakerState{slot.BreakerArmed, slot.BreakerTripped, slot.BreakerDropped}

	walStatuses    = []string{"reserved", "extended", "unreserved", "lost"}
	sessionEndings = []string{"stopped", "lost", "refused", "halted"}
)

var descs []*prometheus.Desc // all that desc made

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	descs = append(descs, d)
	return d
}

// Describe names every metric.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descs {
		to <- d
	}
}

// Collect sends what is true now. A slot that was not looked at for a while has no values rather than old ones.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	now := c.now()
	s := seen(c.relay, now)
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { send(d, prometheus.GaugeValue, v, labels...) }
	counter := func(d *prometheus.Desc, v float64, labels ...string) { send(d, prometheus.CounterValue, v, labels...) }

	if s.Slot.Known {
		c.slot(&s.Slot, gauge, counter)
	}
	if s.Poll == nil {
		gauge(monitorSuccess, stamp(s.Slot.At))
	}
	collectPoll(s.Poll, now, gauge, counter)

	for topic, n := range s.Topics {
		counter(events, float64(n), topic)
	}
	buckets := make(map[float64]uint64, len(latency.Bounds))
	var n uint64
	for i, bound := range latency.Bounds {
		n += s.Latency.Counts[i]
		buckets[bound] = n
	}
	to <- prometheus.MustNewConstHistogram(commitToAck, s.Latency.Count(), s.Latency.Sum, buckets)
	since := func(at time.Time) float64 { // 0 if there is nothing
		if a := ago(at, now); a != nil {
			return *a
		}
		return 0
	}
	gauge(oldest, since(s.InFlight.Oldest.Time))
	gauge(inEvents, float64(s.InFlight.Events))
	gauge(inBytes, float64(s.InFlight.Bytes))
	counter(windowFull, s.WindowFull.Seconds())
	for _, how := range sessionEndings { // also those that have not happened, so that a rate sees the first
		counter(sessions, float64(s.Sessions[how]), how)
	}
	collectCleanup(s.Cleanup, gauge, counter)
	collectBreaker(&s, gauge)
	for _, reason := range cdc.Reasons { // also those that have not happened, so that a rate sees the first
		counter(deadLetters, float64(s.DeadLetters[reason]), string(reason))
	}
	gauge(parkedKeys, float64(s.Parked.Keys))
	gauge(parkedNow, float64(s.Parked.Events))
	gauge(parkedAge, since(parking.Since(s.OldestParked)))
	counter(abandoned, float64(s.Abandoned))
	counter(skipped, float64(s.Skipped))
	for what, n := range s.Remarks {
		counter(remarks, float64(n), what)
	}
	gauge(ready, flag(s.Ready))
	for _, state := range relay.States {
		gauge(stateIs, flag(s.State == state), string(state))
	}
}

func (c *collector) slot(s *slot.Status, gauge, counter func(*prometheus.Desc, float64, ...string)) {
	labels := []string{s.Slot, s.Database}
	when := func(known bool, d *prometheus.Desc, v float64) {
		if known {
			gauge(d, v, labels...)
		}
	}
	gauge(slotExists, flag(s.Exists), labels...)
	gauge(slotActive, flag(s.Active), labels...)
	when(s.Limit != slot.NoLimit, slotExhaustion, s.Exhaustion)
	when(s.KeepBytes >= 0, slotKeep, float64(s.KeepBytes))
	gauge(clockSkew, s.ClockSkew.Seconds())
	when(s.WALRate >= 0, slotWriteRate, s.WALRate)
	blocker := 0.0
	if b := s.Blocker; b != nil {
		blocker = b.Age.Seconds()
		pid := ""
		if b.PID != 0 {
			pid = strconv.Itoa(int(b.PID))
		}
		gauge(slotBlockerIs, 1, s.Slot, s.Database, string(b.Kind), pid, b.Database, b.State)
	}
	gauge(slotBlocker, blocker, labels...)
	if !s.Exists {
		return
	}
	for _, status := range walStatuses {
		gauge(slotWALStatus, flag(s.WALStatus == status), s.Slot, s.Database, status)
	}
	if s.Invalidation != "" {
		gauge(slotInvalid, 1, s.Slot, s.Database, s.Invalidation)
	}
	when(s.RetainedBytes >= 0, slotRetained, float64(s.RetainedBytes))
	when(s.UnconfirmedBytes >= 0, slotUnconfirm, float64(s.UnconfirmedBytes))
	when(s.SafeKnown, slotSafe, float64(s.SafeBytes))
	gauge(slotInactive, s.InactiveFor.Seconds(), labels...)
	gauge(slotXmin, float64(s.CatalogXminAge), labels...)
	counter(slotSpill, float64(s.Decoding.SpillBytes), labels...)
}

// collectCleanup sends the cleanup's metrics; there are none where no rows are removed.
func collectCleanup(s *cleanup.Status, gauge, counter func(*prometheus.Desc, float64, ...string)) {
	if s == nil {
		return
	}
	counter(cleanupRows, float64(s.Rows))
	counter(cleanupParts, float64(s.Made), "made")
	counter(cleanupParts, float64(s.Partitions), "dropped")
	gauge(cleanupLast, stamp(s.LastPass.Time))
}

// collectBreaker sends the circuit breaker's state. It goes on where nobody can look at the slot: it is not the slot's.
func collectBreaker(s *walpost.Status, gauge func(*prometheus.Desc, float64, ...string)) {
	if s.Breaker == nil {
		return
	}
	for _, state := range breakerStates {
		gauge(breakerIs, flag(s.Breaker.State == state), s.Slot.Slot, s.Slot.Database, string(state))
	}
}

// stamp is a time in seconds since 1970, or 0 for one that has not come.
func stamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
