package router

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// Bytes that an application has framed itself stay as they are.
func TestAFramedPayloadIsNotChanged(t *testing.T) {
	framed := "\\x0000000007" + "48020afe00" // magic byte, id 7, and Avro
	want := []byte{0, 0, 0, 0, 7, 0x48, 2, 0x0a, 0xfe, 0}
	rel := table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload bytea")
	for _, converter := range []string{"bytes", "binary"} {
		for _, expand := range []bool{false, true} {
			cfg := DefaultConfig()
			cfg.Value.Name, cfg.ExpandJSON = converter, expand
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			var rec cdc.Record
			if ok, err := r.Route(insert(rel, "u-1", "order", "k", "Placed", framed), &rec); !ok || !bytes.Equal(rec.Value, want) {
				t.Errorf("%s, expand %t: %x, %v", converter, expand, rec.Value, err)
			}
		}
	}
}

// aValidator takes documents without an "x".
type aValidator struct {
	subject, document string
	err               error
}

func (v *aValidator) Validate(subject string, document []byte) (path, why string, err error) {
	v.subject, v.document = subject, string(document)
	if strings.Contains(v.document, "x") {
		return "/lines/1", "does not fit", v.err
	}
	return "", "", v.err
}

func TestAPayloadThatDoesNotFitIsABadRow(t *testing.T) {
	text, binary := table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload text"), table("id uuid", "aggregate_type text", "aggregate_id text", "event_type text", "payload bytea")
	for name, c := range map[string]struct {
		rel    *cdc.Relation
		change func(*Config)
		give   func(document string) string // the column's value
	}{
		"jsonb":    {rel: outbox},
		"text":     {rel: text},
		"envelope": {rel: outbox, change: all(jsonValues, func(c *Config) { c.AdditionalPlacement = "event_type:envelope" })},
		"expanded": {rel: text, change: all(jsonValues, func(c *Config) { c.ExpandJSON = true })},
		"bytea":    {rel: binary, change: func(c *Config) { c.Value.Name = "bytes" }, give: func(s string) string { return "\\x" + hex.EncodeToString([]byte(s)) }},
	} {
		t.Run(name, func(t *testing.T) {
			v := &aValidator{}
			cfg := DefaultConfig()
			cfg.PayloadCheck, cfg.Validator, cfg.Tombstone = "json_schema", v, true
			if c.change != nil {
				c.change(&cfg)
			}
			r, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			row := func(payload string) *cdc.Event {
				if c.give != nil && payload != null {
					payload = c.give(payload)
				}
				return insert(c.rel, "u-1", "order", "k", "Placed", payload)
			}
			var rec cdc.Record
			if ok, err := r.Route(row(`{"n": 1}`), &rec); !ok || err != nil || v.subject != "outbox.event.order-value" || v.document != `{"n": 1}` {
				t.Errorf("%v, asked about %s of %s", err, v.document, v.subject)
			}
			_, err = r.Route(row(`{"n": "x"}`), &rec)
			bad, ok := errors.AsType[*RowError](err)
			if !ok || !bad.KeyFound() || string(rec.Key) != "k" || bad.Problems[0].Rule != PayloadFits || bad.Problems[0].Path != "/lines/1" || bad.Problems[0].Column != "payload" || !strings.Contains(bad.Hint(), "register a version") {
				t.Errorf("%#v", err)
			}
			v.err = errors.New("down")
			if _, err := r.Route(row(`{}`), &rec); !errors.Is(err, v.err) {
				t.Errorf("%v", err)
			}
			v.subject = ""
			for _, none := range []string{null, ""} {
				if none == "" && c.give != nil { // bytes without content are no tombstone
					continue
				}
				if ok, err := r.Route(row(none), &rec); !ok || err != nil || rec.Value != nil || v.subject != "" {
					t.Errorf("no payload: %v, %v", err, rec.Value)
				}
			}
		})
	}
}

// The placeholder of a payload that is not in the WAL does not stand for one that does not fit: another schema helps nobody.
func TestAPayloadThatWasNotSentIsNotChecked(t *testing.T) {
	v := &aValidator{}
	cfg := DefaultConfig()
	cfg.PayloadCheck, cfg.Validator, cfg.Updates = "json_schema", v, true
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rel := table("id uuid not null key", "aggregate_type text", "aggregate_id text", "payload jsonb")
	_, err = r.Route(updated(rel, []string{"u-1", null, null, null}, []string{"u-2", "order", "k", "~"}), &cdc.Record{})
	bad, ok := errors.AsType[*RowError](err)
	if !ok || bad.Problems[0].Rule != ValueSent || v.subject != "" || !strings.Contains(bad.Hint(), "REPLICA IDENTITY FULL") {
		t.Errorf("%v, asked about %q", err, v.document)
	}
}
