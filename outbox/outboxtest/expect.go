package outboxtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/outbox"
)

// Expect fails the test unless got are the wanted events, in this order. A field that is zero in a
// wanted event can have any value, and an event can have more headers than the wanted one. JSON
// payloads are compared by value. A wanted Payload that isn't []byte, json.RawMessage or
// outbox.Null is compared as encoded by json.Marshal; a string may also match as it is.
func Expect(t testing.TB, got []outbox.Event, want ...outbox.Event) {
	t.Helper()
	var report strings.Builder
	bad := len(got) != len(want)
	for i := range max(len(got), len(want)) {
		if i >= len(got) {
			fmt.Fprintf(&report, "\n  %d: missing: %s", i, describe(want[i]))
			continue
		}
		fmt.Fprintf(&report, "\n  %d: %s", i, describe(got[i]))
		if i >= len(want) {
			report.WriteString("\n     not wanted")
			continue
		}
		for _, d := range differences(got[i], want[i]) {
			bad = true
			report.WriteString("\n     " + d)
		}
	}
	if bad {
		t.Errorf("the outbox has %d events, want %d:%s", len(got), len(want), &report)
	}
}

// describe is an event in one line. What an event that is wanted leaves open is "…".
func describe(e outbox.Event) string {
	parts := []string{e.AggregateType, e.AggregateID, e.Type}
	for i, p := range parts {
		if p == "" {
			parts[i] = "…"
		}
	}
	parts = append(parts, text(e.Payload))
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		parts = append(parts, fmt.Sprintf("%s=%s", name, e.Headers[name]))
	}
	return strings.Join(parts, " ")
}

func text(payload any) string {
	if payload == nil {
		return "…"
	}
	if payload == outbox.Null {
		return "without a payload"
	}
	b, err := content(payload)
	if err != nil {
		return err.Error()
	}
	const most = 400
	format := "%s"
	if !json.Valid(b) {
		format = "%q"
	}
	if len(b) > most {
		return fmt.Sprintf(format+"… (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf(format, b)
}

func content(payload any) ([]byte, error) {
	switch p := payload.(type) {
	case []byte:
		return p, nil
	case json.RawMessage:
		return p, nil
	}
	return json.Marshal(payload)
}

// differences says how an event differs from the wanted one.
func differences(got, want outbox.Event) (all []string) {
	for _, f := range []struct{ name, got, want string }{
		{"ID", got.ID, strings.ToLower(want.ID)},
		{"AggregateType", got.AggregateType, want.AggregateType},
		{"AggregateID", got.AggregateID, want.AggregateID},
		{"Type", got.Type, want.Type},
	} {
		if f.want != "" && f.got != f.want {
			all = append(all, fmt.Sprintf("%s: got %s, want %s", f.name, f.got, f.want))
		}
	}
	if want.Payload != nil && !samePayload(got.Payload, want.Payload) {
		all = append(all, fmt.Sprintf("Payload: got %s, want %s", text(got.Payload), text(want.Payload)))
	}
	for _, name := range slices.Sorted(maps.Keys(want.Headers)) {
		switch value, is := got.Headers[name]; {
		case !is:
			all = append(all, fmt.Sprintf("Headers[%q]: missing, want %q", name, want.Headers[name]))
		case value != want.Headers[name]:
			all = append(all, fmt.Sprintf("Headers[%q]: got %q, want %q", name, value, want.Headers[name]))
		}
	}
	return all
}

func samePayload(got, want any) bool {
	if null := want == outbox.Null; null || got == outbox.Null {
		return null && got == outbox.Null
	}
	g, err := content(got)
	if err != nil {
		return false
	}
	if s, is := want.(string); is && s == string(g) {
		return true
	}
	w, err := content(want)
	if err != nil {
		return false
	}
	return bytes.Equal(g, w) || sameJSON(g, w)
}

func sameJSON(a, b []byte) bool {
	x, xOK := value(a)
	y, yOK := value(b)
	return xOK && yOK && equal(x, y)
}

// value is a JSON with its numbers as they are written: a float64 would make some of them equal.
func value(text []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil, false
	}
	_, err := d.Token()
	return v, err == io.EOF
}

func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, is := b.(map[string]any)
		return is && maps.EqualFunc(a, b, equal)
	case []any:
		b, is := b.([]any)
		return is && slices.EqualFunc(a, b, equal)
	case json.Number:
		b, is := b.(json.Number)
		if !is || a == b {
			return is
		}
		x, xOK := new(big.Rat).SetString(a.String()) // a jsonb has 100 for 1e2
		y, yOK := new(big.Rat).SetString(b.String())
		return xOK && yOK && x.Cmp(y) == 0
	}
	return a == b
}
