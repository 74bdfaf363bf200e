package sink

import (
	"bytes"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv/short"
)

// sendLarge sends a record that is larger than its topic's limit and fits when it is compressed, so that it goes alone.
func (b *bench) sendLarge(topic, key string) {
	b.sendRecord(cdc.Record{Topic: topic, Key: []byte(key), Partition: -1, Value: bytes.Repeat([]byte("x"), 100_000)})
}

// Large records follow a topic that was deleted and created again.
func TestLargeRecordsFollowATopicThatWasCreatedAgain(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.sendLarge("a", "k")
	b.sendLarge("b", "k")
	b.all()
	if err := c.DeleteTopic("a"); err != nil {
		t.Fatal(err)
	}
	b.sendLarge("a", "k")
	waitFor(t, func() bool {
		err := b.Stalled()
		return err != nil && strings.Contains(err.Error(), "topic a does not exist")
	})
	if err := c.CreateTopic("a", 1, map[string]string{"max.message.bytes": "20000"}); err != nil {
		t.Fatal(err)
	}
	b.sendLarge("a", "k")
	b.send("a", "k", 5)
	b.sendLarge("a", "k")
	b.sendLarge("b", "k")
	b.all()
	b.sent["a/k"] = b.sent["a/k"][1:] // the first one went with the old topic
	b.checkLog(c.ListenAddrs(), "a", "b")
}

// A refused producer id does not end the delivery of large records.
func TestLargeRecordsOutliveARefusedProducerID(t *testing.T) {
	short.SkipSlow(t)
	for _, e := range []*kerr.Error{
		kerr.InvalidProducerEpoch, kerr.UnknownProducerID, kerr.OutOfOrderSequenceNumber,
		kerr.UnknownTopicID, kerr.ClusterAuthorizationFailed,
	} {
		t.Run(e.Message, func(t *testing.T) {
			c := limited(t, 20_000)
			b := open1(t, config(c.ListenAddrs()))
			b.sendLarge("a", "k")
			b.all()
			h := c.Fault(kfake.Fault{Keys: produce, Err: e, Count: 3})
			b.sendLarge("a", "k")
			b.all()
			if h.Hits() == 0 {
				t.Fatal("the fault was not hit")
			}
			b.sendLarge("a", "k")
			b.all()
			b.checkLog(c.ListenAddrs(), "a")
		})
	}
}

// A producer id that is not given at first does not end the delivery of large records.
func TestLargeRecordsOutliveAProducerIDThatIsNotGiven(t *testing.T) {
	c := limited(t, 20_000)
	b := open1(t, config(c.ListenAddrs()))
	b.send("a", "k", 3)
	b.all()
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.ClusterAuthorizationFailed, Count: 1})
	b.mu.Lock()
	b.Kafka.ids.known = false // as when topics were forgotten
	b.mu.Unlock()
	b.sendLarge("a", "k")
	b.sendLarge("b", "k")
	b.all()
	if h.Hits() == 0 {
		t.Fatal("the fault was not hit")
	}
	b.checkLog(c.ListenAddrs(), "a", "b")
}
