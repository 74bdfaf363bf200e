package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/collector"
)

const writersTrace, writersSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

// traced is a setting whose outbox has the writer's trace context, and a function that writes an event. flags is "" for none.
func traced(t *testing.T, pg *testenv.PG, dsn string, kafka *testenv.KafkaCluster) (s *setting, write func(key, flags string)) {
	t.Helper()
	s = newSetting(t, pg, dsn, kafka)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN headers jsonb")
	s.source = ", slot: " + strings.ReplaceAll(unique("spans_"), "-", "_") // the server is shared
	s.router = ", table.fields.additional.placement: 'headers:headers'"
	return s, func(key, flags string) {
		t.Helper()
		headers := "NULL"
		if flags != "" {
			headers = fmt.Sprintf(`'{"traceparent": "00-%s-%s-%s", "tracestate": "vendor=1"}'`, writersTrace, writersSpan, flags)
		}
		pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', '%s', 'Changed', '{}', %s)", key, headers))
	}
}

// environment sets variables of the process.
func (s *setting) environment(vars ...string) {
	s.caged = func(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), append(vars, "OTEL_BSP_SCHEDULE_DELAY=50")...) }
}

// spanOf waits for the span of the event with a key.
func spanOf(t *testing.T, c *collector.Collector, key string) (span collector.Span) {
	t.Helper()
	eventually(t, time.Minute, "the span of "+key, func() bool {
		for _, s := range c.Spans() {
			if s.Attr("messaging.kafka.message.key") == key {
				span = s
				return true
			}
		}
		return false
	})
	return span
}

// TestEachEventHasASpan: the span of an event is in its writer's trace, tells where the record is, and lasts from the commit to the
// acknowledgement. The writer's sampler decides, and for other events the relay's. A bad event has its reason.
func TestEachEventHasASpan(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []string{"at_least_once", "exactly_once"} {
		t.Run(guarantee, func(t *testing.T) {
			t.Parallel()
			c, pg, kafka := collector.Start(t), testenv.Postgres(t, ""), testenv.Kafka(t)
			s, write := traced(t, pg, pg.Database(t), kafka)
			dead := kafka.Topic(t, 1, nil)
			kafka.CreateTopic(t, s.prefix+"small", 1, map[string]string{"max.message.bytes": "20000"})
			s.extra = fmt.Sprintf("tracing: {endpoint: %q}\ndelivery: {guarantee: %s, on_poison: dead_letter, dead_letter_topic: %s}", c.URL, guarantee, dead)
			s.environment("OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0")
			if code, out := s.command("check"); code != 0 || !strings.Contains(out, "collector: tracing.endpoint: the collector accepts spans") {
				t.Errorf("check: %d %s", code, out)
			}
			var mu sync.Mutex
			records := map[string]*kgo.Record{}
			s.consume(append([]string{dead}, s.topics...), func(r *kgo.Record) {
				mu.Lock()
				defer mu.Unlock()
				records[string(r.Key)] = r
			})
			r := s.startReady()
			before := time.Now()
			write("unsampled", "00")
			write("untraced", "")
			write("good", "01")
			good := spanOf(t, c, "good")
			after := time.Now()
			var rec *kgo.Record
			eventually(t, time.Minute, "the record", func() bool {
				mu.Lock()
				defer mu.Unlock()
				rec = records["good"]
				return rec != nil
			})
			if good.Name != "send "+rec.Topic || good.Kind != tracepb.Span_SPAN_KIND_PRODUCER || good.Status.GetCode() != tracepb.Status_STATUS_CODE_UNSET {
				t.Errorf("%v", good)
			}
			if ids := fmt.Sprintf("%x %x", good.TraceId, good.ParentSpanId); ids != writersTrace+" "+writersSpan || len(good.Links) != 1 || fmt.Sprintf("%x %x", good.Links[0].TraceId, good.Links[0].SpanId) != ids || good.TraceState != "vendor=1" {
				t.Errorf("%v", good)
			}
			for name, want := range map[string]any{
				"messaging.system": "kafka", "messaging.operation.type": "send", "messaging.operation.name": "send", "messaging.destination.name": rec.Topic,
				"messaging.destination.partition.id": strconv.Itoa(int(rec.Partition)), "messaging.kafka.offset": rec.Offset, "messaging.message.id": header(rec, "id"),
			} {
				if got := good.Attr(name); got != want {
					t.Errorf("%s is %v, must be %v", name, got, want)
				}
			}
			if good.ResourceAttr("service.name") != "walpost" {
				t.Errorf("%v", good.Resource)
			}
			micros, err := strconv.ParseInt(pg.Value(t, s.dsn, "SELECT (extract(epoch FROM created_at) * 1000000)::bigint FROM outbox WHERE aggregate_id = 'good'"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			commit := time.UnixMicro(micros)
			if from := good.Start().Sub(commit); from < -time.Millisecond || from > time.Minute || !good.End().After(good.Start()) || good.Start().Before(before.Add(-time.Second)) || good.End().After(after) {
				t.Errorf("the row was written at %s; the span is from %s to %s, between %s and %s", commit, good.Start(), good.End(), before, after)
			}
			pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers)
				SELECT 'small', 'bad', 'Changed', jsonb_agg(md5(i::text)), '{"traceparent": "00-%s-%s-01"}' FROM generate_series(1, 2000) i`, writersTrace, writersSpan))
			bad := spanOf(t, c, "bad")
			if bad.Name != "send "+dead || bad.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || bad.Attr("error.type") != "too_large" || bad.Status.GetMessage() == "" || fmt.Sprintf("%x", bad.TraceId) != writersTrace {
				t.Errorf("%v", bad)
			}
			r.stopsClean()
			if all := c.Spans(); len(all) != 2 {
				t.Errorf("%d spans: %v", len(all), all)
			}
		})
	}
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// TestACollectorHoldsNothingUp: while the collector is down, and while it takes connections and says nothing, events are delivered, the
// log has one line, and a stop is clean. The check warns.
func TestACollectorHoldsNothingUp(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"down", "silent"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			pg, kafka := testenv.Postgres(t, ""), testenv.Kafka(t)
			s, _ := traced(t, pg, pg.Database(t), kafka)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close() //nolint:errcheck // it may be closed already
			if how == "down" {
				l.Close() //nolint:errcheck // nobody listens now
			}
			s.extra = fmt.Sprintf("tracing: {endpoint: %q}", "http://"+l.Addr().String())
			s.environment("OTEL_EXPORTER_OTLP_TIMEOUT=300")
			if code, out := s.command("check"); code != 0 || !strings.Contains(out, "warn  collector: tracing.endpoint:") {
				t.Errorf("check: %d %s", code, out)
			}
			w := s.follow()
			r := s.startReady()
			bigTransaction(t, pg, s, "spans", 20_000)
			if rep := s.settle(w, time.Minute); !rep.OK() || rep.Duplicates > 0 {
				t.Errorf("%s", rep.String())
			}
			eventually(t, time.Minute, "the loss is told", func() bool { return strings.Contains(r.log.String(), "spans are lost") })
			if _, metrics := r.get("/metrics"); !regexp.MustCompile(`(?m)^walpost_spans_lost_total [1-9]`).MatchString(metrics) {
				t.Error("the metrics do not tell it")
			}
			r.stopsClean()
			if n := strings.Count(r.log.String(), "spans are lost"); n != 1 {
				t.Errorf("the log tells it %d times", n)
			}
		})
	}
}

// TestNoCollectorIsAskedForNothing: OpenTelemetry's variables alone, which a cluster may give every process, turn nothing on.
func TestNoCollectorIsAskedForNothing(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, ""), testenv.Kafka(t)
	s, write := traced(t, pg, pg.Database(t), kafka)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	var connections atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			conn.Close() //nolint:errcheck // nobody should be there
		}
	}()
	s.environment("OTEL_EXPORTER_OTLP_ENDPOINT=http://"+l.Addr().String(), "OTEL_TRACES_EXPORTER=otlp", "OTEL_TRACES_SAMPLER=nonsense")
	w := s.follow()
	r := s.startReady()
	write("good", "01")
	w.total(t, time.Minute, 1)
	r.stopsClean()
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}
