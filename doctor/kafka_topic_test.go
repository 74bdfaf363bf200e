package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/testenv"
)

// settled is a checker whose clock stands still.
func settled(compression string) *kafkaCheck {
	cfg := config([]string{"k:9092"})
	cfg.Compression = compression
	return &kafkaCheck{cfg: cfg, fixes: newKafkaFixes(cfg.Config), now: func() time.Time { return time.Unix(1_700_000_000, 0) }, brokers: 3}
}

func TestJudgementOfATopicsSettings(t *testing.T) {
	now := settled("snappy").now()
	const change = "--alter --entity-type topics --entity-name t --add-config "
	for _, c := range []struct {
		settings, want, fix string
		traffic             topicTraffic
	}{
		{settings: "message.timestamp.type=LogAppendTime", want: "timestamps: warn: message.timestamp.type is LogAppendTime: the broker replaces the time", fix: change + "message.timestamp.type=CreateTime"},
		{settings: "message.timestamp.type=LogAppendTime message.timestamp.before.max.ms=1 message.timestamp.after.max.ms=1", want: "timestamps: warn: message.timestamp.type", fix: "CreateTime"},
		{settings: "message.timestamp.type=CreateTime"},
		{settings: "message.timestamp.before.max.ms=3600000", want: "timestamps: warn: message.timestamp.before.max.ms is 1h0m0s: after a longer outage", fix: change + "message.timestamp.before.max.ms=9223372036854775807"},
		{settings: "message.timestamp.before.max.ms=259200000"},
		{settings: "message.timestamp.before.max.ms=9223372036854775807"},
		{settings: "message.timestamp.before.max.ms=9223372036854775807 message.timestamp.difference.max.ms=100000", want: "timestamps: warn: message.timestamp.difference.max.ms is 1m40s", fix: change + "message.timestamp.difference.max.ms=9223372036854775807"},
		{settings: "message.timestamp.before.max.ms=1000000000 message.timestamp.difference.max.ms=100000", want: "timestamps: warn: message.timestamp.difference.max.ms is 1m40s", fix: "difference"},
		{settings: "message.timestamp.before.max.ms=100000 message.timestamp.difference.max.ms=1000000000", want: "timestamps: warn: message.timestamp.before.max.ms is 1m40s", fix: "before"},
		{settings: "message.timestamp.after.max.ms=59999", want: "timestamps: warn: message.timestamp.after.max.ms is 59.999s: if the database's clock", fix: change + "message.timestamp.after.max.ms=3600000"},
		{settings: "message.timestamp.after.max.ms=60000"},
		{settings: "message.timestamp.after.max.ms=3600000", traffic: topicTraffic{newest: now.Add(time.Hour)}},
		{settings: "message.timestamp.after.max.ms=3600000", traffic: topicTraffic{newest: now.Add(time.Hour + time.Second)}, want: "timestamps: warn: a row of the table has the timestamp 2023-11-14T23:13:21Z", fix: "table.field.event.timestamp"},
		{settings: "unclean.leader.election.enable=true", want: "leader election: warn: unclean.leader.election.enable is true", fix: change + "unclean.leader.election.enable=false"},
		{settings: "unclean.leader.election.enable=false"},
		{settings: "compression.type=producer"},
		{settings: "compression.type=snappy"},
		{settings: "compression.type=gzip", want: "compression: warn: compression.type is gzip and walpost sends snappy", fix: change + "compression.type=producer"},
		{settings: "compression.type=uncompressed", want: "compression: warn: compression.type is uncompressed and walpost sends snappy", fix: "producer"},
		{settings: "max.message.bytes=1000", traffic: topicTraffic{largest: 1000}},
		{settings: "max.message.bytes=1000", traffic: topicTraffic{largest: 1001}, want: "size: warn: the largest row of the table becomes a record of 1001 bytes, more than max.message.bytes, 1000: this record is refused and halts the relay, unless", fix: change + "max.message.bytes=1613"},
		{settings: "cleanup.policy=delete retention.ms=604800000 retention.bytes=-1"},
		{settings: "cleanup.policy=delete retention.ms=-1"},
		{settings: "cleanup.policy=delete retention.ms=9223372036854775807"},
		{settings: "cleanup.policy=compact", want: "cleanup: warn: cleanup.policy is compact: only the newest event of each key", fix: "route the events to another topic. Do not set"},
		{settings: "cleanup.policy=compact retention.ms=1000", want: "cleanup: warn: cleanup.policy is compact", fix: "another topic"},
		{settings: "cleanup.policy=delete retention.ms=86399999", want: "retention: warn: retention.ms is 23h59m59.999s: a consumer that was away for longer misses events", fix: change + "retention.ms=604800000"},
		{settings: "cleanup.policy=delete retention.ms=86400000", want: "retention: warn: retention.ms is 24h0m0s, counted from the event's timestamp", fix: change + "retention.ms=604800000"},
		{settings: "cleanup.policy=delete retention.ms=259200000"},
		{settings: "cleanup.policy=delete retention.ms=86400000 message.timestamp.type=LogAppendTime", want: "timestamps: warn", fix: "CreateTime"},
		{settings: "cleanup.policy=delete retention.bytes=67108863", want: "retention: warn: retention.bytes is 67108863", fix: change + "retention.bytes=-1"},
		{settings: "cleanup.policy=delete retention.bytes=67108864"},
	} {
		k, kv := settled("snappy"), map[string]string{}
		for _, set := range strings.Fields(c.settings) {
			key, value, _ := strings.Cut(set, "=")
			kv[key] = value
		}
		k.topicSettings("topic t", "t", kv, c.traffic)
		switch {
		case c.want == "" && len(k.found) > 0, c.want != "" && len(k.found) != 1:
			t.Errorf("%s %+v: %s", c.settings, c.traffic, lines(k.found))
		case c.want != "":
			has(t, lines(k.found), "topic t "+c.want)
			has(t, k.found[0].FixText(), c.fix)
		}
	}
}

func TestRecordsWithoutAKeyAreRefusedByACompactedTopic(t *testing.T) {
	k := settled("snappy")
	k.topicSettings("topic t", "t", map[string]string{"cleanup.policy": "compact,delete"}, topicTraffic{keyless: true})
	has(t, lines(k.found), "topic t cleanup: warn", "topic t keys: warn: a row of the table has no key")
	k = settled("snappy")
	k.topicSettings("topic t", "t", map[string]string{"cleanup.policy": "delete"}, topicTraffic{keyless: true})
	if len(k.found) > 0 {
		t.Error(lines(k.found))
	}
}

func TestAnEmptyCompressionIsTheDefault(t *testing.T) {
	k := settled("")
	k.topicSettings("topic t", "t", map[string]string{"compression.type": "snappy"}, topicTraffic{})
	if len(k.found) > 0 {
		t.Error(lines(k.found))
	}
}

// Where nothing is compressed in the end, nothing makes a record fit.
func TestCompressionMayMakeALargeRecordFit(t *testing.T) {
	for _, c := range []struct {
		ours, theirs string
		may          bool
	}{
		{"snappy", "producer", true},
		{"", "", true},
		{"none", "gzip", true},
		{"none", "producer", false},
		{"none", "", false},
		{"snappy", "uncompressed", false},
	} {
		k := settled(c.ours)
		k.size("topic t", "t", map[string]string{"max.message.bytes": "10", "compression.type": c.theirs}, 11)
		if len(k.found) != 1 || strings.Contains(k.found[0].Why, "unless compression") != c.may {
			t.Errorf("%+v: %s", c, lines(k.found))
		}
	}
}

func TestJudgementOfReplicas(t *testing.T) {
	part := func(replicas, isr int, leader int32) kmsg.MetadataResponseTopicPartition {
		return kmsg.MetadataResponseTopicPartition{Leader: leader, Replicas: make([]int32, replicas), ISR: make([]int32, isr)}
	}
	for _, c := range []struct {
		story   string
		brokers int // negative: of 3.7 or newer
		least   string
		parts   []kmsg.MetadataResponseTopicPartition
		want    string
	}{
		{"as it should be", 3, "2", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1), part(3, 3, 2)}, ""},
		{"not told", 3, "", []kmsg.MetadataResponseTopicPartition{part(1, 1, 1)}, ""},
		{"a single broker", 1, "1", []kmsg.MetadataResponseTopicPartition{part(1, 1, 1)}, ""},
		{"one replica of several brokers", 3, "1", []kmsg.MetadataResponseTopicPartition{part(1, 1, 1)}, "replicas: warn: there is one replica"},
		{"cannot be met", 3, "4", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1)}, "replicas: FAIL: min.insync.replicas is 4, more than the number of replicas, 3"},
		{"cannot be met in one partition", 3, "2", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1), part(1, 1, 1)}, "replicas: FAIL: min.insync.replicas is 2, more than the number of replicas, 1"},
		{"cannot be met, and is not wanted to be", -3, "4", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1)}, "replicas: warn: min.insync.replicas is 4, more than the number of replicas, 3: the brokers use 3 instead"},
		{"no room", 3, "3", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1)}, "replicas: warn: min.insync.replicas is 3 of 3 replicas: delivery stops when one broker stops"},
		{"no safety", 3, "1", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1)}, "replicas: warn: min.insync.replicas is 1 of 3 replicas: an acknowledged"},
		{"a broker down", 3, "2", []kmsg.MetadataResponseTopicPartition{part(3, 3, 1), part(3, 2, 1)}, "in-sync replicas: warn: a replica is down, or has not caught up, in partition 0"},
		{"two brokers down", 3, "2", []kmsg.MetadataResponseTopicPartition{part(3, 1, 1)}, "in-sync replicas: FAIL: fewer replicas are in sync than min.insync.replicas, so the brokers refuse writes to partition 0 (1 of 2)"},
		{"all brokers of one partition down", 3, "2", []kmsg.MetadataResponseTopicPartition{part(3, 1, -1)}, "leaders: FAIL: nothing can be written now, because no broker leads partition 0"},
	} {
		k := settled("snappy")
		k.brokers, k.caps = max(c.brokers, -c.brokers), c.brokers < 0
		is := &kafka.Topic{Name: "t", Partitions: c.parts, Settings: map[string]string{"min.insync.replicas": c.least}}
		k.leaders("topic t", is)
		k.replicas("topic t", is)
		switch got := lines(k.found); {
		case c.want == "" && got != "", c.want != "" && (len(k.found) != 1 || k.found[0].FixText() == ""):
			t.Errorf("%s: %s", c.story, got)
		default:
			has(t, got, c.want)
		}
	}
}

func TestJudgementOfTheBrokersSettings(t *testing.T) {
	for _, c := range []struct {
		settings map[string]string
		create   bool
		want     string
	}{
		{map[string]string{"auto.create.topics.enable": "true"}, false, "auto.create.topics.enable: warn: the brokers create a missing topic with their defaults for every client that asks"},
		{map[string]string{"auto.create.topics.enable": "true"}, true, "auto.create.topics.enable: ok: it is true"},
		{map[string]string{"auto.create.topics.enable": "false"}, false, "auto.create.topics.enable: ok: it is false"},
		{map[string]string{"socket.request.max.bytes": "67108863"}, false, "socket.request.max.bytes: warn: socket.request.max.bytes is 67108863"},
		{map[string]string{"socket.request.max.bytes": "67108864"}, false, ""},
		{nil, false, ""},
	} {
		k := settled("snappy")
		k.cfg.Topics.Create = c.create
		k.settings = c.settings
		k.brokerSettings()
		if got := lines(k.found); c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%v: %s", c.settings, got)
		}
	}
}

// With fewer in sync than a setting that cannot be met asks for, a broker that takes it for the replicas still writes while all are.
func TestACappedMinimumIsComparedWithTheReplicas(t *testing.T) {
	for isr, fails := range map[int]bool{2: false, 1: true} {
		k := settled("snappy")
		k.caps = true
		k.replicas("topic t", &kafka.Topic{
			Name: "t", Settings: map[string]string{"min.insync.replicas": "3"},
			Partitions: []kmsg.MetadataResponseTopicPartition{{Replicas: make([]int32, 2), ISR: make([]int32, isr)}},
		})
		if got := lines(k.found); strings.Contains(got, "FAIL") != fails {
			t.Errorf("%d in sync: %s", isr, got)
		}
	}
}

// The version of Produce tells.
func TestBrokersThatCapAreToldByWhatTheyKnow(t *testing.T) {
	for produce, want := range map[int16]bool{9: false, 10: true, 12: true, -1: false} {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: 1, MaxVersion: 17})
		if produce >= 0 {
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: 0, MaxVersion: produce})
		}
		if capsMinISR(resp) != want {
			t.Errorf("produce up to %d: %t", produce, !want)
		}
	}
}

// A broker that does not tell rights, or not the settings, is not accused of anything.
func TestWhatIsNotToldIsSaid(t *testing.T) {
	k := settled("snappy")
	is := &kafka.Topic{
		Name: "t", Operations: -1 << 31, Refused: kerr.UnsupportedVersion,
		Partitions: []kmsg.MetadataResponseTopicPartition{{Replicas: []int32{1}, ISR: []int32{1}}},
	}
	k.topics = map[string]*kafka.Topic{is.Name: is}
	k.topic(t.Context(), is.Name, topicTraffic{})
	got := lines(k.found)
	has(t, got, "topic t: ok: 1 partitions, 1 replicas; the brokers do not report whether", "topic t settings: warn: the brokers do not report the topic's settings: UNSUPPORTED_VERSION")
	hasNot(t, got, "FAIL")
}

func TestJudgementOfTheCheckpointTopicsSettings(t *testing.T) {
	const week = "604800000"
	for _, x := range []struct {
		kv   map[string]string
		want string // "" for nothing
	}{
		{statelog.Checkpoints[0], ""},
		{map[string]string{"cleanup.policy": "compact"}, ""}, // the rest is not told
		{
			map[string]string{"cleanup.policy": "compact", "segment.bytes": "1073741824", "segment.ms": week},
			"segments: warn: segment.bytes is 1073741824 and segment.ms is 168h0m0s: the newest segment is not compacted",
		},
		{map[string]string{"cleanup.policy": "compact", "segment.bytes": "52428800", "segment.ms": week}, ""},
		{map[string]string{"cleanup.policy": "compact", "segment.bytes": "1073741824", "segment.ms": "600000"}, ""},
		{map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5"}, ""},
		{map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.9"}, "compaction: warn: min.cleanable.dirty.ratio is 0.9"},
		{map[string]string{"cleanup.policy": "delete", "segment.bytes": "1073741824", "segment.ms": week}, "cleanup: warn: cleanup.policy is delete"},
		{map[string]string{"cleanup.policy": "compact,delete"}, "cleanup: warn: cleanup.policy is compact,delete"},
	} {
		c := settled("snappy")
		c.checkpointSettings("checkpoint topic cp", "cp", x.kv)
		got := lines(c.found)
		if x.want == "" && got != "" || !strings.Contains(got, x.want) || strings.Count(got, "warn") > 1 {
			t.Errorf("%v: %s; must say %q", x.kv, got, x.want)
		}
	}
}

// What check says of topics before a row names one is true in each state, and a warning says how the topics come to be.
func TestCheckSaysHowTopicsComeToBe(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "outbox.event.order", "walpost.checkpoints"))
	create := "Or create each topic before its first event, for example:\nkafka-topics.sh --bootstrap-server " + c.ListenAddrs()[0] + " --create --topic "
	for _, is := range []struct {
		name     string
		patterns []string
		create   bool
		want     string
	}{
		{"none is there", []string{"shop.*.v1"}, false, "topics: warn: rows go to topics such as shop.*.v1, and the brokers list no such topic: the first event waits until somebody creates its topic\n" +
			"\tfix Set kafka.topics.create: true. " + create + "shop.order.v1\n"},
		{"one is there", []string{"outbox.event.*"}, false, "topics: ok: rows go to topics such as outbox.event.*, and there are outbox.event.order; "},
		{"one of two kinds is there", []string{"shop.*", "outbox.event.*"}, false, "topics: ok: rows go to topics such as shop.* and outbox.event.*, and there are outbox.event.order; "},
		{"only the checkpoints fit", []string{"walpost.*"}, false, "topics: warn: rows go to topics such as walpost.*, and the brokers list no such topic"},
		{"the row decides all", []string{"*"}, false, "topics: warn: each row determines its own topic: an event whose topic does not exist waits until somebody creates the topic\n\tfix Set kafka.topics.create: true. "},
		{"walpost creates them", []string{"shop.*"}, true, "topics: ok: rows go to topics such as shop.*: walpost creates a missing topic when its first event comes (kafka.topics.create)\n"},
	} {
		t.Run(is.name, func(t *testing.T) {
			cfg := config(c.ListenAddrs())
			cfg.Topics.Create = is.create
			found := checkKafka(t.Context(), cfg, "walpost.checkpoints", "n", func() expectation { return expectation{patterns: is.patterns} })
			has(t, lines(found), is.want)
		})
	}
	has(t, looked(t, config(c.ListenAddrs()), map[string]topicTraffic{"outbox.event.order": {}}, ""), "topic outbox.event.order: ok")
	hasNot(t, looked(t, config(c.ListenAddrs()), map[string]topicTraffic{"outbox.event.order": {}}, ""), "topics: ")
}
