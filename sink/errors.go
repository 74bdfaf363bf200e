package sink

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// errPartition is the client's refusal of a partition that the topic does not have.
var errPartition = errors.New("the topic has no such partition")

// refusal says whether err can mean that a record itself will never be accepted: too large, not a valid record, or no
// valid topic name. It is only a suspicion while the record shared its batch with others, because the broker refuses the
// batch and the client then fails everything buffered for the partition: the innocent have the same error.
//
// Every other error is waited out. CORRUPT_MESSAGE and UNKNOWN_SERVER_ERROR are among those: they speak of the transport
// or the broker.
func refusal(err error) bool {
	for _, e := range []error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException,
		errPartition,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func tooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

func denied(err error) bool {
	return errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) ||
		errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TransactionalIDAuthorizationFailed)
}

func missing(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}

// reason is an error as readiness and the log show it: which topic, what happened, and what would help where that is known.
func reason(topic string, err error) error {
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("not authorized to write to topic %s (grant Write and Describe on it): %w", topic, err)
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("not authorized to produce to the cluster (grant Write on topic %s; IdempotentWrite on the cluster before Kafka 2.8): %w", topic, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("topic %s does not exist (create it, or set kafka.topics.create): %w", topic, err)
	case errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("topic %s was deleted or created again: %w", topic, err)
	case errors.Is(err, kerr.NotEnoughReplicas), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		return fmt.Errorf("topic %s has fewer in-sync replicas than min.insync.replicas: %w", topic, err)
	case errors.Is(err, kgo.ErrMaxBuffered):
		return fmt.Errorf("topic %s: the client's buffer is full (more in flight than the window): %w", topic, err)
	}
	return fmt.Errorf("topic %s: %w", topic, err)
}
