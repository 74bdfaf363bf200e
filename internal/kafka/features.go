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

// Features are the levels of the features that matter to transactions. A level is 0 if the broker reports none.
type Features struct {
	Transaction int16 // finalized level of transaction.version: 2 is KIP-890, from Kafka 4.0 on
	Metadata    int16 // highest level of metadata.version that the broker's release supports, finalized or not
}

// LeavesTransactionsOpen is the warning about brokers that do so.
const LeavesTransactionsOpen = "the brokers are Kafka 4.3 or 4.4, which up to 4.4.0 leave a transaction open where a partition has no leader when the transaction ends: events may be lost or repeated (KAFKA-20734)"

// LeavesTransactionsOpen reports whether the broker's release may have KAFKA-20734, see HangingTransaction: it supports
// 4.3-IV0 to 4.4-IV2, so it's a 4.3 or a 4.4. No level shows whether a patch release has the fix.
func (f Features) LeavesTransactionsOpen() bool { return f.Metadata >= 30 && f.Metadata <= 33 }

// FeaturesOf asks a broker. The error of brokers before Kafka 2.5 is ErrNotFenced.
func FeaturesOf(ctx context.Context, cl *kgo.Client) (found Features, err error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "walpost", "1"
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return found, err
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == kmsg.InitProducerID.Int16() && k.MaxVersion < 3 { // which has the producer's former id and epoch
			return found, ErrNotFenced
		}
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			found.Transaction = f.MaxVersionLevel
		}
	}
	for _, f := range resp.SupportedFeatures {
		if f.Name == "metadata.version" {
			found.Metadata = f.MaxVersion
		}
	}
	return found, kerr.ErrorForCode(resp.ErrorCode)
}
