package router

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/javaproperties"
	"github.com/walpost/walpost/router/internal/connect"
)

const optionSpanContext = "router.tracing.span.context.field"

var traceSchema = &connect.Schema{Type: connect.String}

// spanContext adds to a plan the column of the writer's trace context.
func (p *planner) spanContext(made *plan) {
	if p.missing(p.cfg.SpanContext) {
		return
	}
	if c, ok := p.typed(optionSpanContext, p.cfg.SpanContext, connect.String); ok {
		made.spanContext, made.more = &c, made.more+2
	}
}

// traceContext returns the W3C trace context in the text of a java.util.Properties, as OpenTelemetry's
// propagator for Java reads and writes it. parent is "" if there is none.
func traceContext(text []byte) (parent, state string) {
	properties, err := javaproperties.Load(text)
	if err != nil {
		return "", ""
	}
	for _, p := range properties { // the last one with a key counts
		switch p.Key {
		case "traceparent":
			parent = p.Value
		case "tracestate":
			state = p.Value
		}
	}
	if !isTraceParent(parent) {
		return "", ""
	}
	parent = "00" + parent[2:len(noTraceParent)]
	members := strings.Split(state, ",")
	for i := range members {
		if members[i] = strings.Trim(members[i], " \t"); !stateMember.MatchString(members[i]) {
			return parent, ""
		}
	}
	return parent, strings.Join(members, ",")
}

const noTraceParent = "00-00000000000000000000000000000000-0000000000000000-00"

var stateMember = regexp.MustCompile(`^[a-z0-9][a-z0-9_*/@-]*=[ -+\--<>-~]*$`)

// isTraceParent reports whether s is <version>-<trace id>-<span id>-<flags>, with more behind it only in
// a later version than 00.
func isTraceParent(s string) bool {
	if len(s) < len(noTraceParent) || s[:2] == "ff" || len(s) > len(noTraceParent) && (s[:2] == "00" || s[len(noTraceParent)] != '-') {
		return false
	}
	for i := range len(noTraceParent) {
		digit := s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		if digit == (noTraceParent[i] == '-') || !digit && s[i] != '-' {
			return false
		}
	}
	return s[2:35] != noTraceParent[2:35] && s[35:52] != noTraceParent[35:52]
}

// traceHeaders adds the writer's traceparent and tracestate, where Debezium writes them if Connect has
// OpenTelemetry. Debezium's traceparent has the id of a new span, and the flags of a sampler. Here it is
// the writer's span, which is the same in each run. Without a valid one, Debezium begins a trace, and
// the record has no such headers here.
func (r *Router) traceHeaders(buf []byte, p *plan, row *row, rec *cdc.Record) ([]byte, *Problem) {
	raw := row.text(p.spanContext)
	if raw == nil {
		return buf, nil
	}
	parent, state := traceContext(raw)
	if parent == "" {
		r.untraced.add(fmt.Sprintf("event %q of %s: column %s has no valid traceparent", rec.EventID, p.rel, p.spanContext.name))
	}
	for _, h := range [...]struct{ name, text string }{{"traceparent", parent}, {"tracestate", state}} {
		if h.text == "" || slices.Contains(r.dropped, h.name) {
			continue
		}
		var value []byte
		var err error
		if buf, value, err = convert(buf, r.convs.header, rec.Topic, traceSchema, h.text); err != nil {
			return buf, p.spanContext.bad(raw, err)
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: h.name, Value: value})
	}
	return buf, nil
}
