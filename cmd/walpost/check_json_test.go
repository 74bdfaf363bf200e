package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/internal/fix"
)

// The JSON is a contract: keys, verdicts and sides do not change.
func TestCheckPrintsStableJSON(t *testing.T) {
	r := show.CheckReportOf([]walpost.Finding{
		{Side: "postgres", Name: "wal_level", Verdict: walpost.OK, Why: "wal_level\n\tis <logical>"},
		{Side: "kafka", Name: "topic a size", Verdict: walpost.Warn, Why: "w", Fix: fix.Fix{fix.Words("one\ntwo\n")}},
		{Side: "kafka", Name: "topic a", Verdict: walpost.Fail, Why: "f"},
		{Side: "kafka", Name: "topic b", Verdict: walpost.Warn, Why: "w"},
	})
	var b bytes.Buffer
	if err := show.Print(&b, true, r, ""); err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	err := json.Unmarshal([]byte(`{"verdict": "FAIL", "counts": {"ok": 1, "warn": 2, "FAIL": 1}, "findings": [
		{"side": "postgres", "name": "wal_level", "verdict": "ok", "why": "wal_level is <logical>", "fix": ""},
		{"side": "kafka", "name": "topic a size", "verdict": "warn", "why": "w", "fix": "one\ntwo"},
		{"side": "kafka", "name": "topic a", "verdict": "FAIL", "why": "f", "fix": ""},
		{"side": "kafka", "name": "topic b", "verdict": "warn", "why": "w", "fix": ""}]}`), &want)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s", b.String())
	}
	if strings.Contains(b.String(), `\u003c`) {
		t.Errorf("escaped for HTML: %s", b.String())
	}

	if want := `ok    postgres: wal_level: wal_level is <logical>
warn  kafka: topic a size: w
      fix: one
           two
FAIL  kafka: topic a: f
warn  kafka: topic b: w
1 of 4 preconditions fail
`; r.Text() != want {
		t.Errorf("got\n%s", r.Text())
	}
}

// The worst finding decides, in whatever order they come.
func TestTheWorstFindingIsTheVerdict(t *testing.T) {
	for verdicts, want := range map[string]struct {
		worst doctor.Verdict
		last  string
	}{
		"":             {"ok", "ready to run\n"},
		"ok":           {"ok", "ready to run\n"},
		"ok warn ok":   {"warn", "ready to run, with 1 warning\n"},
		"FAIL warn ok": {"FAIL", "1 of 3 preconditions fail\n"},
		"warn FAIL":    {"FAIL", "1 of 2 preconditions fail\n"},
	} {
		found := []walpost.Finding{}
		for _, v := range strings.Fields(verdicts) {
			found = append(found, walpost.Finding{Side: "kafka", Name: "n", Verdict: doctor.Verdict(v), Why: "w"})
		}
		r := show.CheckReportOf(found)
		if r.Verdict != want.worst || !strings.HasSuffix(r.Text(), want.last) {
			t.Errorf("%q: %s\n%s", verdicts, r.Verdict, r.Text())
		}
	}
}
