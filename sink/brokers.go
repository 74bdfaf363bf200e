package sink

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/kafka"
)

// brokers is what delivery asks of a cluster: of a real one through client, and of a model of one in a test.
type brokers interface {
	// produce sends a request once, behind those that were written before, and returns the answer. It calls AppendTo of the request when
	// it is about to write it.
	produce(ctx context.Context, broker int32, req *request) (kmsg.Response, error)
	// topics tells of topics in the order of names. An error means that no broker answered.
	topics(ctx context.Context, names []string) ([]kafka.Topic, error)
	// identify asks for a new producer id.
	identify(ctx context.Context) (*kmsg.InitProducerIDResponse, error)
}

// client asks by another client than it produces by: a broker that throttles, or doesn't answer, holds every request to it.
type client struct{ produces, asks *kgo.Client }

func (c client) produce(ctx context.Context, broker int32, req *request) (kmsg.Response, error) {
	resp, err := c.produces.Broker(int(broker)).Request(ctx, req)
	if err != nil || movedAway(resp) {
		c.produces.ForceMetadataRefresh() // the broker may have another address now, and this client asks for nothing else
	}
	return resp, err
}

// movedAway reports whether the broker doesn't lead a partition that it was sent.
func movedAway(resp kmsg.Response) bool {
	answers, ok := resp.(*kmsg.ProduceResponse)
	return ok && slices.ContainsFunc(answers.Topics, func(t kmsg.ProduceResponseTopic) bool {
		return slices.ContainsFunc(t.Partitions, func(p kmsg.ProduceResponseTopicPartition) bool {
			return p.ErrorCode == kerr.NotLeaderForPartition.Code
		})
	})
}

func (c client) topics(ctx context.Context, names []string) ([]kafka.Topic, error) {
	return kafka.Topics(ctx, c.asks, names, "max.message.bytes")
}

func (c client) identify(ctx context.Context) (*kmsg.InitProducerIDResponse, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis = 60_000 // of no transaction
	req.ProducerID, req.ProducerEpoch = -1, -1
	return req.RequestWith(ctx, c.asks)
}
