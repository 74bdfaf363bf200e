package router

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// The corpus in testdata/debezium/transforms.txt shows what Kafka Connect's own transforms give.
func TestHeaderStepsFollowEachOther(t *testing.T) {
	rel := table("id uuid not null key", "aggregate_type text not null", "aggregate_id text", "payload jsonb", "kind text")
	for _, c := range []struct {
		name  string
		steps []HeaderStep
		want  string
	}{
		{"none", nil, "context taskId name runId id kind"},
		{"inserted", []HeaderStep{{Insert: "a", Value: "1"}, {Insert: "b", Value: "2", BeforeID: true}}, "context taskId name runId b id kind a"},
		{"inserted and dropped", []HeaderStep{{Insert: "a", Value: "1"}, {Drop: []string{"a"}}}, "context taskId name runId id kind"},
		{"dropped and inserted", []HeaderStep{{Drop: []string{"kind"}}, {Insert: "kind", Value: "1"}}, "context taskId name runId id kind"},
		{"dropped", []HeaderStep{{Drop: []string{"kind", runIDHeader}}, {Drop: []string{taskIDHeader}}}, "context name id"},
	} {
		cfg := DefaultConfig()
		cfg.AdditionalPlacement, cfg.ExtendedHeaders, cfg.TopicPrefix, cfg.Headers = "kind:header", true, "shop", c.steps
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a relay sets the run id again at each connect
			r.SetRunID(runID)
			var rec cdc.Record
			if _, err := r.Route(insert(rel, "u-1", "order", "k", "{}", "made"), &rec); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, h := range rec.Headers {
				names = append(names, h.Key)
			}
			got := strings.NewReplacer("__debezium.context.", "", "connectorLogicalName", "context", "connectorName", "name").Replace(strings.Join(names, " "))
			if got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
	}
}

func TestHeaderStepsThatCannotBe(t *testing.T) {
	for _, s := range []HeaderStep{
		{}, {Insert: "a", Drop: []string{"b"}}, {Value: "x", Drop: []string{"b"}}, {Drop: []string{"b"}, BeforeID: true}, {Insert: "id"}, {Drop: []string{"a", "id"}},
	} {
		cfg := DefaultConfig()
		if cfg.Headers = []HeaderStep{s}; len(cfg.Validate()) == 0 {
			t.Errorf("%+v is taken", s)
		}
	}
}

func TestRenameNeedsARegex(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RenameReplacement = "x"
	if found := cfg.Validate(); len(found) != 1 || found[0].Field != "router.topic.rename.regex" {
		t.Errorf("%v", found)
	}
	cfg.RenameRegex, cfg.RenameReplacement = "a(.*)", "$2"
	if found := cfg.Validate(); len(found) != 1 || found[0].Field != "router.topic.rename.replacement" {
		t.Errorf("%v", found)
	}
}

func TestTopicPatternsNameWhatDependsOnTheRow(t *testing.T) {
	for _, c := range []struct{ regex, replacement, renameRegex, rename, want string }{
		{"(?<routedByValue>.*)", "outbox.event.${routedByValue}", "", "", "outbox.event.*"},
		{"(.*)-(.*)", "$2.v$1", "", "", "*.v*"},
		{".*", "orders", "", "", "orders"},
		{"(.*)", "outbox.event.$1", `outbox\.event\.(.*)`, "shop.$1.v1", "shop.*.v1 outbox.event.*"},
	} {
		cfg := DefaultConfig()
		cfg.TopicRegex, cfg.TopicReplacement, cfg.RenameRegex, cfg.RenameReplacement = c.regex, c.replacement, c.renameRegex, c.rename
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.TopicPatterns(), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.replacement, got, c.want)
		}
	}
}
