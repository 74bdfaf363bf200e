package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/internal/testenv/short"
	"github.com/walpost/walpost/sink"
)

// looked is what Check finds, a line for each finding and one more for its fix.
func looked(t testing.TB, cfg sink.Config, topics map[string]topicTraffic, cp string) string {
	t.Helper()
	return lines(checkKafka(t.Context(), cfg, cp, "n", func() expectation { return expectation{topics: topics} }))
}

func lines(found []Finding) string {
	var sb strings.Builder
	for _, f := range found {
		fmt.Fprintf(&sb, "%s: %s: %s\n", f.Name, f.Verdict, f.Why)
		if text := f.FixText(); text != "" {
			fmt.Fprintf(&sb, "\tfix %s\n", text)
		}
	}
	return sb.String()
}

// has wants each piece in the text.
func has(t testing.TB, text string, pieces ...string) {
	t.Helper()
	for _, want := range pieces {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q in:\n%s", want, text)
		}
	}
}

func hasNot(t testing.TB, text string, pieces ...string) {
	t.Helper()
	for _, bad := range pieces {
		if strings.Contains(text, bad) {
			t.Errorf("there is %q in:\n%s", bad, text)
		}
	}
}

func TestCheckFindsWhatIsMissing(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(3), kfake.SeedTopics(2, "there"))
	for name, set := range map[string]map[string]string{
		"cp": {"cleanup.policy": "compact,delete"}, "strict": {"min.insync.replicas": "7"}, "small": {"max.message.bytes": "1000"},
	} {
		if err := c.CreateTopic(name, 2, set); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config(c.ListenAddrs())
	to := "kafka-configs.sh --bootstrap-server " + c.ListenAddrs()[0] + " --alter --entity-type topics --entity-name "
	got := looked(t, cfg, map[string]topicTraffic{
		"there": {largest: 1_048_588, partition: 1}, "absent": {}, "no good": {}, "strict": {largest: 100, partition: 2}, "small": {largest: 1001},
	}, "cp")
	has(t, got,
		"brokers: ok: 3 of 3 reachable\n",
		"idempotent producing: ok",
		"topic there: ok: 2 partitions, 3 replicas, min.insync.replicas",
		"topic small size: warn: the largest row of the table becomes a record of 1001 bytes, more than max.message.bytes, 1000",
		"unless compression makes it fit\n\tfix "+to+"small --add-config max.message.bytes=1613\nAlso raise fetch.max.bytes",
		"topic absent: FAIL: the topic does not exist\n\tfix kafka-topics.sh --bootstrap-server "+c.ListenAddrs()[0]+" --create --topic absent\nOr set kafka.topics.create: true",
		"topic no good: FAIL: invalid topic name",
		"topic strict replicas: warn: min.insync.replicas is 7, more than the number of replicas, 3",
		"lower the setting:\n"+to+"strict --add-config min.insync.replicas=2\n",
		"topic strict partitions: warn: a row of the table asks for partition 2, and there are 2",
		"checkpoint topic cp: ok",
		"checkpoint topic cp partitions: warn: the topic has 2 partitions",
		"checkpoint topic cp cleanup: warn: cleanup.policy is compact,delete",
	)
	hasNot(t, got, "topic strict size", "topic there size", "topic there partitions")

	cfg.Topics.Create = true
	has(t, looked(t, cfg, map[string]topicTraffic{"absent": {}}, "new"),
		"topic absent: ok: the topic is missing and will be created", "checkpoint topic new: ok: the topic is missing and will be created")
	if c.TopicInfo("absent") != nil || c.TopicInfo("new") != nil {
		t.Error("the check created a topic")
	}
	cfg.Topics.ReplicationFactor = 7
	has(t, looked(t, cfg, map[string]topicTraffic{"absent": {}}, ""), "topic absent: FAIL: the topic is missing and cannot be created: INVALID_REPLICATION_FACTOR",
		"--create --topic absent --replication-factor 7")
	// A topic whose name collides with another one's ("a.b" and "a_b") cannot be created by hand either.
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.InvalidTopicException, Count: -1})
	got = looked(t, cfg, map[string]topicTraffic{"absent": {}}, "new")
	has(t, got, "topic absent: FAIL: the topic is missing and cannot be created: INVALID_TOPIC_EXCEPTION", "\tfix Change router.route.topic.replacement or the value that it uses.\n",
		"checkpoint topic new: FAIL: the topic is missing and cannot be created: INVALID_TOPIC_EXCEPTION", "\tfix Change the name of the topic in the configuration.\n")
	hasNot(t, got, "--create")
}

// Of the addresses in kafka.brokers one that answers is enough; of the brokers of the cluster each is needed.
func TestCheckTalksToEveryBroker(t *testing.T) {
	got := looked(t, config([]string{"127.0.0.1:1"}), nil, "")
	has(t, got, "broker 127.0.0.1:1: FAIL: ", "refused", "fix Start the broker, or correct kafka.brokers")
	hasNot(t, got, "topic", ": ok")

	c := testenv.FakeKafka(t, kfake.NumBrokers(2))
	got = looked(t, config(append(c.ListenAddrs(), "127.0.0.1:1")), nil, "")
	has(t, got, "broker 127.0.0.1:1: warn: this address of kafka.brokers does not answer, while others do", "brokers: ok: 2 of 2 reachable")

	// A broker that gives out an address where nobody can reach it.
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.MetadataResponse)
		for i, port := range []int32{int32(portOf(c.ListenAddrs()[0])), 1} {
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID, b.Host, b.Port = int32(i), "127.0.0.1", port
			resp.Brokers = append(resp.Brokers, b)
		}
		return resp, nil, true
	})
	got = looked(t, config(c.ListenAddrs()[:1]), nil, "")
	has(t, got, "broker 1: FAIL: the cluster advertises the broker at 127.0.0.1:1, but this machine cannot reach that address", "advertised.listeners", "brokers: ok: 1 of 2 reachable")
}

// Where none of the brokers can be reached at the address that is given out, nothing else is asked for.
func TestCheckStopsAtAddressesThatAreWrong(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"))
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.MetadataResponse)
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = 4, "127.0.0.1", 1
		resp.Brokers = append(resp.Brokers, b)
		return resp, nil, true
	})
	found := checkKafka(t.Context(), config(c.ListenAddrs()), "", "n", func() expectation { return expectation{topics: map[string]topicTraffic{"a": {}}} })
	if len(found) != 1 || found[0].Name != "broker 4" || found[0].Verdict != Fail {
		t.Error(lines(found))
	}
}

// Brokers from before 3.7 refuse every record where min.insync.replicas is more than the replicas; one of them is enough.
func TestCheckKnowsOldBrokers(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(2))
	if err := c.CreateTopic("strict", 1, map[string]string{"min.insync.replicas": "7"}); err != nil {
		t.Fatal(err)
	}
	cl, err := config(c.ListenAddrs()).NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	known, err := kmsg.NewPtrApiVersionsRequest().RequestWith(patient(t), cl)
	if err != nil {
		t.Fatal(err)
	}
	c.ControlKey(int16(kmsg.ApiVersions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := *known
		resp.Version = r.GetVersion()
		resp.ApiKeys = slices.Clone(resp.ApiKeys)
		for i := range resp.ApiKeys {
			if k := &resp.ApiKeys[i]; k.ApiKey == int16(kmsg.Produce) && c.CurrentNode() == 0 {
				k.MaxVersion = 9
			}
		}
		return &resp, nil, true
	})
	has(t, looked(t, config(c.ListenAddrs()), map[string]topicTraffic{"strict": {}}, ""), "topic strict replicas: FAIL: min.insync.replicas is 7, more than the number of replicas, 2: the brokers refuse every write")
}

// A topic that would be created is judged by what the brokers would make of it.
func TestCheckJudgesTopicsThatAreNotThereYet(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.NumBrokers(3))
	c.ControlKey(int16(kmsg.CreateTopics), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !r.(*kmsg.CreateTopicsRequest).ValidateOnly {
			t.Error("a topic is created")
		}
		resp := r.ResponseKind().(*kmsg.CreateTopicsResponse)
		made := kmsg.NewCreateTopicsResponseTopic()
		made.Topic, made.NumPartitions, made.ReplicationFactor = r.(*kmsg.CreateTopicsRequest).Topics[0].Topic, 4, 3
		for k, v := range map[string]string{"min.insync.replicas": "3", "message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"} {
			kv := kmsg.NewCreateTopicsResponseTopicConfig()
			kv.Name, kv.Value = k, &v
			made.Configs = append(made.Configs, kv)
		}
		resp.Topics = append(resp.Topics, made)
		return resp, nil, true
	})
	cfg := config(c.ListenAddrs())
	cfg.Topics.Create = true
	has(t, looked(t, cfg, map[string]topicTraffic{"new": {}}, "cp"), "topic new: ok: the topic is missing and will be created (kafka.topics.create), with 4 partitions and 3 replicas",
		"topic new replicas: warn: min.insync.replicas is 3 of 3", "topic new timestamps: warn: message.timestamp.type is LogAppendTime",
		"checkpoint topic cp: ok: the topic is missing and will be created, with 4 partitions", "checkpoint topic cp replicas: warn: min.insync.replicas is 3 of 3")
}

// That checkpoints can be read is tried, whatever is told of rights.
func TestCheckReadsTheCheckpoints(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "cp"))
	c.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt, rp := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		rt.Topic, rp.ErrorCode = "cp", kerr.TopicAuthorizationFailed.Code
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	has(t, looked(t, config(c.ListenAddrs()), nil, "cp"), "checkpoint topic cp: FAIL: the topic cannot be read: ", "TOPIC_AUTHORIZATION_FAILED", "--operation Read --topic cp")
}

func portOf(addr string) (port int) {
	_, err := fmt.Sscanf(addr[strings.LastIndex(addr, ":")+1:], "%d", &port)
	if err != nil {
		panic(err)
	}
	return port
}

// Brokers that take connections and answer nothing are given up after a bounded time, and the rest of a check is not asked.
func TestCheckGivesUpBrokersThatAreSilent(t *testing.T) {
	c := testenv.FakeKafka(t)
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		c.SleepControl(func() { <-t.Context().Done() })
		return nil, nil, false
	})
	asked := false
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	found := checkKafka(ctx, config(c.ListenAddrs()), "", "n", func() expectation { asked = true; return expectation{} })
	if len(found) != 1 || found[0].Verdict != Fail || !strings.HasPrefix(found[0].Name, "broker 127") {
		t.Error(lines(found))
	}
	if !asked {
		t.Error("what is expected was not asked for: whoever waits for that waits for ever")
	}
}

// A broker that answers at first and then no more takes nobody's time for ever, and what was not told is said.
func TestCheckGivesUpQuestionsThatAreNotAnswered(t *testing.T) {
	short.SkipSlow(t)
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a", "cp"))
	c.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		c.SleepControl(func() { <-t.Context().Done() })
		return nil, nil, false
	})
	got := ""
	// On a busy machine, the brokers can take longer to answer at first.
	for limit := 4 * time.Second; limit < time.Minute && !strings.Contains(got, "brokers: ok"); limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		got = lines(checkKafka(ctx, config(c.ListenAddrs()), "cp", "n", func() expectation { return expectation{topics: map[string]topicTraffic{"a": {}}} }))
		cancel()
	}
	has(t, got, "brokers: ok", "broker settings: ok: not checked", "idempotent producing: FAIL: the brokers assign no producer id: no answer", "topic a: FAIL: the brokers do not answer", "checkpoint topic cp: FAIL")
}

// If the brokers refuse the settings that keep the checkpoint topic small, the check says so before the topic is created.
func TestCheckTriesTheSettingsOfTheCheckpointTopic(t *testing.T) {
	c := testenv.FakeKafka(t)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.PolicyViolation, Count: -1, When: func(req kmsg.Request) bool {
		return len(req.(*kmsg.CreateTopicsRequest).Topics[0].Configs) > 1
	}})
	has(t, looked(t, config(c.ListenAddrs()), nil, "cp"),
		"checkpoint topic cp: ok: the topic is missing and will be created",
		"checkpoint topic cp segments: warn: the brokers refuse the settings that keep the topic small (POLICY_VIOLATION")
	// Without the right to create the topic, nothing is tried without the settings.
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	has(t, looked(t, config(c.ListenAddrs()), nil, "other"), "checkpoint topic other: FAIL: the topic is missing and cannot be created: TOPIC_AUTHORIZATION_FAILED")
}

// What is known of the records of a topic is what its brokers will be asked to take.
func TestTrafficIsTheExtremesOfItsRecords(t *testing.T) {
	var tr topicTraffic
	at := time.Unix(1_000_000, 0)
	small := &cdc.Record{Key: []byte("k"), Value: []byte("v"), Partition: 3, Time: at}
	large := &cdc.Record{Key: []byte("k"), Value: make([]byte, 999), Partition: -1, Time: at.Add(-time.Hour)}
	tr.add(small)
	tr.add(large)
	if want := (topicTraffic{largest: sink.BatchBytes(large), newest: at, partition: 3}); tr != want {
		t.Errorf("%+v, want %+v", tr, want)
	}
	tr.add(&cdc.Record{Partition: -1, Time: at.Add(time.Hour)})
	tr.add(small)
	if !tr.keyless || !tr.newest.Equal(at.Add(time.Hour)) {
		t.Errorf("%+v", tr)
	}
}

func TestCheckAsksForAProducerID(t *testing.T) {
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "secret"))
	c.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if id := r.(*kmsg.InitProducerIDRequest).TransactionalID; id != nil {
			t.Errorf("asked for the transactional id %s", *id)
		}
		resp := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil, true
	})
	cfg := config(c.ListenAddrs())
	cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	has(t, looked(t, cfg, map[string]topicTraffic{"a": {}}, ""), "idempotent producing: FAIL: the brokers assign no producer id",
		"--command-config admin.properties --add --allow-principal User:relay --operation IdempotentWrite --cluster", "topic a: ok")
}

func TestCheckRefusesTransactionsThatDoNotFence(t *testing.T) {
	for version, want := range map[*kversion.Versions]string{
		kversion.V2_4_0(): "transaction.version: FAIL: the brokers are older than Kafka 2.5", kversion.V2_5_0(): "transaction.version: warn: transaction.version is 0",
	} {
		c := testenv.FakeKafka(t, kfake.SeedTopics(1, "a"), kfake.MaxVersions(version))
		cfg := config(c.ListenAddrs())
		cfg.TransactionalID = "relay/events"
		has(t, looked(t, cfg, map[string]topicTraffic{"a": {}}, ""), want)
	}
}
