package doctor

import (
	"regexp"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/testenv"
)

// withQuorum has a fake answer DescribeQuorum, which it does not know.
func withQuorum(t *testing.T, c *kfake.Cluster, answer func(resp *kmsg.DescribeQuorumResponse)) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	known, err := kmsg.NewPtrApiVersionsRequest().RequestWith(patient(t), cl)
	if err != nil {
		t.Fatal(err)
	}
	more := kmsg.NewApiVersionsResponseApiKey()
	more.ApiKey, more.MaxVersion = int16(kmsg.DescribeQuorum), 2
	known.ApiKeys = append(known.ApiKeys, more)
	c.ControlKey(int16(kmsg.ApiVersions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := *known
		resp.Version = r.GetVersion()
		return &resp, nil, true
	})
	c.ControlKey(int16(kmsg.DescribeQuorum), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.DescribeQuorumResponse)
		answer(resp)
		return resp, nil, true
	})
}

func TestClocksAreCompared(t *testing.T) {
	second := regexp.MustCompile(`\d+\.\d{3}s (ahead of|behind)`)
	for _, c := range []struct {
		story   string
		brokers time.Duration // ahead of this machine
		source  time.Duration // likewise
		silent  bool          // the controller tells nothing of itself
		code    int16
		want    []string
		not     string
	}{
		{story: "the same", want: []string{"clock: ok: the controller's clock is "}, not: "clock of the database"},
		{
			story: "the brokers an hour ahead", brokers: time.Hour,
			want: []string{"clock: warn: the controller's clock is 3(600|59[0-9]).* ahead of this machine's", "clock of the database: warn: the database's clock is 3(600|59[0-9]).* behind the controller's"},
		},
		{
			story: "the brokers behind, and the database with them", brokers: -time.Minute, source: -time.Minute,
			want: []string{"clock: warn: the controller's clock is (6[0-9]|5[0-9])[.].* behind this machine's"}, not: "clock of the database",
		},
		{story: "the database ahead", source: time.Minute, want: []string{"clock: ok", "clock of the database: warn: the database's clock is (6[0-9]|5[0-9])[.].* ahead of the controller's"}},
		{story: "another voter's time", silent: true, want: []string{`clock: ok: the controller's clock is .*within [1-9]\.\d+s\)`}},
		{story: "another voter's time, an hour ahead", silent: true, brokers: time.Hour, want: []string{"clock: warn: the controller's clock is 3(600|59[0-9]).* ahead of"}},
		{
			story: "not allowed", code: kerr.ClusterAuthorizationFailed.Code,
			want: []string{"clock: ok: the brokers' clock is not known: the relay's user may not describe the cluster", "--operation Describe --cluster"}, not: "clock of the database",
		},
		{story: "not KRaft", code: kerr.UnsupportedVersion.Code, want: []string{"clock: ok: the brokers' clock is not known: only Kafka 3.3"}, not: "clock of the database"},
	} {
		t.Run(c.story, func(t *testing.T) {
			f := testenv.FakeKafka(t)
			withQuorum(t, f, func(resp *kmsg.DescribeQuorumResponse) {
				resp.ErrorCode = c.code
				p := kmsg.NewDescribeQuorumResponseTopicPartition()
				p.LeaderID = 7
				for id := int32(7); id <= 9; id++ {
					v := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
					v.ReplicaID = id
					switch {
					case id == 7 && !c.silent:
						v.LastFetchTimestamp = time.Now().Add(c.brokers).UnixMilli()
					case id == 8:
						v.LastFetchTimestamp = time.Now().Add(c.brokers - 300*time.Millisecond).UnixMilli()
					}
					p.CurrentVoters = append(p.CurrentVoters, v)
				}
				rt := kmsg.NewDescribeQuorumResponseTopic()
				rt.Partitions = append(rt.Partitions, p)
				resp.Topics = append(resp.Topics, rt)
			})
			got := lines(checkKafka(t.Context(), config(f.ListenAddrs()), "", "n", func() Expected { return Expected{DatabaseAhead: &c.source} }))
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(got) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
			if c.not != "" {
				hasNot(t, got, c.not)
			}
			if c.code == 0 && !second.MatchString(got) {
				t.Errorf("no seconds in\n%s", got)
			}
		})
	}
}

// What is known of two clocks reaches the judgement of topics.
func TestADatabaseAheadOfTheControllerFailsTopics(t *testing.T) {
	f := testenv.FakeKafka(t)
	if err := f.CreateTopic("a", 1, map[string]string{"message.timestamp.after.max.ms": "60000"}); err != nil {
		t.Fatal(err)
	}
	withQuorum(t, f, func(resp *kmsg.DescribeQuorumResponse) {
		p := kmsg.NewDescribeQuorumResponseTopicPartition()
		v := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		v.LastFetchTimestamp = time.Now().Add(-50 * time.Second).UnixMilli()
		p.CurrentVoters = append(p.CurrentVoters, v)
		rt := kmsg.NewDescribeQuorumResponseTopic()
		rt.Partitions = append(rt.Partitions, p)
		resp.Topics = append(resp.Topics, rt)
	})
	ahead := 20 * time.Second // 70 s ahead of the brokers
	got := lines(checkKafka(t.Context(), config(f.ListenAddrs()), "", "n", func() Expected {
		return Expected{DatabaseAhead: &ahead, Topics: map[string]Traffic{"a": {}}}
	}))
	has(t, got, "topic a timestamps: FAIL: message.timestamp.after.max.ms is 1m0s and the database's clock is 1m")
}

// A controller logs a DescribeQuorum that it refuses as an error.
func TestAControllerIsNotAskedWhatItWouldRefuse(t *testing.T) {
	f := testenv.FakeKafka(t)
	withQuorum(t, f, func(*kmsg.DescribeQuorumResponse) { t.Error("it is asked") })
	f.ControlKey(int16(kmsg.DescribeCluster), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		if !r.(*kmsg.DescribeClusterRequest).IncludeClusterAuthorizedOperations {
			t.Error("it is not asked for rights")
		}
		resp := r.ResponseKind().(*kmsg.DescribeClusterResponse)
		resp.ClusterAuthorizedOperations = 0
		return resp, nil, true
	})
	has(t, looked(t, config(f.ListenAddrs()), nil, ""), "clock: ok: the brokers' clock is not known: the relay's user may not describe the cluster", "--operation Describe --cluster")
}
