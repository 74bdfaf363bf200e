package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/topicname"
)

// A KafkaStore keeps checkpoint records in a compacted topic of one partition: the newest record of a key counts, a null value
// removes the key. The topic is created when it is missing. Every error can be tried again; none means "nothing there".
//
// A Save that returns an error may still take effect later, but never after a Save that was called later.
type KafkaStore struct {
	cfg   Config
	topic string
	log   zerolog.Logger

	loadWithin time.Duration // loadTimeout; shorter in tests

	mu     sync.Mutex
	cl     *kgo.Client // produces and reads; nil until needed and after a fatal error
	ready  bool        // the topic is there and was looked at
	id     [16]byte    // of the topic, zero before it was looked at
	warned bool
}

// NewKafkaStore makes a store in topic. It does not wait for the brokers. Of cfg it uses what reaches the cluster.
func NewKafkaStore(cfg Config, topic string) (*KafkaStore, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := topicname.Check(topic); err != nil {
		return nil, fault.Config(fmt.Errorf("checkpoint.topic: %w", err), "")
	}
	cfg = cfg.withDefaults()
	return &KafkaStore{cfg: cfg, topic: topic, log: cfg.Logger, loadWithin: loadTimeout}, nil
}

// loadTimeout bounds a Load: a partition without a leader, or with a transaction that nobody ends, would be waited for in silence.
const loadTimeout = 20 * time.Second

// Close frees the connections.
func (k *KafkaStore) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop()
}

func (k *KafkaStore) drop() {
	if k.cl != nil {
		k.cl.Close()
		k.cl = nil
	}
}

func (k *KafkaStore) client() (*kgo.Client, error) {
	if k.cl != nil {
		return k.cl, nil
	}
	cl, err := kgo.NewClient(append(k.cfg.reachOpts(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.UnknownTopicRetries(-1),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryTimeout(5*time.Second),
		kgo.RequestRetries(3),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	k.cl = cl
	return cl, nil
}

// reach returns a client that works with the topic as it is now.
func (k *KafkaStore) reach(ctx context.Context, step string) (*kgo.Client, error) {
	cl, err := k.client()
	if err != nil {
		return nil, err
	}
	was := k.id
	if err := k.prepare(ctx, cl); err != nil {
		return nil, k.fail(step, err)
	}
	if was == k.id || was == [16]byte{} {
		return cl, nil
	}
	// What the client still holds is of a topic that is gone, and would hold up all that comes behind it.
	k.log.Warn().Str("topic", k.topic).Msg("the checkpoint topic was deleted and made again")
	k.drop()
	return k.client()
}

func (k *KafkaStore) fail(step string, err error) error {
	return fault.Retry(fmt.Errorf("%s checkpoint topic %s: %w", step, k.topic, err))
}

// prepare makes sure that the topic exists, with one partition, and warns once when it is not compacted.
func (k *KafkaStore) prepare(ctx context.Context, cl *kgo.Client) error {
	if k.ready {
		return nil
	}
	meta, err := describeTopics(ctx, cl, k.topic)
	if err != nil {
		return err
	}
	n, err := usable(&meta.Topics[0])
	id := meta.Topics[0].TopicID
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		err := createTopic(ctx, cl, k.topic, Topics{Partitions: 1}, map[string]string{"cleanup.policy": "compact"})
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		k.log.Info().Str("topic", k.topic).Msg("checkpoint topic created")
		if id, err = k.appear(ctx, cl); err != nil {
			return err
		}
	case err != nil:
		return err
	case n > 1:
		k.warn(fmt.Sprintf("has %d partitions; only partition 0 is used", n))
	}
	if kv, err := configsOf(ctx, cl, kmsg.ConfigResourceTypeTopic, k.topic, "cleanup.policy"); err == nil && kv["cleanup.policy"] != "" &&
		!strings.Contains(kv["cleanup.policy"], "compact") {
		k.warn("is not compacted (cleanup.policy=" + kv["cleanup.policy"] + "): checkpoints may be deleted; set cleanup.policy=compact")
	}
	k.ready, k.id = true, id
	return nil
}

func (k *KafkaStore) warn(what string) {
	if !k.warned {
		k.log.Warn().Str("topic", k.topic).Msg("the checkpoint topic " + what)
	}
	k.warned = true
}

// appear waits until a topic that was created has a leader, and returns its id.
func (k *KafkaStore) appear(ctx context.Context, cl *kgo.Client) (id [16]byte, err error) {
	var pause backoff
	for {
		meta, err := describeTopics(ctx, cl, k.topic)
		if err == nil {
			if _, err = usable(&meta.Topics[0]); err == nil && meta.Topics[0].Partitions[0].Leader >= 0 {
				return meta.Topics[0].TopicID, nil
			}
		}
		if !pause.sleep(ctx) {
			return id, fmt.Errorf("wait for the new topic: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// Load returns every record whose key starts with name + "/", as of some moment after the call began: it asks for the end
// of the partition first, and then reads everything up to there, committed records only. A topic that was just created is
// empty; a topic that can not be read to that end is an error.
func (k *KafkaStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, k.loadWithin) // the caller tries again, and tells why
	defer cancel()
	cl, err := k.reach(ctx, "read")
	if err != nil {
		return nil, err
	}
	records, err := readPartition(ctx, cl, k.topic, 0)
	if err != nil {
		k.ready = false // it may have been deleted
		return nil, k.fail("read", err)
	}
	found := map[string][]byte{}
	for _, r := range records {
		if r.Value == nil {
			delete(found, string(r.Key))
		} else if strings.HasPrefix(string(r.Key), name+"/") {
			found[string(r.Key)] = r.Value
		}
	}
	return maps.Clone(found), nil
}

// Save returns when all in-sync replicas have the record.
func (k *KafkaStore) Save(ctx context.Context, key string, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	cl, err := k.reach(ctx, "write")
	if err != nil {
		return err
	}
	// Not ctx: a produce on the wire can not be taken back. When ctx ends, this Save is left behind in the client, where
	// a later one queues behind it.
	done := make(chan error, 1)
	cl.TryProduce(context.Background(), &kgo.Record{Topic: k.topic, Key: []byte(key), Value: value},
		func(_ *kgo.Record, err error) { done <- err })
	select {
	case err = <-done:
	case <-ctx.Done():
		k.ready = false // it may have been deleted
		return k.fail("write", fmt.Errorf("not acknowledged: %w", context.Cause(ctx)))
	}
	if err != nil {
		// A new client has a new producer id and knows nothing of a topic that was there before: both may be the trouble.
		k.drop()
		k.ready = false
		return k.fail("write", err)
	}
	return nil
}
