package doctor

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/walpost/walpost/internal/testenv"
)

func TestCheckJudgesTheTopicOfDeadLetters(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "usual"))
	for name, settings := range map[string]map[string]string{
		"a":    {"max.message.bytes": "5000000"},
		"same": {"retention.ms": "-1", "max.message.bytes": "5000000"},
		"good": {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "5000001", "cleanup.policy": "delete"},
		"bad":  {"retention.ms": "86400000", "retention.bytes": "1000", "max.message.bytes": "4999999", "cleanup.policy": "compact,delete"},
	} {
		if err := c.CreateTopic(name, 1, settings); err != nil {
			t.Fatal(err)
		}
	}
	with := func(dead string) string {
		cfg := config(c.ListenAddrs())
		cfg.DeadLetters, cfg.Bury = dead, dead != ""
		return looked(t, cfg, map[string]Traffic{"a": {}}, "")
	}
	hasNot(t, with(""), "dead letter")
	hasNot(t, with("good"), "dead letter topic good size", "dead letter topic good retention", "dead letter topic good cleanup")
	has(t, with("good"), "dead letter topic good: ok: the topic exists")
	has(t, with("new"), "dead letter topic new: ok: the topic is missing and will be created")
	if c.TopicInfo("new") != nil {
		t.Error("the check has made the topic")
	}
	has(t, with("bad"),
		"dead letter topic bad cleanup: FAIL: cleanup.policy is compact,delete", "cleanup.policy=delete",
		"dead letter topic bad retention: FAIL: retention.ms is 86400000", "retention.ms=-1",
		"dead letter topic bad retention: FAIL: retention.bytes is 1000", "retention.bytes=-1",
		"dead letter topic bad size: FAIL: max.message.bytes is 4999999, no more than that of the largest topic that rows go to (5000000)", "max.message.bytes=10000000")
	has(t, with("same"), "dead letter topic same size: warn: max.message.bytes is 5000000, no more than that of the largest topic that rows go to (5000000)")
	has(t, with("usual"), "dead letter topic usual retention: FAIL", "dead letter topic usual size: FAIL")
	if got := with("bad"); !strings.Contains(got, "topic a: ok") {
		t.Error(got)
	}
}
