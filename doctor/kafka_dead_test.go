package doctor

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/sink"
)

// The dead letter topic and the parked event topic are judged alike.
func TestCheckJudgesTheTopicsOfLetters(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "usual"), kfake.SeedTopics(3, "three"))
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
	for what, to := range map[string]func(cfg *sink.Config, topic string){
		"dead letter":  func(cfg *sink.Config, topic string) { cfg.DeadLetters, cfg.Bury = topic, topic != "" },
		"parked event": func(cfg *sink.Config, topic string) { cfg.Parking, cfg.Park = topic, topic != "" },
	} {
		with := func(topic string) string {
			cfg := config(c.ListenAddrs())
			to(&cfg, topic)
			return strings.ReplaceAll(looked(t, cfg, map[string]topicTraffic{"a": {}}, ""), what, "WHAT")
		}
		hasNot(t, with(""), "WHAT")
		hasNot(t, with("good"), "WHAT topic good size", "WHAT topic good retention", "WHAT topic good cleanup", "good partitions")
		has(t, with("good"), "WHAT topic good: ok: the topic exists")
		has(t, with("new"), "WHAT topic new: ok: the topic is missing and will be created")
		if c.TopicInfo("new") != nil {
			t.Error("the check has made the topic")
		}
		has(t, with("bad"),
			"WHAT topic bad cleanup: FAIL: cleanup.policy is compact,delete: only the newest WHAT", "--add-config cleanup.policy=delete,retention.ms=-1,retention.bytes=-1",
			"WHAT topic bad retention: FAIL: retention.ms is 86400000: the brokers delete each WHAT", "retention.ms=-1",
			"WHAT topic bad retention: FAIL: retention.bytes is 1000", "retention.bytes=-1",
			"WHAT topic bad size: FAIL: max.message.bytes is 4999999, not more than the largest max.message.bytes of the rows' topics (5000000)", "max.message.bytes=10000000")
		has(t, with("same"), "WHAT topic same size: warn: max.message.bytes is 5000000, not more than the largest max.message.bytes of the rows' topics (5000000)")
		has(t, with("usual"), "WHAT topic usual retention: FAIL", "WHAT topic usual size: FAIL")
		if got := with("bad"); !strings.Contains(got, "topic a: ok") {
			t.Error(got)
		}
	}
	// A relay reads the topic whatever the policy, unless it is missing.
	parked := func(topic string, park bool) string {
		cfg := config(c.ListenAddrs())
		cfg.Parking, cfg.Park = topic, park
		return looked(t, cfg, map[string]topicTraffic{"a": {}}, "")
	}
	for _, park := range []bool{true, false} {
		has(t, parked("three", park), "parked event topic three partitions: warn: the topic has 3 partitions, and only partition 0 is used")
	}
	hasNot(t, parked("new", false), "parked event")
}

func TestTheFateOfARefusedRecord(t *testing.T) {
	for want, cfg := range map[string]*sink.Config{
		"halts the relay": nil,
		"halts the relay, or goes to the dead letter topic (delivery.on_poison)":                        {Bury: true},
		"halts the relay, or has its key parked (delivery.on_poison)":                                   {Park: true},
		"halts the relay, or goes to the dead letter topic, or has its key parked (delivery.on_poison)": {Bury: true, Park: true},
	} {
		if got := fate(cfg); got != want {
			t.Error(got)
		}
	}
}

// Brokers without transactions, and a cluster that is too small for their topic.
func TestParkedKeysNeedTransactions(t *testing.T) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.EndTxn), -1)
	cfg := config(testenv.FakeKafka(t, kfake.SeedTopics(1, "parked"), kfake.MaxVersions(versions)).ListenAddrs())
	cfg.Parking, cfg.Park = "parked", true
	has(t, looked(t, cfg, nil, ""), "transactional id n: FAIL: the brokers do not seem to support transactions")
	small := testenv.FakeKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(1, "parked"), kfake.BrokerConfigs(map[string]string{"transaction.state.log.replication.factor": "5"}))
	cfg = config(small.ListenAddrs())
	cfg.Parking, cfg.Park = "parked", true
	has(t, looked(t, cfg, nil, ""), "transactional id n: FAIL: transaction.state.log.replication.factor is 5, more than the cluster has brokers (3)", "transaction.state.log.min.isr=2")
}
