package sink

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// errPartition is the client's refusal of a partition that the topic does not have.
var errPartition = errors.New("the topic has no such partition")

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

// unwritten reports whether an attempt with this error has written nothing, and never will.
func unwritten(err error) bool {
	for _, e := range []error{
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.UnknownServerError, kerr.KafkaStorageError, kerr.NetworkException,
	} {
		if errors.Is(err, e) {
			return false
		}
	}
	return errors.As(err, new(*kerr.Error))
}

// forgotten reports whether a leader does not know a producer id or its sequence numbers any more.
func forgotten(err error) bool {
	for _, e := range []error{
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.ProducerFenced,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// reason is an error of a topic as readiness and the log show it.
func reason(topic string, err error) error { return kafka.Reason(topic, err) }
