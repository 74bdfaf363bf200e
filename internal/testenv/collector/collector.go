// Package collector receives the spans of a test, by OTLP over HTTP.
package collector

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Collector is a server that keeps what it is sent.
type Collector struct {
	*httptest.Server
	// Answer, if it is not nil, answers a request instead of the Collector.
	Answer   atomic.Pointer[http.HandlerFunc]
	Requests atomic.Int64

	mu    sync.Mutex
	spans []Span
}

// A Span is a span with the attributes of its resource.
type Span struct {
	*tracepb.Span
	Resource []*common.KeyValue
}

// Start starts a Collector, which ends with the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Requests.Add(1)
	if answer := c.Answer.Load(); answer != nil {
		(*answer)(w, r)
		return
	}
	var req coltrace.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, &req)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "no OTLP", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range req.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{s, of.GetResource().GetAttributes()})
			}
		}
	}
}

// Spans returns what has arrived.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Attr is an attribute of the span as text or number, nil for none.
func (s *Span) Attr(key string) any { return value(s.Attributes, key) }

// ResourceAttr is an attribute of its resource.
func (s *Span) ResourceAttr(key string) any { return value(s.Resource, key) }

func value(of []*common.KeyValue, key string) any {
	for _, kv := range of {
		if kv.Key != key {
			continue
		}
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			return v.StringValue
		case *common.AnyValue_IntValue:
			return v.IntValue
		case *common.AnyValue_BoolValue:
			return v.BoolValue
		}
	}
	return nil
}

// Start is when the span began.
func (s *Span) Start() time.Time { return time.Unix(0, int64(s.StartTimeUnixNano)) }

// End is when the span ended.
func (s *Span) End() time.Time { return time.Unix(0, int64(s.EndTimeUnixNano)) }
