package sink

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

func TestCheckFindsWhatIsMissing(t *testing.T) {
	c := fake(t, kfake.NumBrokers(3), kfake.SeedTopics(2, "there"))
	if err := c.CreateTopic("cp", 2, map[string]string{"cleanup.policy": "delete"}); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic("strict", 1, map[string]string{"min.insync.replicas": "7"}); err != nil {
		t.Fatal(err)
	}
	cfg := config(c.ListenAddrs())
	text := func(cfg Config, topics map[string]int, cp string) string {
		var sb strings.Builder
		for _, f := range Check(t.Context(), cfg, topics, cp) {
			fmt.Fprintf(&sb, "%s: %s: %s\n", f.Name, f.Level, f.Detail)
		}
		return sb.String()
	}
	got := text(cfg, map[string]int{"there": 1_100_000, "absent": 0, "no good": 0, "strict": 100}, "cp")
	for _, want := range []string{
		"kafka brokers: ok: 3 reachable\n",
		"topic there: ok: 2 partitions",
		"topic there size: warn: a row that is there makes a record of 1100000 bytes, more than max.message.bytes, 1048588",
		"topic absent: FAIL: does not exist\n",
		"topic no good: FAIL: the topic's name",
		"topic strict replicas: FAIL: min.insync.replicas is 7",
		"checkpoint topic cp: warn: has 2 partitions",
		"checkpoint topic cp: warn: is not compacted",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "topic strict size") {
		t.Errorf("a small record is too large:\n%s", got)
	}
	cfg.Topics.Create = true
	if got := text(cfg, map[string]int{"absent": 0}, "new"); !strings.Contains(got, "topic absent: ok: is missing and will be created") ||
		!strings.Contains(got, "checkpoint topic new: ok: is missing and will be created") {
		t.Errorf("got:\n%s", got)
	}
	if c.TopicInfo("absent") != nil || c.TopicInfo("new") != nil {
		t.Error("the check created a topic")
	}
	if got := text(config([]string{"127.0.0.1:1"}), nil, ""); !strings.Contains(got, "kafka brokers: FAIL: [127.0.0.1:1]") || !strings.Contains(got, "refused") {
		t.Errorf("got:\n%s", got)
	}
}
