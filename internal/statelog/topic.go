package statelog

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

// Settings are those that a topic of walpost's own is created with. If the brokers refuse them, the next ones are tried: managed
// brokers let nobody set some of them, or not as low or as high.
type Settings []map[string]string

// Checkpoints are the settings of a checkpoint topic. All but cleanup.policy keep it small: each connect reads all of it, and Kafka
// never compacts the newest segment. That segment is closed when it has segment.bytes or is segment.ms old, by default 1 GiB and a week.
// One busy relay writes some 250 kB in ten minutes.
var Checkpoints = Settings{
	{"cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.01"},
	{"cleanup.policy": "compact"},
}

// Letters are the settings of a dead letter topic or a parked event topic. The limit of its records is that of a request, so that
// it holds every event that walpost can send, also one that is too large for its own topic. Brokers that allow less: the limits of
// Confluent Cloud and of serverless clusters, and their own.
var Letters = Settings{
	{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": strconv.Itoa(kafka.MaxRequest)},
	{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "20971520"},
	{"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "8388608"},
	{"cleanup.policy": "delete", "retention.ms": "-1"},
}

// Create creates a topic of one partition. With dryRun it only asks whether the topic could be created. refused is why the topic has
// not the first settings.
func (s Settings) Create(ctx context.Context, cl *kgo.Client, topic string, dryRun bool) (made kadm.CreateTopicResponse, refused, err error) {
	for i, settings := range s {
		how := kafka.NewTopic{Name: topic, Partitions: 1, Settings: settings}
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
