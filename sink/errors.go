package sink

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// errPartition is the client's refusal of a partition that the topic does not have.
var errPartition = errors.New("the topic has no such partition")

// errStale is why a topic waits of which a broker knows fewer partitions than there are.
var errStale = errors.New("the broker does not know all partitions yet")

// timestampHint is the advice for a record whose timestamp the topic refuses.
func timestampHint() string {
	return "The topic refuses the timestamp of the record: see its message.timestamp.before.max.ms and message.timestamp.after.max.ms. " +
		"The timestamp comes from the column of router.table.field.event.timestamp, otherwise from the commit or, for a row of the table, from source.time_column. " +
		"For later rows, correct the program that writes the column. For this row, raise the limit of the topic: " + fault.Command("check") + " may print the command."
}

// refusal says why a record with this error may never be accepted; "" for any other error. See kafka.Refusal.
func refusal(err error) cdc.Reason {
	if errors.Is(err, errPartition) {
		return cdc.InvalidRecord
	}
	return kafka.Refusal(err)
}

func tooLarge(size int) error {
	return fmt.Errorf("%w (%d bytes, more than fit into a request of %d bytes)", kerr.MessageTooLarge, size, kafka.MaxRequest)
}

// answer is the error of an answer.
func answer(rp *kmsg.ProduceResponseTopicPartition) error {
	err := kerr.ErrorForCode(rp.ErrorCode)
	if err != nil && rp.ErrorMessage != nil {
		return fmt.Errorf("%w (%s)", err, *rp.ErrorMessage)
	}
	return err
}

// noAnswer is the error of an attempt that a broker did not answer. It is no error that a broker gave, even where one refused the
// connection with such an error.
type noAnswer struct {
	error
	sent bool // the request may have left
}

// unwritten reports whether an attempt with this error has written nothing, and never will. That is so only for errors that a leader
// gives before it appends. It answers others, such as NOT_LEADER_OR_FOLLOWER, also to a batch that it has appended, when it loses the
// partition while it waits for the replicas.
func unwritten(err error) bool {
	if none, ok := errors.AsType[noAnswer](err); ok {
		return !none.sent
	}
	return refusal(err) != "" || forgotten(err) || isOne(err,
		kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.NotEnoughReplicas, kerr.ThrottlingQuotaExceeded,
		kerr.ConcurrentTransactions, kerr.CorruptMessage, kerr.UnsupportedCompressionType, kerr.UnsupportedForMessageFormat)
}

func isOne(err error, of ...*kerr.Error) bool {
	e, ok := errors.AsType[*kerr.Error](err)
	return ok && slices.Contains(of, e)
}

// forgotten reports whether a leader does not know a producer id or its sequence numbers any more.
func forgotten(err error) bool {
	return isOne(err, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
		kerr.ProducerFenced, kerr.InvalidTxnState, kerr.TransactionAbortable)
}

// reason is an error of a topic as readiness and the log show it.
func reason(topic string, err error) error { return kafka.Reason(topic, err) }
