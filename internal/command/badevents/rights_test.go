package badevents

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/testenv"
	"github.com/walpost/walpost/sink"
)

// A user who parks no events may have no right on the topic of parked events, and works with dead letters all the same.
func TestATopicOfParkedEventsThatIsDeniedIsSaid(t *testing.T) {
	acl := func(name string, op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	c := testenv.FakeKafka(t, kfake.SeedTopics(1, "dead", "parked"), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.User("PLAIN", "relay", "secret", acl("dead", kmsg.ACLOperationRead), acl("dead", kmsg.ACLOperationDescribe)))
	cfg := Config{Kafka: sink.DefaultConfig(), Parking: "parked", Progress: func(string, int64, int64) {}}
	cfg.Kafka.Brokers, cfg.Kafka.DeadLetters = c.ListenAddrs(), "dead"
	cfg.Kafka.SASL = kafka.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}
	said := ""
	cfg.Say = func(text string) { said += text }
	topics, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer topics.Close()
	if !topics.Parked.Missing || len(topics.All()) != 0 || !strings.Contains(said, "read topic parked: ") || !strings.Contains(said, "Grant Read and Describe") {
		t.Errorf("%+v, %q", topics.Parked, said)
	}
}
