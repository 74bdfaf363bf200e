//go:build linux || darwin

package sink

import (
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

func TestRealLargeRecordsFollowATopicThatWasCreatedAgain(t *testing.T) {
	k := testenv.Kafka(t)
	a := k.Topic(t, 1, map[string]string{"max.message.bytes": "20000"})
	b := open1(t, config(k.Brokers()))
	b.sendLarge(a, "k")
	b.all()
	deleteTopic(t, b.cl, a)
	k.CreateTopic(t, a, 1, map[string]string{"max.message.bytes": "20000"})
	b.sendLarge(a, "k")
	b.send(a, "k", 5)
	b.sendLarge(a, "k")
	b.all()
	b.sent[a+"/k"] = b.sent[a+"/k"][1:] // the first one went with the old topic
	b.checkLog(k.Brokers(), a)
}
