package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
)

// ErrNotFenced is the error of brokers before Kafka 2.5 (KIP-360). There, a process whose transactional id another one has initialized asks
// for a new epoch as a new process does, so it takes the id back.
var ErrNotFenced = fault.WithHint(errors.New("the brokers are older than Kafka 2.5, where a process can take back a transactional id that another one has taken over"),
	"Upgrade the brokers, or set delivery.guarantee: at_least_once.")

// TransactionVersion is the finalized level of the feature transaction.version: 2 is KIP-890, and 0 stands for brokers without the feature,
// which is those before Kafka 4.0. The error of brokers before Kafka 2.5 is ErrNotFenced.
func TransactionVersion(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "walpost", "1"
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, err
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == kmsg.InitProducerID.Int16() && k.MaxVersion < 3 { // which has the producer's former id and epoch
			return 0, ErrNotFenced
		}
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			return f.MaxVersionLevel, nil
		}
	}
	return 0, kerr.ErrorForCode(resp.ErrorCode)
}
