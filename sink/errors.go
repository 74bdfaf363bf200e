package sink

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

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

func missing(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}

// reason is an error of a topic as readiness and the log show it.
func reason(topic string, err error) error {
	if errors.Is(err, kgo.ErrMaxBuffered) {
		return fmt.Errorf("topic %s: the client's buffer is full (more in flight than the window): %w", topic, err)
	}
	return kafka.Reason(topic, err)
}
