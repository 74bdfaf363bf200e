//go:build linux || darwin

package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/sink"
)

// A right is an operation on a topic, on a transactional id, or on the cluster where both are "".
type right struct {
	operation     string
	topic         string
	transactional string
	deny          bool
}

var operations = map[string]kmsg.ACLOperation{
	"Write": kmsg.ACLOperationWrite, "Read": kmsg.ACLOperationRead, "Describe": kmsg.ACLOperationDescribe, "Create": kmsg.ACLOperationCreate,
	"DescribeConfigs": kmsg.ACLOperationDescribeConfigs, "IdempotentWrite": kmsg.ACLOperationIdempotentWrite,
	"Delete": kmsg.ACLOperationDelete,
}

func grant(t *testing.T, cl *kgo.Client, principal string, rights ...right) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, r := range rights {
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName = kmsg.ACLResourceTypeTopic, r.topic
		if r.transactional != "" {
			c.ResourceType, c.ResourceName = kmsg.ACLResourceTypeTransactionalId, r.transactional
		} else if r.topic == "" {
			c.ResourceType, c.ResourceName = kmsg.ACLResourceTypeCluster, "kafka-cluster"
		}
		c.ResourcePatternType, c.Principal, c.Host = kmsg.ACLResourcePatternTypeLiteral, principal, "*"
		c.Operation, c.PermissionType = operations[r.operation], kmsg.ACLPermissionTypeAllow
		if r.deny {
			c.PermissionType = kmsg.ACLPermissionTypeDeny
		}
		req.Creations = append(req.Creations, c)
	}
	resp, err := req.RequestWith(patient(t), cl)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Fatal(err)
		}
	}
}

var aclLine = regexp.MustCompile(`kafka-acls\.sh \S+ \S+ --command-config admin\.properties --add --allow-principal (\S+)((?: --operation \w+)+) (?:--topic (\S+)|--transactional-id (\S+)|--cluster)`)

// obey does what the lines for kafka-acls.sh say.
func obey(t *testing.T, cl *kgo.Client, fix string) {
	t.Helper()
	m := aclLine.FindStringSubmatch(fix)
	if m == nil {
		t.Fatalf("no line for kafka-acls.sh in %q", fix)
	}
	for _, op := range strings.Fields(strings.ReplaceAll(m[2], "--operation", "")) {
		grant(t, cl, m[1], right{operation: op, topic: m[3], transactional: m[4]})
	}
}

// A user that lacks one right is told which, and with the line that the doctor prints it has it.
func TestRealRightsAreFoundMissingOneByOne(t *testing.T) {
	const topic, cp, missing, missingCP = "orders", "cp", "later", "cp.later"
	full := []right{
		{operation: "Write", topic: topic},
		{operation: "DescribeConfigs", topic: topic},
		{operation: "Read", topic: cp},
		{operation: "Write", topic: cp},
		{operation: "DescribeConfigs", topic: cp},
		{operation: "Describe"},
		{operation: "DescribeConfigs"},
	}
	keeps := append(full[:len(full):len(full)],
		right{operation: "Write", topic: "parked"}, right{operation: "Read", topic: "parked"}, right{operation: "DescribeConfigs", topic: "parked"})
	parks := append(keeps[:len(keeps):len(keeps)], right{operation: "Delete", topic: "parked"})
	without := func(out ...right) (left []right) {
		for _, r := range full {
			keep := true
			for _, o := range out {
				keep = keep && r != o
			}
			if keep {
				left = append(left, r)
			}
		}
		return left
	}
	and := func(rights []right, more ...right) []right { return append(append([]right(nil), rights...), more...) }
	cases := []struct {
		story   string
		rights  []right
		topics  string
		cp      string
		create  bool
		park    bool
		name    string // of the one finding that is not ok; "" for none
		verdict Verdict
		why     string
		fixed   bool // by obeying
	}{
		{story: "all", rights: full, topics: topic, cp: cp},
		{story: "only what a run needs", rights: []right{full[0], full[2], full[3]}, topics: topic, name: "topic orders settings", verdict: Warn, why: "DescribeConfigs", fixed: true},
		{story: "Write", rights: and(without(full[0]), right{operation: "Describe", topic: topic}), topics: topic, cp: cp, name: "topic orders", verdict: Fail, why: "may not write to the topic", fixed: true},
		{story: "anything on the topic", rights: without(full[0], full[1]), topics: topic, cp: cp, name: "topic orders", verdict: Fail, why: "may not see the topic", fixed: true},
		{story: "Describe is denied", rights: and(full, right{operation: "Describe", topic: topic, deny: true}), topics: topic, cp: cp, name: "topic orders", verdict: Fail, why: "may not see the topic"},
		{story: "DescribeConfigs", rights: without(full[1]), topics: topic, cp: cp, name: "topic orders settings", verdict: Warn, why: "assumes 1000012 for max.message.bytes", fixed: true},
		{story: "Create", rights: and(full, right{operation: "Describe", topic: missing}), topics: missing, cp: cp, create: true, name: "topic later", verdict: Fail, why: "is missing and cannot be created: TOPIC_AUTHORIZATION_FAILED", fixed: true},
		{story: "nothing, for a topic that is made", rights: and(full, right{operation: "Describe", topic: missing}, right{operation: "Create", topic: missing}), topics: missing, cp: cp, create: true},
		{story: "to Read the checkpoints", rights: without(full[2]), topics: topic, cp: cp, name: "checkpoint topic cp", verdict: Fail, why: "may not read the topic", fixed: true},
		{story: "to Write checkpoints", rights: without(full[3]), topics: topic, cp: cp, name: "checkpoint topic cp", verdict: Fail, why: "may not write the topic", fixed: true},
		{story: "both", rights: and(without(full[2], full[3]), right{operation: "Describe", topic: cp}), topics: topic, cp: cp, name: "checkpoint topic cp", verdict: Fail, why: "may not read or write the topic", fixed: true},
		{story: "anything on the checkpoints", rights: without(full[2], full[3], full[4]), topics: topic, cp: cp, name: "checkpoint topic cp", verdict: Fail, why: "may not see the topic", fixed: true},
		{story: "to see whether checkpoints are compacted", rights: without(full[4]), topics: topic, cp: cp, name: "checkpoint topic cp settings", verdict: Warn, why: "cannot tell whether the topic is compacted", fixed: true},
		{story: "to Create the checkpoint topic", rights: and(full, right{operation: "Describe", topic: missingCP}), topics: topic, cp: missingCP, name: "checkpoint topic cp.later", verdict: Fail, why: "cannot be created", fixed: true},
		{story: "the transactional id, without park_key", rights: parks, topics: topic, cp: cp},
		{story: "the transactional id", rights: parks, topics: topic, cp: cp, park: true, name: "transactional id n", verdict: Fail, why: "may not use this transactional id", fixed: true},
		{story: "Write on the transactional id", rights: and(parks, right{operation: "Describe", transactional: "n"}), topics: topic, cp: cp, park: true, name: "transactional id n", verdict: Fail, why: "may not use this transactional id", fixed: true},
		{story: "to Delete parked events", rights: and(keeps, right{operation: "Write", transactional: "n"}), topics: topic, cp: cp, park: true, name: "parked event topic parked deletion", verdict: Warn, why: "may not delete records of the topic", fixed: true},
		{story: "nothing, with park_key", rights: and(parks, right{operation: "Write", transactional: "n"}), topics: topic, cp: cp, park: true},
		{story: "a producer id", rights: full[5:], name: "idempotent producing", verdict: Fail, why: "has neither IdempotentWrite", fixed: true},
		{story: "nothing, with IdempotentWrite", rights: and(full[5:], right{operation: "IdempotentWrite"})},
	}
	users := map[string]string{}
	for i := range cases {
		users[fmt.Sprint("u", i)] = "secret"
	}
	k, asked := testenv.KafkaWithACLs(t, users, nil)
	k.CreateTopic(t, topic, 3, nil)
	k.CreateTopic(t, cp, 1, statelog.Checkpoints[0])
	k.CreateTopic(t, "parked", 1, statelog.Letters[0])
	admin := k.Client(t)
	config := func(i int) sink.Config {
		cfg := config([]string{asked})
		cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: fmt.Sprint("u", i), Password: "secret"}
		cfg.Topics.Create = cases[i].create
		cfg.Parking, cfg.Park = "", cases[i].park
		if cases[i].park {
			cfg.Parking = "parked"
		}
		return cfg
	}
	for i, c := range cases {
		grant(t, admin, fmt.Sprint("User:u", i), c.rights...)
	}
	bad := func(found []Finding) (left []Finding) {
		for _, f := range found {
			if f.Verdict != OK {
				left = append(left, f)
			}
		}
		return left
	}
	for i, c := range cases {
		t.Run(c.story, func(t *testing.T) {
			traffic := map[string]topicTraffic{}
			if c.topics != "" {
				traffic[c.topics] = topicTraffic{largest: 100}
			}
			check := func() []Finding {
				return bad(checkKafka(t.Context(), config(i), c.cp, "n", func() expectation { return expectation{topics: traffic} }))
			}
			// ACLs take effect a moment after they are made.
			as := func(found []Finding) bool {
				if c.name == "" {
					return len(found) == 0
				}
				return len(found) == 1 && found[0].Name == c.name && found[0].Verdict == c.verdict && strings.Contains(found[0].Why+found[0].FixText(), c.why)
			}
			found := check()
			for end := time.Now().Add(time.Minute); !as(found) && time.Now().Before(end); found = check() {
				time.Sleep(100 * time.Millisecond)
			}
			if !as(found) {
				t.Fatalf("want %s %s %q, got:\n%s", c.name, c.verdict, c.why, lines(found))
			}
			if !c.fixed {
				return
			}
			obey(t, admin, found[0].FixText())
			left := check()
			for end := time.Now().Add(time.Minute); len(left) > 0 && time.Now().Before(end); left = check() {
				time.Sleep(100 * time.Millisecond)
			}
			if len(left) > 0 {
				t.Errorf("after %s:\n%s", found[0].FixText(), lines(left))
			}
		})
	}
	wrong := config(0)
	wrong.SASL.Password = "hunter2"
	got := looked(t, wrong, nil, "")
	has(t, got, "broker "+asked+": FAIL: ", "SASL_AUTHENTICATION_FAILED", "Correct kafka.sasl")
	hasNot(t, got, "hunter2", ": ok")
	wrong = config(0)
	wrong.TLS = &kafka.TLS{}
	has(t, looked(t, wrong, nil, ""), "broker "+asked+": FAIL: ", "may require TLS (kafka.tls)")
	for _, name := range []string{missing, missingCP, transactionState} {
		if is, err := kafka.DescribeTopic(patient(t), admin, name); err != nil || !errors.Is(is.Err, kerr.UnknownTopicOrPartition) {
			t.Errorf("%s was created: %v", name, err)
		}
	}
}

// The check doesn't fence a relay that runs, even in the midst of a transaction.
func TestRealTheCheckLeavesTransactionsAlone(t *testing.T) {
	k := testenv.Kafka(t)
	cfg, topic := config(k.Brokers()), k.Topic(t, 1, nil)
	relay, err := kgo.NewClient(append(cfg.Options(), kgo.TransactionalID("n"), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	cfg.Parking, cfg.Park = topic, true
	for range 3 {
		if err := relay.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			has(t, looked(t, cfg, nil, ""), "transactional id n: ok")
			if err := relay.ProduceSync(t.Context(), kgo.StringRecord("v")).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := relay.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
	has(t, looked(t, cfg, nil, ""), "transactional id n: ok")
	cfg.Park = false
	hasNot(t, looked(t, cfg, nil, ""), "transactional")
}

var configLine = regexp.MustCompile(`kafka-configs\.sh \S+ \S+ --alter --entity-type topics --entity-name (\S+) --add-config ([\w.]+)=(\S+)`)

// What a topic is judged for is what the broker tells of it, and the line that the doctor prints mends it.
func TestRealTopicSettingsAreJudgedAndMended(t *testing.T) {
	k := testenv.Kafka(t)
	admin := k.Client(t)
	for _, c := range []struct {
		key, value string
		traffic    topicTraffic
		name       string
		verdict    Verdict
		refuses    error // what a record gets
	}{
		{key: "max.message.bytes", value: "1000", traffic: topicTraffic{largest: 5000}, name: " size", verdict: Warn},
		{key: "min.insync.replicas", value: "2", name: " replicas", verdict: Warn},
		{key: "message.timestamp.type", value: "LogAppendTime", name: " timestamps", verdict: Warn},
		{key: "message.timestamp.before.max.ms", value: "1000", name: " timestamps", verdict: Warn, refuses: kerr.InvalidTimestamp},
		{key: "message.timestamp.after.max.ms", value: "1000", name: " timestamps", verdict: Warn},
		{key: "retention.ms", value: "3600000", name: " retention", verdict: Warn},
		{key: "retention.bytes", value: "100000", name: " retention", verdict: Warn},
		{key: "compression.type", value: "gzip", name: " compression", verdict: Warn},
		{key: "unclean.leader.election.enable", value: "true", name: " leader election", verdict: Warn},
	} {
		t.Run(c.key, func(t *testing.T) {
			topic := k.Topic(t, 1, map[string]string{c.key: c.value})
			judged := func() (bad []Finding) {
				for _, f := range checkKafka(t.Context(), config(k.Brokers()), "", "n", func() expectation { return expectation{topics: map[string]topicTraffic{topic: c.traffic}} }) {
					if f.Verdict != OK && strings.HasPrefix(f.Name, "topic ") {
						bad = append(bad, f)
					}
				}
				return bad
			}
			found := judged()
			if len(found) != 1 || found[0].Name != "topic "+topic+c.name || found[0].Verdict != c.verdict {
				t.Fatalf("want %s:\n%s", c.name, lines(found))
			}
			// What is only a warning takes records all the same.
			if c.verdict == Warn || c.refuses != nil {
				cl := k.Client(t, kgo.DefaultProduceTopic(topic), kgo.RecordRetries(1), kgo.RetryBackoffFn(func(int) time.Duration { return time.Millisecond }))
				old := &kgo.Record{Key: []byte("k"), Value: []byte("v"), Timestamp: time.Now().Add(-time.Hour)}
				if err := cl.ProduceSync(patient(t), old).FirstErr(); !errors.Is(err, c.refuses) {
					t.Errorf("a record got %v, want %v", err, c.refuses)
				}
			}
			m := configLine.FindStringSubmatch(found[0].FixText())
			if m == nil || m[1] != topic {
				t.Fatalf("no line for kafka-configs.sh in %q", found[0].FixText())
			}
			setTopicConfig(t, admin, topic, m[2], m[3])
			left := judged() // a broker tells the new value a moment after the controller has taken it
			for end := time.Now().Add(time.Minute); len(left) > 0 && time.Now().Before(end); left = judged() {
				time.Sleep(20 * time.Millisecond)
			}
			if len(left) > 0 {
				t.Errorf("after %s:\n%s", found[0].FixText(), lines(left))
			}
		})
	}
}

// With a broker gone, its partitions are short of a replica; where all are needed, nothing can be written.
func TestRealInSyncReplicasAreCounted(t *testing.T) {
	k := testenv.KafkaPrivate(t, 3, nil)
	k.CreateTopic(t, "good", 1, nil)
	k.CreateTopic(t, "tight", 1, map[string]string{"min.insync.replicas": "3"})
	topics := map[string]topicTraffic{"good": {}, "tight": {}}
	got := looked(t, config(k.Brokers()), topics, "")
	has(t, got, "brokers: ok: 3 of 3 reachable", "topic good: ok: 1 partitions, 3 replicas, min.insync.replicas 2",
		"topic tight replicas: warn: min.insync.replicas is 3 of 3")
	hasNot(t, got, "FAIL", "in-sync replicas: ")
	if err := k.Kill(3); err != nil {
		t.Fatal(err)
	}
	ctx := patient(t)
	for {
		got = looked(t, config(k.Brokers()), topics, "")
		if strings.Contains(got, "topic good in-sync replicas: warn: a replica is down, or has not caught up, in partition 0") &&
			strings.Contains(got, "topic tight in-sync replicas: FAIL: fewer replicas are in sync than min.insync.replicas, so the brokers refuse writes to partition 0 (2 of 3)") {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the missing replicas are not found:\n%s", got)
		}
	}
	has(t, got, "broker "+k.Brokers()[2]+": warn: this address of kafka.brokers does not answer")
}

// The check finds what a start would refuse: records were deleted, and no checkpoint of this relay is left.
func TestRealDeletedCheckpointsAreFound(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, map[string]string{"cleanup.policy": "compact,delete"})
	cl := k.Client(t, kgo.DefaultProduceTopic(topic))
	for _, key := range []string{"n/1", "other/1"} {
		if err := cl.ProduceSync(patient(t), &kgo.Record{Key: []byte(key), Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	to := kadm.Offsets{}
	to.Add(kadm.Offset{Topic: topic, At: 1})
	if deleted, err := kadm.NewClient(cl).DeleteRecords(patient(t), to); err != nil || deleted.Error() != nil {
		t.Fatal(deleted, err)
	}
	lost := &statelog.LostRecords{Topic: topic, Name: "n", Start: 1}
	found := func(name string) string {
		return lines(checkKafka(t.Context(), config(k.Brokers()), topic, name, func() expectation { return expectation{} }))
	}
	has(t, found("n"), "checkpoint topic "+topic+": FAIL: "+lost.Error(), "--accept-gap="+lost.GapToken())
	hasNot(t, found("other"), "FAIL")
}

// A topic that a store makes is judged as small.
func TestRealTheStoresTopicIsNotBlamed(t *testing.T) {
	k := testenv.Kafka(t)
	topic := k.Topic(t, 1, statelog.Checkpoints[0])
	hasNot(t, looked(t, config(k.Brokers()), nil, topic), "warn: segment", "warn: min")
}

func TestRealReleasesThatLeaveTransactionsOpenAreWarnedAbout(t *testing.T) {
	cfg := config(testenv.Kafka(t).Brokers())
	cfg.TransactionalID = "relay/events"
	lines := looked(t, cfg, nil, "")
	has(t, lines, "transaction.version: ok")
	hasNot(t, lines, "brokers' release")
	cfg.Brokers = testenv.KafkaWithHangingTransactions(t, 1).Brokers()
	has(t, looked(t, cfg, nil, ""), "transaction.version: ok", "brokers' release: warn: the brokers are Kafka 4.3 or 4.4")
}
