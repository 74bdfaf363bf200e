package router

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// Each case is what Debezium wrote, except for the ids and flags of spans that it begins: walpost has the writer's instead, and begins no
// trace.
func TestTraceContextsGiveDebeziumsHeaders(t *testing.T) {
	text, err := os.ReadFile("testdata/tracing/debezium.txt")
	if err != nil {
		t.Fatal(err)
	}
	rel := table("id text", "aggregate_type text", "aggregate_id text", "payload text", "tracingspancontext text")
	cases := strings.Split(string(text), "\n== ")[1:]
	for _, c := range cases {
		placement, context, want := "", null, ""
		name, lines, _ := strings.Cut(c, "\n")
		for line := range strings.Lines(lines) {
			switch what, rest, _ := strings.Cut(strings.TrimSpace(line), " "); what {
			case "placement":
				placement = rest
			case "context":
				if context, err = strconv.Unquote(strings.ReplaceAll(rest, "\t", `\t`)); err != nil {
					t.Fatal(err)
				}
			case "header":
				if !strings.Contains(rest, "`00-*-*-") {
					want += " " + strings.ReplaceAll(strings.Replace(rest, " ", ":", 1), "`", `"`)
				}
			case "failure": // it stops Debezium
				want = ` __debezium.context.connectorLogicalName:"shop" id:"u-1"`
			}
		}
		got := result(t, func(c *Config) {
			c.SpanContext, c.AdditionalPlacement, c.ExtendedHeaders = "tracingspancontext", placement, true
			c.Headers = []HeaderStep{{Drop: []string{runIDHeader, taskIDHeader, connectorHeader}}}
		}, insert(rel, "u-1", "order", "k", "x", context))
		got = strings.TrimPrefix(got, `order[-1] "k"="x"`)
		if want = strings.ReplaceAll(want, "-*-", "-00f067aa0ba902b7-"); name == "another flag" {
			want = strings.Replace(want, `-01"`, `-03"`, 1)
		}
		if got != want {
			t.Errorf("%s: %s, want%s", name, got, want)
		}
	}
	if len(cases) < 25 {
		t.Errorf("%d cases", len(cases))
	}
}

func TestHeadersOfATraceContext(t *testing.T) {
	rel := table("id text", "aggregate_type text", "aggregate_id text", "payload text", "tracingspancontext varchar")
	traced := func(c *Config) { c.SpanContext = "tracingspancontext" }
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"off": {func(*Config) {}, ` id:"u-1"`},
		"between other ones": {all(traced, func(c *Config) {
			c.Headers = []HeaderStep{{Insert: "a", Value: "1", BeforeID: true}, {Insert: "b", Value: "2"}}
		}), ` a:"1" traceparent:"` + parent + `" tracestate:"a=1" id:"u-1" b:"2"`},
		"of another converter": {all(traced, func(c *Config) { c.Header = Converter{Name: "json", NullDefault: true} }), ` traceparent:"'` + parent + `'" tracestate:"'a=1'" id:"'u-1'"`},
		"dropped":              {all(traced, func(c *Config) { c.Headers = []HeaderStep{{Drop: []string{"tracestate"}}} }), ` traceparent:"` + parent + `" id:"u-1"`},
		"of a CloudEvent": {
			all(traced, cloudEvents("binary"), func(c *Config) { c.CloudEvents.TypeField = "aggregate_type" }),
			` traceparent:"` + parent + `" tracestate:"a=1" id:"u-1" ce_specversion:"1.0" ce_id:"u-1" ce_source:"/mycontext/subcontext" ce_type:"order" ce_subject:"k" content-type:"text/plain; charset=UTF-8"`,
		},
	} {
		got := result(t, c.change, insert(rel, "u-1", "order", "k", "x", "tracestate=a=1\ntraceparent="+parent))
		if headers, found := strings.CutPrefix(got, `order[-1] "k"="x"`); !found || headers != c.want {
			t.Errorf("%s: %s, want%s", name, got, c.want)
		}
	}
}

func TestAColumnOfTheTraceContext(t *testing.T) {
	traced := func(c *Config) { c.SpanContext = "span" }
	without := insert(outbox, "u-1", "order", "k", "P", "1")
	if got := result(t, traced, without); !strings.Contains(got, `router.tracing.span.context.field: there is no column "span"`) {
		t.Error(got)
	}
	if got := result(t, all(traced, func(c *Config) { c.AdditionalMissing = "ignore" }), without); got != `order[-1] "k"="1" id:"u-1"` {
		t.Error(got)
	}
	rel := table("id text", "aggregate_type text", "aggregate_id text", "payload text", "span int4")
	if got := result(t, traced, insert(rel, "u-1", "order", "k", "x", "1")); !strings.Contains(got, "Field 'span' is not of type STRING") {
		t.Error(got)
	}
	content := `{"id": "m", "aggregate_type": "order", "aggregate_id": "k", "payload": "x", "span": "traceparent=` + parent + `"}`
	ev := &cdc.Event{Kind: cdc.Message, LSN: 7, Row: cdc.Row{Relation: cdc.Messages("outbox"), Values: []cdc.Value{{Bytes: []byte(content)}}}}
	if got := result(t, traced, ev); !strings.Contains(got, ` traceparent:"`+parent+`" id:"m"`) {
		t.Error(got)
	}
}

func TestATraceContextThatIsLeftOutIsRemarked(t *testing.T) {
	cfg := DefaultConfig()
	cfg.SpanContext = "event_type"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var rec cdc.Record
	if _, err := r.Route(insert(outbox, "u-1", "order", "k", "no context", "1"), &rec); err != nil {
		t.Fatal(err)
	}
	var remarks []string
	r.Remarks(func(what string, severe bool, count uint64, last string) {
		remarks = append(remarks, fmt.Sprintf("%s (%t, %d): %s", what, severe, count, last))
	})
	if want := `trace context left out (false, 1): event "u-1" of public.outbox: column event_type has no valid traceparent`; !slices.Equal(remarks, []string{want}) {
		t.Errorf("%q, want %q", remarks, want)
	}
}
