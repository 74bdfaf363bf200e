//go:build linux || darwin

package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Configure changes a setting of topics, and returns when each broker uses the new value. The answer
// to the change itself comes earlier: a broker takes the change from the metadata log.
func (c *KafkaCluster) Configure(t testing.TB, key, value string, topics ...string) {
	t.Helper()
	adm, ctx := c.admin(t)
	changed, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: key, Value: &value}}, topics...)
	for _, r := range changed {
		if err == nil {
			err = r.Err
		}
	}
	if err != nil {
		t.Fatalf("set %s=%s: %v", key, value, err)
	}
	brokers, err := adm.ListBrokers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.Client(t)
	for _, b := range brokers {
		for _, topic := range topics {
			soon(t, "broker shows "+key+"="+value, func() bool { return shows(ctx, cl.Broker(int(b.NodeID)), topic, key, value) })
		}
	}
	// A broker shows a value before its log uses the value. It carries out one change after the other,
	// so a topic that was made later shows that the change is carried out.
	c.Grow(t, len(brokers), c.Topic(t, len(brokers), nil))
}

// shows reports whether a broker answers that a topic has a setting.
func shows(ctx context.Context, broker *kgo.Broker, topic, key, value string) bool {
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{key}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Resources = append(req.Resources, res)
	answer, err := broker.RetriableRequest(ctx, req)
	if err != nil {
		return false
	}
	found := answer.(*kmsg.DescribeConfigsResponse).Resources
	return len(found) == 1 && len(found[0].Configs) == 1 && found[0].Configs[0].Value != nil && *found[0].Configs[0].Value == value
}

// OldTransactions gives a private cluster the transactions that brokers have before Kafka 4.0: it takes transaction.version back to 0.
func (c *KafkaCluster) OldTransactions(t testing.TB) {
	t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	f := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	f.Feature, f.UpgradeType = "transaction.version", 2 // a safe downgrade, to level 0
	req.FeatureUpdates = append(req.FeatureUpdates, f)
	resp, err := req.RequestWith(t.Context(), c.Client(t))
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatal("transaction.version: ", err)
	}
}

// Grow gives topics as many partitions, and returns when the leader of each partition answers.
func (c *KafkaCluster) Grow(t testing.TB, partitions int, topics ...string) {
	t.Helper()
	adm, ctx := c.admin(t)
	for _, topic := range topics {
		details, err := adm.ListTopics(ctx, topic)
		if err == nil && len(details[topic].Partitions) < partitions {
			_, err = adm.UpdatePartitions(ctx, partitions, topic)
		}
		if err != nil {
			t.Fatal(err)
		}
		soon(t, "each partition of "+topic+" has a leader", func() bool {
			details, err := adm.ListTopics(ctx, topic)
			if err != nil || !ledBy(details[topic], partitions) {
				return false
			}
			ends, err := adm.ListEndOffsets(ctx, topic)
			return err == nil && ends.Error() == nil && len(ends[topic]) == partitions
		})
	}
}

func (c *KafkaCluster) admin(t testing.TB) (*kadm.Client, context.Context) {
	t.Helper()
	adm, err := adminOf(c.Brokers()...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(func() { cancel(); adm.Close() })
	return adm, ctx
}

// soon waits until a fact holds.
func soon(t testing.TB, fact string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not within a minute: %s", fact)
		}
	}
}
