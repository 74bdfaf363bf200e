package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	"github.com/walpost/walpost/internal/wait"
)

// Denied reports whether the user lacks a right.
func Denied(err error) bool {
	return errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) ||
		errors.Is(err, kerr.GroupAuthorizationFailed) || errors.Is(err, kerr.TransactionalIDAuthorizationFailed)
}

// Unreadable is the error of a topic that a command reads.
func Unreadable(topic string, err error) error {
	err = fmt.Errorf("read topic %s: %w", topic, err)
	if Denied(err) {
		return fault.WithHint(err, "Grant Read and Describe on the topic to the user of kafka.sasl.")
	}
	return err
}

// Reason is an error of a topic as readiness and the log show it: the topic, what happened, and what would help if that is known.
func Reason(topic string, err error) error {
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("not authorized to write to topic %s (grant Write and Describe on it): %w", topic, err)
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("not authorized to produce to the cluster (grant Write on topic %s; IdempotentWrite on the cluster before Kafka 2.8): %w", topic, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("topic %s does not exist (walpost creates topics only with kafka.topics.create): %w", topic, err)
	case errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("topic %s was deleted or created again: %w", topic, err)
	case errors.Is(err, kerr.NotEnoughReplicas), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		return fmt.Errorf("topic %s has fewer in-sync replicas than min.insync.replicas: %w", topic, err)
	}
	return fmt.Errorf("topic %s: %w", topic, err)
}

// retry spaces out the attempts to reach the brokers.
var retry = backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}

// Backoff is how many attempts in a row have failed. Set it to zero after a success.
type Backoff int

// Next counts another failure, and returns how long to wait.
func (b *Backoff) Next() time.Duration {
	*b++
	return retry.Pause(int(*b))
}

// Sleep counts another failure, and waits. It returns false if ctx has ended.
func (b *Backoff) Sleep(ctx context.Context) bool {
	return wait.For(ctx, b.Next())
}
