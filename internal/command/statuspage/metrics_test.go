package statuspage

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// still is a relay that does not change.
type still struct{ status walpost.Status }

func (s *still) Status() walpost.Status { return s.status }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// busy is a relay with something to show at every place.
func busy() *still {
	s := walpost.Status{
		Name: "shop.walpost", Window: relay.Window{Events: 100, Bytes: 1 << 20},
		Topics: map[string]uint64{"orders": 7}, Abandoned: 2,
		Status: relay.Status{
			State: relay.Streaming, Ready: true, Since: age.Since{Time: noon.Add(-time.Hour)}, Turned: noon,
			InFlight: relay.InFlight{Events: 3, Bytes: 300, Oldest: age.Since{Time: noon.Add(-2 * time.Second)}},
			Events:   7, Transactions: 5, Skipped: 3, WindowFull: 1500 * time.Millisecond,
			Sessions: map[string]uint64{"lost": 2},
			InStream: true, Identity: cdc.Identity{Database: "shop"},
			Remarks: map[string]uint64{"message that is not transactional ignored": 4},
		},
		Slot: slot.Status{
			Known: true, Forecast: slot.Forecast{Exhaustion: 3600, Limit: slot.ByKeep, WALRate: 2048}, Severity: slot.OK,
			Health: slot.Health{
				Slot: "walpost", Database: "shop", At: noon.Add(-time.Second), Exists: true, Active: true, WALStatus: "extended",
				RetainedBytes: 1000, UnconfirmedBytes: 100, SafeBytes: 5000, SafeKnown: true, KeepBytes: 1 << 30,
				CatalogXminAge: 12, Decoding: slot.DecodingStats{SpillBytes: 34}, ClockSkew: -1500 * time.Millisecond,
				Blocker: &slot.Blocker{Kind: slot.BlockedByTransaction, PID: 42, Database: "crm", State: "idle in transaction", Age: time.Minute, End: "SELECT 1;"},
			},
		},
	}
	s.Latency.Counts[0], s.Latency.Counts[3], s.Latency.Sum, s.Latency.Max = 4, 3, 0.02, 0.004
	return &still{s}
}

func collected(t *testing.T, relay Relay) *prometheus.Registry {
	t.Helper()
	c := newCollector(relay)
	c.now = func() time.Time { return noon }
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	return reg
}

// testServer serves what is collected of a relay.
func testServer(t *testing.T, relay Relay, hosts []string) *Server {
	t.Helper()
	return &Server{cfg: Config{Hosts: hosts}, version: "v1", metrics: collected(t, relay)}
}

// promised are the names of the contract.
var promised = []string{
	"walpost_slot_retained_bytes", "walpost_slot_unconfirmed_bytes", "walpost_slot_safe_wal_bytes", "walpost_slot_wal_status",
	"walpost_slot_active", "walpost_slot_exhaustion_seconds", "walpost_slot_restart_blocker_age_seconds",
	"walpost_slot_exists", "walpost_slot_max_wal_keep_bytes", "walpost_slot_wal_write_bytes_per_second",
	"walpost_slot_inactive_seconds", "walpost_slot_restart_blocker_info", "walpost_clock_skew_seconds",
	"walpost_slot_catalog_xmin_age", "walpost_slot_spill_bytes_total", "walpost_monitor_last_success_timestamp_seconds",
	"walpost_events_total", "walpost_commit_to_ack_seconds", "walpost_oldest_unacked_seconds", "walpost_in_flight_events",
	"walpost_in_flight_bytes", "walpost_window_full_seconds_total", "walpost_sessions_total", "walpost_dead_letters_total",
	"walpost_topics_abandoned_total", "walpost_parked_keys", "walpost_parked_events", "walpost_parked_oldest_seconds", "walpost_events_skipped_total", "walpost_remarks_total", "walpost_state", "walpost_ready",
	"walpost_build_info", "walpost_config_last_reload_successful",
}

func TestEveryPromisedMetricIsThere(t *testing.T) {
	families, err := prometheus.Gatherers{collected(t, busy()), New(Config{}, Build{Version: "v1"}).metrics}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		if strings.HasPrefix(f.GetName(), "walpost_slot_") {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if labels["slot"] != "walpost" || labels["database"] != "shop" {
					t.Errorf("%s has the labels %v", f.GetName(), labels)
				}
			}
		}
	}
	for _, name := range promised {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not exported", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not exported", name)
		}
	}
}

// A relay that polls has no slot, and a process that does not deliver does not know what waits.
func TestARelayThatPollsHasNoSlotMetrics(t *testing.T) {
	r := busy()
	r.status.Slot = slot.Status{}
	r.status.Poll = &poll.Status{Looks: 9, Table: "public.outbox", Database: "shop", BacklogAt: noon.Add(-time.Second), Backlog: &poll.Backlog{
		At: noon.Add(-time.Second), Rows: 3, Oldest: noon.Add(-time.Minute), Blocker: &poll.Blocker{Since: age.Since{Time: noon.Add(-2 * time.Minute)}},
	}}
	gathered := func() map[string]float64 {
		families, err := collected(t, r).Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			all[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if strings.HasPrefix(f.GetName(), "walpost_slot_") {
				t.Errorf("%s is exported", f.GetName())
			}
			if l := m.GetLabel(); strings.HasPrefix(f.GetName(), "walpost_poll_") && (len(l) != 2 || l[0].GetValue() != "shop" || l[1].GetValue() != "public.outbox") {
				t.Errorf("%s has the labels %v", f.GetName(), l)
			}
		}
		return all
	}
	got := gathered()
	for name, want := range map[string]float64{
		"walpost_poll_pending_rows": 3, "walpost_poll_oldest_pending_seconds": 60, "walpost_poll_blocker_age_seconds": 120, "walpost_poll_looks_total": 9,
		"walpost_monitor_last_success_timestamp_seconds": float64(noon.Unix() - 1),
	} {
		if got[name] != want {
			t.Errorf("%s is %v, must be %v", name, got[name], want)
		}
	}
	*r.status.Poll.Backlog = poll.Backlog{At: noon, Rows: 1}
	got = gathered()
	if _, ok := got["walpost_poll_oldest_pending_seconds"]; ok || got["walpost_poll_blocker_age_seconds"] != 0 {
		t.Errorf("an age that nothing tells: %v", got)
	}
	next := 4.0
	*r.status.Poll.Backlog = poll.Backlog{At: noon, Position: cdc.Numbered(5), Rows: 3, Claims: &poll.ClaimCounts{Claimed: 2, Waiting: 1, Workers: 4, Refused: []poll.RefusedRow{{ID: "7f3", Attempts: 2, Error: "too large", Next: &next}}}}
	got = gathered()
	if _, ok := got["walpost_poll_blocker_age_seconds"]; ok || got["walpost_poll_claimed_rows"] != 2 || got["walpost_poll_waiting_rows"] != 1 || got["walpost_poll_workers"] != 4 {
		t.Errorf("workers: %v", got)
	}
	if v := PollOf(r.status.Poll, noon); v.Position != 0 || v.Claims.Claimed != 2 || len(v.Claims.Refused) != 1 || v.Claims.Refused[0].Attempts != 2 || *v.Claims.Refused[0].Next != 4 {
		t.Errorf("status: %+v", v.Claims)
	}
	r.status.Poll.Backlog = nil
	got = gathered()
	for _, name := range []string{"walpost_poll_pending_rows", "walpost_monitor_last_success_timestamp_seconds"} {
		if _, ok := got[name]; ok {
			t.Errorf("a process that does not deliver has %s", name)
		}
	}
	r.status.Poll.BacklogErr = "too many connections"
	got = gathered()
	if _, ok := got["walpost_poll_pending_rows"]; ok || got["walpost_monitor_last_success_timestamp_seconds"] != float64(noon.Unix()-1) {
		t.Errorf("rows that cannot be counted any more: %v", got)
	}
}

func TestMetricsSayWhatTheStatusSays(t *testing.T) {
	want := `
# HELP walpost_commit_to_ack_seconds Latency from commit to acknowledgement.
# TYPE walpost_commit_to_ack_seconds histogram
walpost_commit_to_ack_seconds_bucket{le="0.0005"} 4
walpost_commit_to_ack_seconds_bucket{le="0.001"} 4
walpost_commit_to_ack_seconds_bucket{le="0.0025"} 4
walpost_commit_to_ack_seconds_bucket{le="0.005"} 7
walpost_commit_to_ack_seconds_bucket{le="0.01"} 7
walpost_commit_to_ack_seconds_bucket{le="0.025"} 7
walpost_commit_to_ack_seconds_bucket{le="0.05"} 7
walpost_commit_to_ack_seconds_bucket{le="0.1"} 7
walpost_commit_to_ack_seconds_bucket{le="0.25"} 7
walpost_commit_to_ack_seconds_bucket{le="0.5"} 7
walpost_commit_to_ack_seconds_bucket{le="1"} 7
walpost_commit_to_ack_seconds_bucket{le="2.5"} 7
walpost_commit_to_ack_seconds_bucket{le="5"} 7
walpost_commit_to_ack_seconds_bucket{le="10"} 7
walpost_commit_to_ack_seconds_bucket{le="20"} 7
walpost_commit_to_ack_seconds_bucket{le="30"} 7
walpost_commit_to_ack_seconds_bucket{le="45"} 7
walpost_commit_to_ack_seconds_bucket{le="60"} 7
walpost_commit_to_ack_seconds_bucket{le="90"} 7
walpost_commit_to_ack_seconds_bucket{le="120"} 7
walpost_commit_to_ack_seconds_bucket{le="180"} 7
walpost_commit_to_ack_seconds_bucket{le="300"} 7
walpost_commit_to_ack_seconds_bucket{le="450"} 7
walpost_commit_to_ack_seconds_bucket{le="600"} 7
walpost_commit_to_ack_seconds_bucket{le="900"} 7
walpost_commit_to_ack_seconds_bucket{le="1800"} 7
walpost_commit_to_ack_seconds_bucket{le="3600"} 7
walpost_commit_to_ack_seconds_bucket{le="7200"} 7
walpost_commit_to_ack_seconds_bucket{le="14400"} 7
walpost_commit_to_ack_seconds_bucket{le="+Inf"} 7
walpost_commit_to_ack_seconds_sum 0.02
walpost_commit_to_ack_seconds_count 7
# HELP walpost_events_skipped_total Events skipped with walpost skip.
# TYPE walpost_events_skipped_total counter
walpost_events_skipped_total 3
# HELP walpost_events_total Events acknowledged by the brokers.
# TYPE walpost_events_total counter
walpost_events_total{topic="orders"} 7
# HELP walpost_oldest_unacked_seconds Age of the oldest transaction that is not fully acknowledged, 0 if none.
# TYPE walpost_oldest_unacked_seconds gauge
walpost_oldest_unacked_seconds 2
# HELP walpost_sessions_total Sessions with the database, by how they ended.
# TYPE walpost_sessions_total counter
walpost_sessions_total{ended="halted"} 0
walpost_sessions_total{ended="lost"} 2
walpost_sessions_total{ended="refused"} 0
walpost_sessions_total{ended="stopped"} 0
# HELP walpost_slot_exhaustion_seconds Forecast: seconds until max_slot_wal_keep_size or monitor.wal_disk_size is used up; +Inf if never, 0 if the next Postgres checkpoint may invalidate the slot; absent without a limit.
# TYPE walpost_slot_exhaustion_seconds gauge
walpost_slot_exhaustion_seconds{database="shop",slot="walpost"} 3600
# HELP walpost_slot_restart_blocker_age_seconds Age of what retains confirmed WAL, 0 if nothing does.
# TYPE walpost_slot_restart_blocker_age_seconds gauge
walpost_slot_restart_blocker_age_seconds{database="shop",slot="walpost"} 60
# HELP walpost_slot_wal_status 1 for the slot's wal_status, 0 for the others.
# TYPE walpost_slot_wal_status gauge
walpost_slot_wal_status{database="shop",slot="walpost",status="extended"} 1
walpost_slot_wal_status{database="shop",slot="walpost",status="lost"} 0
walpost_slot_wal_status{database="shop",slot="walpost",status="reserved"} 0
walpost_slot_wal_status{database="shop",slot="walpost",status="unreserved"} 0
# HELP walpost_topics_abandoned_total How often a partition got a new producer id after a response was lost. Events may be delivered twice.
# TYPE walpost_topics_abandoned_total counter
walpost_topics_abandoned_total 2
# HELP walpost_window_full_seconds_total How long the window has been full.
# TYPE walpost_window_full_seconds_total counter
walpost_window_full_seconds_total 1.5
`
	if err := testutil.GatherAndCompare(collected(t, busy()), strings.NewReader(want), "walpost_commit_to_ack_seconds", "walpost_events_skipped_total", "walpost_events_total",
		"walpost_oldest_unacked_seconds", "walpost_sessions_total", "walpost_slot_exhaustion_seconds",
		"walpost_slot_restart_blocker_age_seconds", "walpost_slot_wal_status", "walpost_topics_abandoned_total", "walpost_window_full_seconds_total"); err != nil {
		t.Error(err)
	}
}

func TestStaleSlotHasNoValues(t *testing.T) {
	relay := busy()
	relay.status.Slot.Known = false
	n, err := testutil.GatherAndCount(collected(t, relay), promised[:slices.Index(promised, "walpost_monitor_last_success_timestamp_seconds")]...)
	if err != nil || n != 0 {
		t.Errorf("%d values of the slot, %v; want none", n, err)
	}
	n, err = testutil.GatherAndCount(collected(t, relay), "walpost_monitor_last_success_timestamp_seconds")
	if err != nil || n != 1 {
		t.Errorf("%d timestamps of the monitor, %v; want 1", n, err)
	}
}

func TestSlotMetricsTellTheWorst(t *testing.T) {
	relay := busy()
	st := &relay.status.Slot
	st.WALStatus, st.Invalidation, st.Active, st.InactiveFor, st.RetainedBytes, st.SafeKnown = "lost", "wal_removed", false, 90*time.Second, -1, false
	st.KeepBytes, st.WALRate, st.Blocker = -1, -1, &slot.Blocker{Kind: slot.BlockedByPrepared, Name: "x", Database: "crm", State: "prepared"}
	want := `
# HELP walpost_clock_skew_seconds The database's clock minus this machine's clock.
# TYPE walpost_clock_skew_seconds gauge
walpost_clock_skew_seconds -1.5
# HELP walpost_slot_exists Whether the slot exists, even if lost.
# TYPE walpost_slot_exists gauge
walpost_slot_exists{database="shop",slot="walpost"} 1
# HELP walpost_slot_inactive_seconds Time since any process last read the slot; before Postgres 17, at most walpost's uptime.
# TYPE walpost_slot_inactive_seconds gauge
walpost_slot_inactive_seconds{database="shop",slot="walpost"} 90
# HELP walpost_slot_invalidated 1, with the reason, if the slot is invalidated; absent otherwise.
# TYPE walpost_slot_invalidated gauge
walpost_slot_invalidated{database="shop",reason="wal_removed",slot="walpost"} 1
# HELP walpost_slot_restart_blocker_info Always 1; the labels show what retains confirmed WAL. kind is transaction, prepared or slot.
# TYPE walpost_slot_restart_blocker_info gauge
walpost_slot_restart_blocker_info{blocker_database="crm",database="shop",kind="prepared",pid="",slot="walpost",state="prepared"} 1
`
	if err := testutil.GatherAndCompare(collected(t, relay), strings.NewReader(want), "walpost_clock_skew_seconds", "walpost_slot_exists",
		"walpost_slot_inactive_seconds", "walpost_slot_invalidated", "walpost_slot_max_wal_keep_bytes", "walpost_slot_restart_blocker_info",
		"walpost_slot_retained_bytes", "walpost_slot_safe_wal_bytes", "walpost_slot_wal_write_bytes_per_second"); err != nil {
		t.Error(err)
	}
	st.Exists, st.Blocker = false, nil
	if n, err := testutil.GatherAndCount(collected(t, relay), "walpost_slot_wal_status", "walpost_slot_invalidated", "walpost_slot_inactive_seconds", "walpost_slot_restart_blocker_info"); err != nil || n != 0 {
		t.Errorf("%d values of a slot that is not there, %v", n, err)
	}
}

// The breaker's state is the process's: it is told also while nobody can look at the slot, and not at all where there is no breaker.
func TestBreakerMetricHasOneState(t *testing.T) {
	relay := busy()
	if n, err := testutil.GatherAndCount(collected(t, relay), "walpost_breaker_state"); err != nil || n != 0 {
		t.Errorf("%d values without a breaker, %v", n, err)
	}
	relay.status.Slot.Known = false
	for _, state := range breakerStates {
		relay.status.Breaker = &slot.BreakerStatus{Action: slot.BreakerDrop, State: state}
		want := "# HELP walpost_breaker_state 1 for the breaker's state, 0 for the others: armed, tripped (past monitor.retained_critical or monitor.breaker_forecast) " +
			"or dropped (the slot is dropped).\n# TYPE walpost_breaker_state gauge\n"
		for _, one := range []string{"armed", "dropped", "tripped"} {
			want += fmt.Sprintf("walpost_breaker_state{database=\"shop\",slot=\"walpost\",state=%q} %v\n", one, flag(one == string(state)))
		}
		if err := testutil.GatherAndCompare(collected(t, relay), strings.NewReader(want), "walpost_breaker_state"); err != nil {
			t.Error(err)
		}
	}
}

// Without a limit there is no limit, nothing left of it, and no time until it is used up: no -1 and no +Inf.
func TestMetricsOfALimitAreAbsentWithoutOne(t *testing.T) {
	relay := busy()
	limited := []string{"walpost_slot_safe_wal_bytes", "walpost_slot_max_wal_keep_bytes", "walpost_slot_exhaustion_seconds"}
	relay.status.Slot.Exhaustion = math.Inf(1) // not in sight, and there is a limit
	if n, err := testutil.GatherAndCount(collected(t, relay), limited...); err != nil || n != 3 {
		t.Errorf("%d values, %v; want 3", n, err)
	}
	relay.status.Slot.SafeKnown, relay.status.Slot.KeepBytes, relay.status.Slot.Limit = false, -1, slot.NoLimit
	if n, err := testutil.GatherAndCount(collected(t, relay), limited...); err != nil || n != 0 {
		t.Errorf("%d values, %v; want none", n, err)
	}
}

func TestStateMetricHasOneState(t *testing.T) {
	r := busy()
	for _, state := range relay.States {
		r.status.State = state
		want := "# HELP walpost_state 1 for the relay's state, as on /readyz, 0 for the others.\n# TYPE walpost_state gauge\n"
		for _, one := range relay.States {
			want += fmt.Sprintf("walpost_state{state=%q} %v\n", one, flag(one == state))
		}
		if err := testutil.GatherAndCompare(collected(t, r), strings.NewReader(want), "walpost_state"); err != nil {
			t.Error(err)
		}
	}
}

// Prometheus takes what ends in _total for a counter.
func TestNamesTellCountersFromGauges(t *testing.T) {
	kafka := prometheus.NewPedanticRegistry()
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.WithHooks(newKafkaMetrics(kafka)))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	families, err := prometheus.Gatherers{collected(t, busy()), kafka}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if counter := f.GetType().String() == "COUNTER"; counter != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s is a %s", f.GetName(), f.GetType())
		}
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	problems, err := testutil.GatherAndLint(collected(t, busy()))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestKafkaMetricsBearSeveralClients(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	hooks := newKafkaMetrics(reg)
	for range 2 {
		client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.WithHooks(hooks))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
	}
	hooks.OnBrokerConnect(kgo.BrokerMetadata{NodeID: 1}, time.Second, nil, nil)
	families, err := reg.Gather()
	if err != nil || len(families) == 0 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "walpost_kafka_") {
			t.Errorf("%s is not called walpost_kafka_…", f.GetName())
		}
	}
}

// The Kafka client's own metrics have as few topics as walpost_events_total.
func TestTheClientsMetricsHaveNotMoreTopicsThanOurs(t *testing.T) {
	reg := prometheus.NewRegistry()
	hooks := newKafkaMetrics(reg)
	cl, err := kgo.NewClient(kgo.WithHooks(hooks))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	const topics = 20_000
	for range 2 {
		for i := range topics {
			hooks.OnProduceBatchWritten(kgo.BrokerMetadata{NodeID: 1}, fmt.Sprint("t", i), 0, kgo.ProduceBatchMetrics{NumRecords: 1, UncompressedBytes: 10})
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		sum, other := 0.0, 0.0
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "topic" {
					sum += m.GetCounter().GetValue()
					if l.GetValue() == sink.OtherTopics {
						other = m.GetCounter().GetValue()
					}
				}
			}
		}
		if sum == 0 {
			continue
		}
		found = true
		if n := len(f.GetMetric()); n != sink.MaxTopicSeries+1 || sum != 2*topics*10 || other != 2*(topics-sink.MaxTopicSeries)*10 {
			t.Errorf("%s: %d series, %v in all, %v of others", f.GetName(), n, sum, other)
		}
	}
	if !found {
		t.Error("nothing is counted by topic")
	}
}
