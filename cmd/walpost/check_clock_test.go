package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/testenv"
)

// The clocks of a real database and of brokers that are two hours behind meet in one finding.
func TestCheckComparesTheClocksOfBothSides(t *testing.T) {
	brokers := testenv.FakeKafka(t, kfake.SeedTopics(1, "orders", "cp"))
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	known, err := kmsg.NewPtrApiVersionsRequest().RequestWith(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	more := kmsg.NewApiVersionsResponseApiKey()
	more.ApiKey, more.MaxVersion = int16(kmsg.DescribeQuorum), 2
	known.ApiKeys = append(known.ApiKeys, more)
	brokers.ControlKey(int16(kmsg.ApiVersions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		brokers.KeepControl()
		resp := *known
		resp.Version = r.GetVersion()
		return &resp, nil, true
	})
	brokers.ControlKey(int16(kmsg.DescribeQuorum), func(r kmsg.Request) (kmsg.Response, error, bool) {
		brokers.KeepControl()
		resp := r.ResponseKind().(*kmsg.DescribeQuorumResponse)
		v := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		v.LastFetchTimestamp = time.Now().Add(-2 * time.Hour).UnixMilli()
		p, rt := kmsg.NewDescribeQuorumResponseTopicPartition(), kmsg.NewDescribeQuorumResponseTopic()
		p.CurrentVoters = append(p.CurrentVoters, v)
		rt.Partitions = append(rt.Partitions, p)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, outboxTable)
	config := t.TempDir() + "/walpost.yaml"
	write(t, config, `
source: {dsn: "`+dsn+`", table: outbox, snapshot: never}
router: {route.topic.replacement: orders}
kafka: {brokers: ["`+strings.Join(brokers.ListenAddrs(), `", "`)+`"]}
checkpoint: {topic: cp}
`)
	_, out := command(t, "check", "-c", config)
	for _, want := range []string{
		`ok    postgres: clock: the database's clock is 0\.`,
		`warn  kafka: clock: the controller's clock is 7(200|199)\.\d+s behind this machine's`,
		`warn  kafka: clock of the database: the database's clock is 7(200|199)\.\d+s ahead of the controller's clock`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
