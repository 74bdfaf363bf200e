package sink

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/kafka"
)

// compacted is what a checkpoint topic needs at least.
var compacted = map[string]string{"cleanup.policy": "compact"}

// CheckpointTopic are the settings of a checkpoint topic. All but cleanup.policy keep it small: each connect reads all of it, and Kafka
// never compacts the newest segment. That segment is closed when it has segment.bytes or is segment.ms old, by default 1 GiB and a week.
// One busy relay writes some 250 kB in ten minutes.
var CheckpointTopic = map[string]string{
	"cleanup.policy":            "compact",
	"segment.ms":                "600000",
	"segment.bytes":             "4194304",
	"min.cleanable.dirty.ratio": "0.01",
}

// CreateCheckpointTopic creates the topic of the checkpoints. With dryRun it only asks whether the topic could be created. refused is why
// the topic has the brokers' own settings for its segments: managed brokers let nobody set them, or not as low.
func CreateCheckpointTopic(ctx context.Context, cl *kgo.Client, topic string, dryRun bool) (made kadm.CreateTopicResponse, refused, err error) {
	return createOwn(ctx, cl, topic, dryRun, CheckpointTopic, compacted)
}

// LetterTopic are the settings of a dead letter topic or a parked event topic. The limit of its records is that of a request, so that
// it holds every event that walpost can send, also one that is too large for its own topic.
var LetterTopic = map[string]string{
	"cleanup.policy":    "delete",
	"retention.ms":      "-1",
	"retention.bytes":   "-1",
	"max.message.bytes": strconv.Itoa(kafka.MaxRequest),
}

// lessForLetters are the settings for brokers that allow less: the limits of Confluent Cloud and of serverless clusters, and their own.
var lessForLetters = []map[string]string{
	{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "20971520"},
	{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "8388608"},
	{"cleanup.policy": "delete", "retention.ms": "-1"},
}

// CreateLetterTopic creates a dead letter topic or a parked event topic. With dryRun it only asks whether the topic could be created.
// refused is why the topic has the brokers' own limits of size.
func CreateLetterTopic(ctx context.Context, cl *kgo.Client, topic string, dryRun bool) (made kadm.CreateTopicResponse, refused, err error) {
	return createOwn(ctx, cl, topic, dryRun, append([]map[string]string{LetterTopic}, lessForLetters...)...)
}

// createOwn creates a topic of walpost's own, which has one partition. If the brokers refuse its settings, it tries the next ones. refused
// is why they refused the first ones.
func createOwn(ctx context.Context, cl *kgo.Client, topic string, dryRun bool, settings ...map[string]string) (made kadm.CreateTopicResponse, refused, err error) {
	for i, s := range settings {
		how := kafka.NewTopic{Name: topic, Partitions: 1, Settings: s}
		made, err = how.Create(ctx, cl, dryRun)
		answer, ok := errors.AsType[*kerr.Error](err)
		if !ok || answer.Retriable || kafka.Denied(err) {
			break
		}
		if i == 0 {
			refused = err
		}
	}
	return made, refused, err
}

// DeletesCheckpoints reports whether a cleanup.policy removes records that are the newest of their key.
func DeletesCheckpoints(policy string) bool {
	return policy != "" && (!strings.Contains(policy, "compact") || strings.Contains(policy, "delete"))
}
