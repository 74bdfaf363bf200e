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

// Features are the finalized levels of the brokers' features that matter to transactions. 0 stands for brokers without the feature.
type Features struct {
	Transaction int16 // transaction.version: 2 is KIP-890, from Kafka 4.0 on
	Metadata    int16 // metadata.version
}

// LeavesTransactionsOpen reports whether the brokers may be those of HangingTransaction. Their level is that of 4.3 or 4.4. A later patch
// release may have the fix, and no level shows that.
func (f Features) LeavesTransactionsOpen() bool { return f.Metadata == 30 || f.Metadata == 31 }

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
		switch f.Name {
		case "transaction.version":
			found.Transaction = f.MaxVersionLevel
		case "metadata.version":
			found.Metadata = f.MaxVersionLevel
		}
	}
	return found, kerr.ErrorForCode(resp.ErrorCode)
}
