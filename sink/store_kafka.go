package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/topicname"
)

// A KafkaStore keeps checkpoint records in a compacted topic of one partition: the newest record of a key counts, a null value
// removes the key. The topic is created when it is missing. Every error but *LostRecords can be tried again; none means "nothing
// there".
//
// A Save that returns an error may still take effect later, but never after a Save that was called later.
type KafkaStore struct {
	cfg   Config
	topic string
	log   zerolog.Logger

	patience time.Duration // of a Load that comes no further: kafka.ReadPatience; shorter in tests

	mu     sync.Mutex
	cl     *kgo.Client   // produces and reads; nil until needed and after a fatal error
	ready  bool          // the topic is there and was looked at
	id     [16]byte      // of the topic, zero before it was looked at
	seen   *folded       // what was read so far; nil for nothing
	keep   time.Duration // of seen: see keepFolded
	warned bool
}

// folded is what the topic holds under keys with one prefix, up to the place of the reader: the newest record of each key.
type folded struct {
	kafka.Reader
	prefix  string // name + "/" for one relay
	records map[string][]byte
	whole   time.Time // when the newest reading that came to the end began, or the first one
}

// keepFolded is how long the next Load may go on from where the one before ended, at most delete.retention.ms: after that time Kafka
// drops the record that removes a key, and the Load would not see that the key was removed.
const keepFolded = time.Hour

// NewKafkaStore makes a store in topic. It does not wait for the brokers. Of cfg it uses what reaches the cluster.
func NewKafkaStore(cfg Config, topic string) (*KafkaStore, error) {
	if err := topicname.Check(topic); err != nil {
		return nil, fault.Config(fmt.Errorf("checkpoint.topic: %w", err), "")
	}
	return &KafkaStore{cfg: cfg, topic: topic, log: cfg.Logger, patience: kafka.ReadPatience}, nil
}

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
	cl, err := kgo.NewClient(append(k.cfg.Options(),
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
	k.log.Warn().Str("topic", k.topic).Msg("the checkpoint topic was deleted and created again")
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
	t, err := k.describe(ctx, cl)
	if err != nil {
		return err
	}
	switch {
	case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		_, refused, err := CreateCheckpointTopic(ctx, cl, k.topic, false)
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		k.log.Info().Str("topic", k.topic).Msg("checkpoint topic created")
		if refused != nil {
			k.log.Warn().Err(refused).Str("topic", k.topic).
				Msg("the brokers refuse the settings that keep the checkpoint topic small: walpost created the topic with the brokers' defaults, and each start of a relay may read more")
		}
		if t, err = appear(ctx, cl, k.topic, checkpointSettings...); err != nil {
			return err
		}
	case t.Err != nil:
		return t.Err
	case len(t.Partitions) > 1:
		k.warn(fmt.Sprintf("has %d partitions; only partition 0 is used", len(t.Partitions)))
	}
	kv := t.Settings // nil if they are not told
	if DeletesCheckpoints(kv["cleanup.policy"]) {
		k.warn("has cleanup.policy=" + kv["cleanup.policy"] + ": checkpoints may be deleted; set cleanup.policy=compact")
	}
	k.keep = keepFolded
	if ms, err := strconv.ParseInt(kv["delete.retention.ms"], 10, 64); err == nil {
		k.keep = time.Duration(min(ms, keepFolded.Milliseconds())) * time.Millisecond
	}
	k.ready, k.id = true, t.ID
	return nil
}

func (k *KafkaStore) warn(what string) {
	if !k.warned {
		k.log.Warn().Str("topic", k.topic).Msg("the checkpoint topic " + what)
	}
	k.warned = true
}

var checkpointSettings = []string{"cleanup.policy", "delete.retention.ms"}

func (k *KafkaStore) describe(ctx context.Context, cl *kgo.Client) (*kafka.Topic, error) {
	return kafka.DescribeTopic(ctx, cl, k.topic, checkpointSettings...)
}

// appear waits until a topic that was created has a leader, and returns it with its settings.
func appear(ctx context.Context, cl *kgo.Client, topic string, settings ...string) (*kafka.Topic, error) {
	var pause kafka.Backoff
	for {
		t, err := kafka.DescribeTopic(ctx, cl, topic, settings...)
		if err == nil {
			if err = t.Err; err == nil && t.Partitions[0].Leader >= 0 {
				return t, nil
			}
		}
		if !pause.Sleep(ctx) {
			return nil, fmt.Errorf("wait for the new topic: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// Load returns every record whose key starts with name + "/", as of some moment after the call began: it asks for the end
// of the partition first, and then reads everything up to there, committed records only. A topic that was just created is
// empty; a topic that can not be read to that end is an error.
//
// It takes as long as it needs while it comes further. What it has read it keeps, also when it ends with an error, and the next Load
// goes on from there where the topic is still the same one. It holds no more than the newest record of each key of name.
func (k *KafkaStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	cl, err := k.reachWithin(ctx, "read")
	if err != nil {
		return nil, err
	}
	if k.seen == nil || k.seen.prefix != name+"/" || time.Since(k.seen.whole) > k.keep {
		k.seen = fold(nil, k.topic, name+"/")
	}
	f, began, told := k.seen, time.Now(), time.Now()
	f.Client, f.Patience = cl, k.patience
	f.Each = func(r *kgo.Record) error {
		if now := time.Now(); now.Sub(told) >= sayReading {
			told = now
			k.log.Info().Str("topic", k.topic).Int64("offset", r.Offset).Int64("end", f.End).Dur("for", now.Sub(began).Round(time.Millisecond)).
				Msg("reading the checkpoint topic; walpost check says whether it is larger than necessary")
		}
		return f.take(r)
	}
	if err := f.ToEnd(ctx); err != nil {
		k.ready = false // it may have been deleted
		return nil, k.fail("read", err)
	}
	f.whole = began
	if lost := f.lost(); lost != nil {
		return nil, lost
	}
	return maps.Clone(f.records), nil
}

// Look is Load without an effect: a topic that does not exist is empty, and Look does not create it.
func (k *KafkaStore) Look(ctx context.Context, name string) (map[string][]byte, error) {
	records, lost, err := k.look(ctx, name+"/")
	if err == nil && lost != nil {
		return records, lost
	}
	return records, err
}

// LookNames is Look for all relays whose names start with prefix. It does not say what the topic has lost.
func (k *KafkaStore) LookNames(ctx context.Context, prefix string) (map[string][]byte, error) {
	records, _, err := k.look(ctx, prefix)
	return records, err
}

func (k *KafkaStore) look(ctx context.Context, prefix string) (map[string][]byte, *LostRecords, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	cl, err := k.client()
	if err != nil {
		return nil, nil, err
	}
	t, err := k.describe(ctx, cl)
	if err == nil && errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
		return map[string][]byte{}, nil, nil
	}
	if err == nil {
		err = t.Err
	}
	if err != nil {
		return nil, nil, k.fail("read", err)
	}
	f := fold(cl, k.topic, prefix)
	f.Patience = k.patience
	if err := f.ToEnd(ctx); err != nil {
		return nil, nil, k.fail("read", err)
	}
	return f.records, f.lost(), nil
}

// sayReading is how often a Load that takes long says how far it is.
const sayReading = 10 * time.Second

// reachWithin is reach within the patience of a Load, because a topic that gets no leader would be waited for in silence.
func (k *KafkaStore) reachWithin(ctx context.Context, step string) (*kgo.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, k.patience)
	defer cancel()
	return k.reach(ctx, step)
}

func fold(cl *kgo.Client, topic, prefix string) *folded {
	f := &folded{prefix: prefix, whole: time.Now()}
	f.Reader = kafka.Reader{Client: cl, Topic: topic, Each: f.take}
	f.Again = func() { f.records = map[string][]byte{} }
	return f
}

func (f *folded) take(r *kgo.Record) error {
	switch key := string(r.Key); {
	case !strings.HasPrefix(key, f.prefix):
	case r.Value == nil:
		delete(f.records, key)
	default:
		f.records[key] = bytes.Clone(r.Value) // the record is a part of all that was fetched
	}
	return nil
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
