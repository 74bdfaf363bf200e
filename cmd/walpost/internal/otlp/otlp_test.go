package otlp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/testenv/collector"
)

// Every mistake is found before anything is connected: the SDK would go on without what it does not understand.
func TestAMistakeIsRefused(t *testing.T) {
	const valid = "http://collector:4318"
	for _, c := range []struct{ endpoint, variable, value, want string }{
		{valid, "", "", ""},
		{"https://gateway/otlp", "OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret", ""},
		{"", "OTEL_TRACES_SAMPLER", "sometimes", ""}, // off
		{"collector:4318", "", "", `tracing.endpoint: must be an https or http URL without a user or query`},
		{"grpc://collector:4317", "", "", "must be an https or http URL"},
		{"http://user:pw@collector", "", "", "without a user"},
		{valid, "OTEL_TRACES_SAMPLER", "sometimes", "tracing.endpoint: the environment of the process: opentelemetry: unsupported sampler: sometimes"},
		{valid, "OTEL_EXPORTER_OTLP_HEADERS", "secret", "parse headers: missing"},
		{valid, "OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "parse duration"},
		{valid, "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "read tls ca cert file: open /nowhere/ca.pem"},
		{valid, "OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret%ss", "OTEL_EXPORTER_OTLP_HEADERS: escape header"},
		{valid, "OTEL_RESOURCE_ATTRIBUTES", "team", "missing value: [team]"},
		{valid, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE: must be a number from 1 to 1048576"}, // a panic of the SDK
		{valid, "OTEL_BSP_MAX_QUEUE_SIZE", "99999999999999", "OTEL_BSP_MAX_QUEUE_SIZE: must be a number"},
		{valid, "OTEL_BSP_SCHEDULE_DELAY", "5s", "OTEL_BSP_SCHEDULE_DELAY: must be a number"},
		{valid, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf, or unset"},
		{valid, "OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "must be gzip or none, or unset"},
		{valid, "OTEL_SDK_DISABLED", "true", "OTEL_SDK_DISABLED: must be false"},
		{valid, "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", ""},
	} {
		t.Run(c.endpoint+" "+c.variable, func(t *testing.T) {
			if c.variable != "" {
				t.Setenv(c.variable, c.value)
			}
			var found conf.Problems
			cfg := &Config{Endpoint: c.endpoint}
			if cfg.Validate(&found); (c.want == "") != (len(found) == 0) || !strings.Contains(found.Error(), c.want) || strings.Contains(found.Error(), "secret") {
				t.Errorf("%q, must have %q", found.Error(), c.want)
			}
		})
	}
}

func TestTheSamplersRatioIsValidated(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	for arg, ok := range map[string]bool{"0.1": true, "0": true, "7": false, "ten": false} {
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", arg)
		var found conf.Problems
		if (&Config{Endpoint: "http://collector"}).Validate(&found); (len(found) == 0) != ok {
			t.Errorf("%s: %v", arg, found)
		}
	}
}

// The check asks the collector as the relay will: at its path, with its headers.
func TestTheCheckAsksTheCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
	c := collector.Start(t)
	if f := (&Config{Endpoint: c.URL + "/"}).Reach(t.Context()); f.Verdict != condition.OK || c.Requests.Load() != 1 {
		t.Errorf("%+v", f)
	}
	denies := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "wrong key "+r.Header.Get("Api-Key")+" at "+r.URL.Path, http.StatusForbidden)
	})
	c.Answer.Store(&denies)
	if f := (&Config{Endpoint: c.URL + "/otlp"}).Reach(t.Context()); f.Verdict != condition.Warn || !strings.Contains(f.Why, "wrong key … at /otlp/v1/traces") || len(f.Fix) == 0 {
		t.Errorf("%+v", f)
	}
	if f := (&Config{Endpoint: c.URL + "/token/v1/traces/"}).Reach(t.Context()); strings.Contains(f.Why, c.URL+"/token") || !strings.Contains(f.Why, c.URL) {
		t.Errorf("the path of the URL may be secret: %+v", f)
	}
	down := collector.Start(t)
	down.Close()
	if f := (&Config{Endpoint: down.URL}).Reach(t.Context()); f.Verdict != condition.Warn || !strings.Contains(f.Why, "refused") {
		t.Errorf("%+v", f)
	}
}

// A log is what a Tracer wrote.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// open opens a Tracer that exports often and has room for 100 spans.
func open(t *testing.T, endpoint string) (*Tracer, *log) {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
	t.Setenv("OTEL_SERVICE_NAME", "shop-relay")
	said := new(log)
	tracer, err := (&Config{Endpoint: endpoint}).Open("v1.2.3", slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return tracer, said
}

func makeSpans(tracer trace.TracerProvider, n int) {
	for i := range n {
		_, span := tracer.Tracer("test").Start(context.Background(), fmt.Sprint("span ", i))
		span.End()
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for give := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(give) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

func TestSpansArriveWithTheirResource(t *testing.T) {
	c := collector.Start(t)
	tracer, said := open(t, c.URL)
	makeSpans(tracer, 3)
	tracer.Close() // sends what waits
	all := c.Spans()
	if len(all) != 3 || all[0].Name != "span 0" || all[0].ResourceAttr("service.name") != "shop-relay" || all[0].ResourceAttr("service.version") != "v1.2.3" || said.String() != "" {
		t.Errorf("%v; %s", all, said)
	}
}

// A collector that hangs holds nobody up: the spans that wait are bounded, the others are counted, and the log says so once, and when it is
// over. Then a stop takes no longer than its bound.
func TestACollectorThatHangsCostsSpansOnly(t *testing.T) {
	c := collector.Start(t)
	release, closed := make(chan struct{}), make(chan struct{})
	hangs := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case <-release:
		case <-closed:
		}
	})
	t.Cleanup(func() { close(closed) }) // before the server closes
	c.Answer.Store(&hangs)
	tracer, said := open(t, c.URL)
	makeSpans(tracer, 1)
	eventually(t, "the collector has a request", func() bool { return c.Requests.Load() == 1 })
	makeSpans(tracer, 5000)
	if n, lost := tracer.queue.waiting.Load(), tracer.Lost(); n != 100 || lost != 4901 {
		t.Errorf("%d spans wait, %d are lost", n, lost)
	}
	c.Answer.Store(nil)
	close(release)
	eventually(t, "the loss is told", func() bool { return strings.Contains(said.String(), "lost_at_most=4901") })
	eventually(t, "the others arrive", func() bool { return len(c.Spans()) == 99 }) // the request that hung is not among them
	eventually(t, "and that it is over", func() bool { return strings.Contains(said.String(), "spans reach the collector again") })
	release = make(chan struct{})
	c.Answer.Store(&hangs)
	makeSpans(tracer, 5000)
	from := time.Now()
	if tracer.Close(); time.Since(from) > 10*closeWithin {
		t.Errorf("the stop took %s", time.Since(from))
	}
	if text := said.String(); strings.Count(text, "spans are lost") != 1 || strings.Count(text, "the relay stops") != 1 || !strings.Contains(text, "lost=5000 ") {
		t.Errorf("%s", text)
	}
}

// A collector that is down is told once, however many batches fail.
func TestACollectorThatIsDownIsToldOnce(t *testing.T) {
	c := collector.Start(t)
	c.Close()
	tracer, said := open(t, c.URL)
	lost := int64(0)
	for range 20 {
		makeSpans(tracer, 50)
		eventually(t, "the batch has failed", func() bool { return tracer.queue.waiting.Load() == 0 })
		lost += 50
	}
	tracer.Close()
	// The first batch has the first 50, or a part of them.
	var first, rest int64
	text := said.String()
	for field := range strings.FieldsSeq(text) {
		_, _ = fmt.Sscanf(field, "lost_at_most=%d", &first)
		_, _ = fmt.Sscanf(field, "lost=%d", &rest)
	}
	if tracer.Lost() != lost || strings.Count(text, "\n") != 2 || !strings.Contains(text, "refused") || first < 1 || first > 50 || first+rest != lost {
		t.Errorf("%s", text)
	}
	q := &queue{log: slog.New(slog.NewTextHandler(said, nil))}
	now := time.Now()
	q.report(5, "timeout", now)
	q.report(6, "timeout", now.Add(sayEvery-1))
	q.report(7, "timeout", now.Add(sayEvery))
	q.report(8, "timeout", now.Add(sayEvery))
	q.report(0, "", now.Add(2*sayEvery))
	q.report(0, "", now.Add(2*sayEvery))
	if text := said.String(); strings.Count(text, "\n") != 5 || !strings.Contains(text, "lost_at_most=5 ") || !strings.Contains(text, "lost_at_most=13 ") || !strings.Contains(text, "lost_meanwhile=8") {
		t.Errorf("%s", text)
	}
}
