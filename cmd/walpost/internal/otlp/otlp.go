// Package otlp sends the spans of a relay to a collector, by OpenTelemetry's protocol over HTTP.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/walpost/walpost/internal/condition"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fix"
)

// Config is the section tracing of walpost.yaml. The rest is in OpenTelemetry's own environment variables, which the SDK reads.
type Config struct {
	// The base URL of an OTLP/HTTP receiver. It turns on [a span for each
	// event](operations.md#traces).
	Endpoint string `yaml:"endpoint" example:"http://otel-collector:4318"`
}

// On reports whether spans are wanted.
func (c *Config) On() bool { return c.Endpoint != "" }

// Validate adds what is wrong with the section and, if spans are wanted, with the environment. It connects nowhere.
func (c *Config) Validate(found *conf.Problems) {
	if !c.On() {
		return
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && u.Scheme != "http" {
		found.Add("tracing.endpoint", conf.MustBe, "an https or http URL without a user or query", nil)
		return
	}
	if _, _, err := c.prepare(""); err != nil {
		found.Add("tracing.endpoint", conf.Usable, "the environment of the process: "+err.Error(), nil)
	}
}

// Reach finds out whether the collector takes an empty request. Delivery does not need it.
func (c *Config) Reach(ctx context.Context) condition.Finding {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	f := condition.Finding{Side: condition.Collector, Name: "tracing.endpoint", Verdict: condition.OK, Why: "the collector accepts spans"}
	if err := c.client(otlptracehttp.WithRetry(otlptracehttp.RetryConfig{})).UploadTraces(ctx, nil); err != nil {
		f.Verdict, f.Why = condition.Warn, "the collector accepts no spans, so they would be lost: "+c.hide(err)
		f.Fix = fix.ByWords("Name the base URL of an OTLP/HTTP receiver, usually at port 4318, and set what it requires in OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_CERTIFICATE.")
	}
	return f
}

const (
	reachWithin = 5 * time.Second
	closeWithin = 2 * time.Second
	sayEvery    = 10 * time.Minute
	mostSpans   = 2048    // that wait, as in the SDK
	mostOf      = 1 << 20 // spans or milliseconds in a variable
)

func (c *Config) client(more ...otlptracehttp.Option) otlptrace.Client {
	return otlptracehttp.NewClient(append(more, otlptracehttp.WithEndpointURL(c.url().String()))...)
}

// url is where spans are sent.
func (c *Config) url() *url.URL {
	u, err := url.Parse(c.Endpoint)
	if err != nil { // Validate has refused it
		return new(url.URL)
	}
	if u.Path = path.Join("/", u.Path); !strings.HasSuffix(u.Path, "/v1/traces") {
		u.Path = path.Join(u.Path, "v1/traces")
	}
	return u
}

// hide is an error of the exporter without what is secret: a token in the path of the URL, and the values of headers, which a
// collector's answer can repeat.
func (c *Config) hide(err error) string {
	u, text := c.url(), err.Error()
	text = strings.ReplaceAll(text, u.String(), u.Scheme+"://"+u.Host)
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for header := range strings.SplitSeq(os.Getenv(name), ",") {
			_, value, _ := strings.Cut(header, "=")
			if plain, err := url.PathUnescape(strings.TrimSpace(value)); err == nil && plain != "" {
				text = strings.ReplaceAll(text, plain, "…")
			}
		}
	}
	return text
}

// prepare makes what depends on the environment. The SDK reports what it doesn't understand there, and goes on without it. Here it is
// an error.
func (c *Config) prepare(version string) (*otlptrace.Exporter, *resource.Resource, error) {
	var wrong complaints
	defer wrong.collect()()
	wrong.variables()
	ctx := context.Background()
	own, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName("walpost"), semconv.ServiceVersion(version)), resource.WithFromEnv())
	wrong.add("resource", err)
	exporter, err := otlptrace.New(ctx, c.client())
	wrong.add("exporter", err)
	sdk.NewTracerProvider(sdk.WithResource(own)) // reads the sampler; without a processor there is nothing to shut down
	return exporter, own, wrong.err()
}

// variables adds what is wrong with variables that the SDK reads without a complaint. Some of them would end the process.
func (c *complaints) variables() {
	for _, name := range []string{"MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "SCHEDULE_DELAY", "EXPORT_TIMEOUT"} {
		name = "OTEL_BSP_" + name
		if value := os.Getenv(name); value != "" {
			if n, err := strconv.Atoi(value); err != nil || n < 1 || n > mostOf {
				c.add(name, fmt.Errorf("must be a number from 1 to %d", mostOf))
			}
		}
	}
	for name, known := range map[string][]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL": {"http/protobuf"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": {"http/protobuf"},
		"OTEL_EXPORTER_OTLP_COMPRESSION": {"gzip", "none"}, "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": {"gzip", "none"},
		"OTEL_SDK_DISABLED": {"false"}, "OTEL_TRACES_EXPORTER": {"otlp"},
	} {
		if value := os.Getenv(name); value != "" && !slices.Contains(known, value) {
			c.add(name, fmt.Errorf("must be %s, or unset", strings.Join(known, " or ")))
		}
	}
}

// complaints are errors that the SDK reports.
type complaints struct {
	mu   sync.Mutex
	errs []error
}

func (c *complaints) add(what string, err error) {
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
	}
}

func (c *complaints) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}

// Handle takes an error of the SDK that has no other way.
func (c *complaints) Handle(err error) { c.add("opentelemetry", err) }

// collect has the SDK, of which a process has one, report to c until the returned function is called. Afterwards it is silent: the
// exporter's errors are told by a Tracer.
func (c *complaints) collect() (end func()) {
	one.Lock()
	otel.SetErrorHandler(c)
	otel.SetLogger(logr.FromSlogHandler(heard{c}))
	return func() {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
		otel.SetLogger(logr.Discard())
		one.Unlock()
	}
}

var one sync.Mutex // collects at a time

// heard is what the SDK logs as an error. Its values may be secret.
type heard struct{ *complaints }

func (heard) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
func (h heard) WithAttrs([]slog.Attr) slog.Handler             { return h }
func (h heard) WithGroup(string) slog.Handler                  { return h }
func (h heard) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		switch err, ok := a.Value.Any().(error); {
		case ok && strings.HasPrefix(r.Message, "escape header"): // which the error quotes
			h.add("OTEL_EXPORTER_OTLP_HEADERS", errors.New(r.Message))
		case ok:
			h.add(r.Message, err)
		}
		return true
	})
	return nil
}

// A Tracer sends spans beside everything else. Nothing waits for it: while the collector takes none, or too few, further spans are
// lost, and the log says so.
type Tracer struct {
	*sdk.TracerProvider
	queue *queue
	log   *slog.Logger
}

// Open begins to send the spans of a valid Config. It does not wait for the collector.
func (c *Config) Open(version string, log *slog.Logger) (*Tracer, error) {
	exporter, own, err := c.prepare(version)
	if err != nil {
		return nil, err
	}
	most := mostSpans
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		most = n
	}
	q := &queue{exporter: exporter, most: int64(most), log: log, hide: c.hide}
	q.SpanProcessor = sdk.NewBatchSpanProcessor(outlet{q}, sdk.WithMaxQueueSize(most))
	return &Tracer{sdk.NewTracerProvider(sdk.WithResource(own), sdk.WithSpanProcessor(q)), q, log}, nil
}

// Lost is how many spans were lost so far, at most.
func (t *Tracer) Lost() int64 { return t.queue.all.Load() }

// Close sends what waits, for closeWithin at most.
func (t *Tracer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	err := t.Shutdown(ctx)
	if n := t.queue.waiting.Load() + t.queue.dropped.Load() + t.queue.lost.Load(); n > 0 {
		t.log.Warn("the relay stops before the collector has taken all spans", "lost", n, "err", err)
	}
}
