package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/cdc"
)

// refusals are the errors that can mean that a record itself will never be accepted. Such an error is only a suspicion while the
// record shared its batch with others, because the broker refuses the batch and the client then fails everything buffered for the
// partition: the innocent have the same error.
//
// The leader must return such an error before it appends (see unwritten in package sink), because what is sent instead takes the
// record's sequence number. Every other error is waited out. CORRUPT_MESSAGE and UNKNOWN_SERVER_ERROR are among those: they speak of the transport
// or the broker.
var refusals = []struct {
	err    error
	reason cdc.Reason
}{
	{kerr.MessageTooLarge, cdc.TooLarge},
	{kerr.RecordListTooLarge, cdc.TooLarge},
	{kerr.InvalidRecord, cdc.InvalidRecord},
	{kerr.InvalidTimestamp, cdc.InvalidRecord},
	{kerr.InvalidTopicException, cdc.InvalidTopic},
}

// Refusal says why a record with this error may never be accepted; "" for any other error.
func Refusal(err error) cdc.Reason {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return ""
}
