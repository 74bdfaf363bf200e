//go:build linux || darwin

package sink

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
)

// A right is an operation on a topic, or on the cluster where topic is "".
type right struct {
	operation string
	topic     string
	deny      bool
}

var operations = map[string]kmsg.ACLOperation{
	"Write": kmsg.ACLOperationWrite, "Read": kmsg.ACLOperationRead, "Describe": kmsg.ACLOperationDescribe, "Create": kmsg.ACLOperationCreate,
	"DescribeConfigs": kmsg.ACLOperationDescribeConfigs, "IdempotentWrite": kmsg.ACLOperationIdempotentWrite,
}

func grant(t *testing.T, cl *kgo.Client, principal string, rights ...right) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, r := range rights {
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName = kmsg.ACLResourceTypeTopic, r.topic
		if r.topic == "" {
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

var aclLine = regexp.MustCompile(`kafka-acls\.sh \S+ \S+ --command-config admin\.properties --add --allow-principal (\S+)((?: --operation \w+)+) (?:--topic (\S+)|--cluster)`)

// obey does what the lines for kafka-acls.sh say.
func obey(t *testing.T, cl *kgo.Client, fix string) {
	t.Helper()
	m := aclLine.FindStringSubmatch(fix)
	if m == nil {
		t.Fatalf("no line for kafka-acls.sh in %q", fix)
	}
	for _, op := range strings.Fields(strings.ReplaceAll(m[2], "--operation", "")) {
		grant(t, cl, m[1], right{operation: op, topic: m[3]})
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
		story  string
		rights []right
		topics string
		cp     string
		create bool
		name   string // of the one finding that is not ok; "" for none
		level  Level
		why    string
		fixed  bool // by obeying
	}{
		{story: "all", rights: full, topics: topic, cp: cp},
		{story: "only what a run needs", rights: []right{full[0], full[2], full[3]}, topics: topic, name: "topic orders settings", level: Warn, why: "DescribeConfigs", fixed: true},
		{story: "Write", rights: and(without(full[0]), right{operation: "Describe", topic: topic}), topics: topic, cp: cp, name: "topic orders", level: Fail, why: "may not write to it", fixed: true},
		{story: "anything on the topic", rights: without(full[0], full[1]), topics: topic, cp: cp, name: "topic orders", level: Fail, why: "may not see it", fixed: true},
		{story: "Describe is denied", rights: and(full, right{operation: "Describe", topic: topic, deny: true}), topics: topic, cp: cp, name: "topic orders", level: Fail, why: "may not see it"},
		{story: "DescribeConfigs", rights: without(full[1]), topics: topic, cp: cp, name: "topic orders settings", level: Warn, why: "is taken for 1000012", fixed: true},
		{story: "Create", rights: and(full, right{operation: "Describe", topic: missing}), topics: missing, cp: cp, create: true, name: "topic later", level: Fail, why: "is missing and can not be created: TOPIC_AUTHORIZATION_FAILED", fixed: true},
		{story: "nothing, for a topic that is made", rights: and(full, right{operation: "Describe", topic: missing}, right{operation: "Create", topic: missing}), topics: missing, cp: cp, create: true},
		{story: "to Read the checkpoints", rights: without(full[2]), topics: topic, cp: cp, name: "checkpoint topic cp", level: Fail, why: "may not read it", fixed: true},
		{story: "to Write checkpoints", rights: without(full[3]), topics: topic, cp: cp, name: "checkpoint topic cp", level: Fail, why: "may not write it", fixed: true},
		{story: "both", rights: and(without(full[2], full[3]), right{operation: "Describe", topic: cp}), topics: topic, cp: cp, name: "checkpoint topic cp", level: Fail, why: "may not read or write it", fixed: true},
		{story: "anything on the checkpoints", rights: without(full[2], full[3], full[4]), topics: topic, cp: cp, name: "checkpoint topic cp", level: Fail, why: "may not see it", fixed: true},
		{story: "to see whether checkpoints are compacted", rights: without(full[4]), topics: topic, cp: cp, name: "checkpoint topic cp settings", level: Warn, why: "whether it is compacted is not known", fixed: true},
		{story: "to Create the checkpoint topic", rights: and(full, right{operation: "Describe", topic: missingCP}), topics: topic, cp: missingCP, name: "checkpoint topic cp.later", level: Fail, why: "can not be created", fixed: true},
		{story: "a producer id", rights: full[5:], name: "idempotent producing", level: Fail, why: "neither has IdempotentWrite", fixed: true},
		{story: "nothing, with IdempotentWrite", rights: and(full[5:], right{operation: "IdempotentWrite"})},
	}
	users := map[string]string{}
	for i := range cases {
		users[fmt.Sprint("u", i)] = "secret"
	}
	k, asked := testenv.KafkaWithACLs(t, users, nil)
	k.CreateTopic(t, topic, 3, nil)
	k.CreateTopic(t, cp, 1, compactedSoon)
	admin := k.Client(t)
	config := func(i int) Config {
		cfg := config([]string{asked})
		cfg.SASL = kafka.SASL{Mechanism: "PLAIN", Username: fmt.Sprint("u", i), Password: "secret"}
		cfg.Topics.Create = cases[i].create
		return cfg
	}
	for i, c := range cases {
		grant(t, admin, fmt.Sprint("User:u", i), c.rights...)
	}
	bad := func(found []Finding) (left []Finding) {
		for _, f := range found {
			if f.Level != OK {
				left = append(left, f)
			}
		}
		return left
	}
	for i, c := range cases {
		t.Run(c.story, func(t *testing.T) {
			traffic := map[string]Traffic{}
			if c.topics != "" {
				traffic[c.topics] = Traffic{Largest: 100}
			}
			check := func() []Finding {
				return bad(Check(t.Context(), config(i), func() Expected { return Expected{Topics: traffic, Checkpoint: c.cp} }))
			}
			// ACLs take effect a moment after they are made.
			as := func(found []Finding) bool {
				if c.name == "" {
					return len(found) == 0
				}
				return len(found) == 1 && found[0].Name == c.name && found[0].Level == c.level && strings.Contains(found[0].Detail+found[0].Fix, c.why)
			}
			found := check()
			for end := time.Now().Add(20 * time.Second); !as(found) && time.Now().Before(end); found = check() {
				time.Sleep(100 * time.Millisecond)
			}
			if !as(found) {
				t.Fatalf("want %s %s %q, got:\n%s", c.name, c.level, c.why, lines(found))
			}
			if !c.fixed {
				return
			}
			obey(t, admin, found[0].Fix)
			left := check()
			for end := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(end); left = check() {
				time.Sleep(100 * time.Millisecond)
			}
			if len(left) > 0 {
				t.Errorf("after %s:\n%s", found[0].Fix, lines(left))
			}
		})
	}
	wrong := config(0)
	wrong.SASL.Password = "hunter2"
	got := looked(t, wrong, nil, "")
	has(t, got, "broker "+asked+": FAIL: ", "SASL_AUTHENTICATION_FAILED", "Correct kafka.sasl")
	hasNot(t, got, "hunter2", ": ok")
	wrong = config(0)
	wrong.TLS = &TLS{}
	has(t, looked(t, wrong, nil, ""), "broker "+asked+": FAIL: ", "may want TLS (kafka.tls)")
	for _, name := range []string{missing, missingCP} {
		if is, err := kafka.DescribeTopic(patient(t), admin, name); err != nil || !errors.Is(is.Err, kerr.UnknownTopicOrPartition) {
			t.Errorf("%s was created: %v", name, err)
		}
	}
}

var configLine = regexp.MustCompile(`kafka-configs\.sh \S+ \S+ --alter --entity-type topics --entity-name (\S+) --add-config ([\w.]+)=(\S+)`)

// What a topic is judged for is what the broker tells of it, and the line that the doctor prints mends it.
func TestRealTopicSettingsAreJudgedAndMended(t *testing.T) {
	k := testenv.Kafka(t)
	admin := k.Client(t)
	for _, c := range []struct {
		key, value string
		traffic    Traffic
		name       string
		level      Level
		refuses    error // what a record gets
	}{
		{key: "max.message.bytes", value: "1000", traffic: Traffic{Largest: 5000}, name: " size", level: Warn},
		{key: "min.insync.replicas", value: "2", name: " replicas", level: Warn},
		{key: "cleanup.policy", value: "compact", name: " cleanup", level: Warn},
		{key: "message.timestamp.type", value: "LogAppendTime", name: " timestamps", level: Warn},
		{key: "message.timestamp.before.max.ms", value: "1000", name: " timestamps", level: Warn, refuses: kerr.InvalidTimestamp},
		{key: "message.timestamp.after.max.ms", value: "1000", name: " timestamps", level: Warn},
		{key: "retention.ms", value: "3600000", name: " retention", level: Warn},
		{key: "retention.bytes", value: "100000", name: " retention", level: Warn},
		{key: "compression.type", value: "gzip", name: " compression", level: Warn},
		{key: "unclean.leader.election.enable", value: "true", name: " leader election", level: Warn},
	} {
		t.Run(c.key, func(t *testing.T) {
			topic := k.Topic(t, 1, map[string]string{c.key: c.value})
			judged := func() (bad []Finding) {
				for _, f := range Check(t.Context(), config(k.Brokers()), func() Expected { return Expected{Topics: map[string]Traffic{topic: c.traffic}} }) {
					if f.Level != OK && strings.HasPrefix(f.Name, "topic ") {
						bad = append(bad, f)
					}
				}
				return bad
			}
			found := judged()
			if len(found) != 1 || found[0].Name != "topic "+topic+c.name || found[0].Level != c.level {
				t.Fatalf("want %s:\n%s", c.name, lines(found))
			}
			// What is only a warning takes records all the same.
			if c.level == Warn || c.refuses != nil {
				cl := k.Client(t, kgo.DefaultProduceTopic(topic), kgo.RecordRetries(1), kgo.RetryBackoffFn(func(int) time.Duration { return time.Millisecond }))
				old := &kgo.Record{Key: []byte("k"), Value: []byte("v"), Timestamp: time.Now().Add(-time.Hour)}
				if err := cl.ProduceSync(patient(t), old).FirstErr(); !errors.Is(err, c.refuses) {
					t.Errorf("a record got %v, want %v", err, c.refuses)
				}
			}
			m := configLine.FindStringSubmatch(found[0].Fix)
			if m == nil || m[1] != topic {
				t.Fatalf("no line for kafka-configs.sh in %q", found[0].Fix)
			}
			setTopicConfig(t, admin, topic, m[2], m[3])
			if left := judged(); len(left) > 0 {
				t.Errorf("after %s:\n%s", found[0].Fix, lines(left))
			}
		})
	}
}

// With a broker gone, its partitions are short of a replica; where all are needed, nothing can be written.
func TestRealInSyncReplicasAreCounted(t *testing.T) {
	k := testenv.KafkaPrivate(t, 3, nil)
	k.CreateTopic(t, "good", 1, nil)
	k.CreateTopic(t, "tight", 1, map[string]string{"min.insync.replicas": "3"})
	topics := map[string]Traffic{"good": {}, "tight": {}}
	got := looked(t, config(k.Brokers()), topics, "")
	has(t, got, "brokers: ok: 3 of 3 reachable", "clock: ok: the controller's is", "topic good: ok: 1 partitions, 3 replicas, min.insync.replicas 2",
		"topic tight replicas: warn: min.insync.replicas is 3 of 3")
	hasNot(t, got, "FAIL", "in-sync replicas: ")
	if err := k.Kill(3); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		got = looked(t, config(k.Brokers()), topics, "")
		return strings.Contains(got, "topic good in-sync replicas: warn: a replica is down or behind of partition 0") &&
			strings.Contains(got, "topic tight in-sync replicas: FAIL: fewer than min.insync.replicas wants, so nothing can be written now to partition 0 (2 of 3)")
	})
	has(t, got, "broker "+k.Brokers()[2]+": warn: of kafka.brokers, does not answer")
}
