package router

import (
	"bytes"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/claim"
)

// What is stored is the value as it would have been produced, and the same value always has the same claim.
func TestALargeValueBecomesAClaim(t *testing.T) {
	route := func(converter, payload string, over int64) *cdc.Record {
		cfg := DefaultConfig()
		cfg.Value.Name = converter
		cfg.ClaimCheck = ClaimCheck{Store: "file", Path: "/x"}
		cfg.ClaimCheck.Over = 0
		if over > 0 {
			cfg.ClaimCheck.Over = 1 << 10
		}
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		rel := &cdc.Relation{Schema: "public", Name: "outbox"}
		var values []cdc.Value
		for _, c := range [][2]string{{"id", "7"}, {"aggregate_type", "order"}, {"aggregate_id", "k"}, {"payload", payload}} {
			rel.Columns = append(rel.Columns, cdc.Column{Name: c[0], TypeOID: 25, TypeMod: -1, TypeName: "text"})
			values = append(values, cdc.Value{Bytes: []byte(c[1])})
		}
		var rec cdc.Record
		if ok, err := r.Route(&cdc.Event{Kind: cdc.Insert, Row: cdc.Row{Relation: rel, Values: values}}, &rec); !ok || err != nil {
			t.Fatal(ok, err)
		}
		return &rec
	}
	for _, converter := range []string{"string", "json"} {
		large := strings.Repeat("x", 1100)
		plain, got, again := route(converter, large, 0), route(converter, large, 1<<10), route(converter, large, 1<<10)
		want := claim.Of(plain.Value)
		if got.Claim == nil || !bytes.Equal(got.Claim.Payload, plain.Value) || got.Claim.Key != want.Key || !bytes.Equal(got.Value, want.Value()) || !got.Waits() {
			t.Fatalf("%s: %s %+v", converter, got.Value, got.Claim)
		}
		last := got.Headers[len(got.Headers)-1]
		if last.Key != claimHeader || string(last.Value) != want.Key || len(got.Headers) != len(plain.Headers)+1 {
			t.Errorf("%v", got.Headers)
		}
		if !bytes.Equal(got.Value, again.Value) || got.Size() <= plain.Size() {
			t.Errorf("%s, then %s; %d and %d bytes of the window", got.Value, again.Value, plain.Size(), got.Size())
		}
	}
	exactly := strings.Repeat("x", 1<<10)
	for converter, claimed := range map[string]bool{"string": false, "json": true} { // JSON has two quotes more
		if rec := route(converter, exactly, 1<<10); (rec.Claim != nil) != claimed {
			t.Errorf("%s: %+v", converter, rec.Claim)
		}
	}
}

func TestAClaimCheckNeedsItsStore(t *testing.T) {
	for wrong, c := range map[string]ClaimCheck{
		"records.claim_check.over":      {Over: 100, Store: "file", Path: "/x"},
		"records.claim_check.store":     {Over: 1 << 20},
		"records.claim_check.path":      {Over: 1 << 20, Store: "file"},
		"records.claim_check.bucket":    {Over: 1 << 20, Store: "s3", Endpoint: "https://s3.eu-central-1.amazonaws.com"},
		"records.claim_check.endpoint ": {Over: 1 << 20, Store: "s3", Endpoint: "https://s3.example/#x", Bucket: "payloads"},
		"records.claim_check.endpoint":  {Over: 1 << 20, Store: "s3", Endpoint: "s3.eu-central-1.amazonaws.com", Bucket: "payloads"},
		"":                              {Over: 1 << 20, Store: "s3", Endpoint: "http://127.0.0.1:9000", Bucket: "payloads", Prefix: "shop/"},
	} {
		cfg := DefaultConfig()
		cfg.ClaimCheck = c
		ps := cfg.Validate()
		if wrong = strings.TrimSpace(wrong); wrong == "" && len(ps) > 0 || wrong != "" && (len(ps) != 1 || ps[0].Field != wrong) {
			t.Errorf("%s: %v", wrong, ps)
		}
	}
}
