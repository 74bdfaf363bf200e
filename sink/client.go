package sink

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/kafka"
)

// room is what a batch of one record takes at most beside the record itself, in the newest request format, and some.
const room = 96

// client is one Kafka client that produces, and what the sink must know of it. A sink usually has one of a kind; see Kafka.fresh.
type client struct {
	*kgo.Client
	s    *Kafka
	kind kind
	gen  int // see generation.go

	topics int // that produce through it; guarded by Kafka.mu

	mu    sync.Mutex
	limit map[string]int32 // what the client was told at a topic's first record, and keeps
}

// A kind says which records a client is for.
type kind uint8

const (
	ordinary kind = iota // records that fit the limit of their topic
	large                // single records above that limit: the client accepts any size, see gate.go
	kinds
)

func (s *Kafka) newClient(k kind, gen int) (*client, error) {
	c := &client{s: s, kind: k, gen: gen, limit: map[string]int32{}}
	// "auto" is no linger: batches fill by themselves while requests are on their way. Lingering for a millisecond while records
	// are dense gained nothing in rate or CPU, and cost latency (scripts/bench).
	linger := time.Duration(s.cfg.Linger)
	if k == large {
		linger = 0
	}
	opts := append(s.cfg.Options(),
		kgo.RequiredAcks(kgo.AllISRAcks()), // idempotent by the client's default; never RecordRetries, never RecordDeliveryTimeout
		kgo.UnknownTopicRetries(-1),
		kgo.ProducerBatchCompression(codecs[s.cfg.Compression], kgo.NoCompression()),
		kgo.ProducerLinger(linger),
		kgo.BrokerMaxWriteBytes(kafka.MaxRequest),
		kgo.ProducerBatchMaxBytesFn(c.batchLimit),
		// Above the window, because the window is the only brake. The client counts a record until its promise has returned,
		// so for a moment one that the window has let go is still counted.
		kgo.MaxBufferedRecords(2*s.cfg.WindowEvents+1024),
		kgo.MaxBufferedBytes(int(2*s.cfg.WindowBytes)+2*kafka.MaxRequest),
		kgo.RecordPartitioner(partitioner{kgo.UniformBytesPartitioner(64<<10, true, true, nil)}),
		kgo.WithLogger(&clientLog{c: c, log: s.log}),
		kgo.WithHooks(append([]kgo.Hook{fenceHook{}, &s.dials}, s.cfg.Hooks...)...),
	)
	var err error
	if c.Client, err = kgo.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// batchLimit is called by the client once for each partition, under its locks.
func (c *client) batchLimit(topic string) int32 {
	if c.kind == large {
		return kafka.MaxRequest
	}
	n := c.s.limitOf(topic)
	c.mu.Lock()
	c.limit[topic] = n
	c.mu.Unlock()
	return n
}

// told is the limit that the client works with for topic, and whether it has asked for it already.
func (c *client) told(topic string) (int32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.limit[topic]
	return n, ok
}

// fatal says whether the client can never produce again: its producer id is refused for good.
func (c *client) fatal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _, err := c.ProducerID(ctx)
	if err == nil || ctx.Err() != nil || loadFailed(err) {
		return nil
	}
	return err
}

// canceled is a context that has ended.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// partitioner is Kafka's Java default (murmur2 over a key that is not nil, an empty one too; batches spread evenly
// without a key), except that a record which names its partition goes there.
type partitioner struct{ kgo.Partitioner }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return topicPartitioner{p.Partitioner.ForTopic(topic).(kgo.TopicBackupPartitioner)}
}

type topicPartitioner struct{ kgo.TopicBackupPartitioner }

func (p topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition >= 0 || p.TopicBackupPartitioner.RequiresConsistency(r)
}

func (p topicPartitioner) PartitionByBackup(r *kgo.Record, n int, backup kgo.TopicBackupIter) int {
	if r.Partition >= 0 {
		return int(r.Partition) // beyond n: the client fails the record; gate.go looks before
	}
	return p.TopicBackupPartitioner.PartitionByBackup(r, n, backup)
}

// PartitionOf is the partition of a record in a topic of n partitions: the one that the record asks for, or else murmur2 of its key as
// in Kafka's Java client. A record that has neither goes to any partition: -1.
func PartitionOf(rec *cdc.Record, n int32) int32 {
	switch {
	case rec.Partition >= 0:
		return rec.Partition
	case rec.Key == nil:
		return -1
	}
	p := kgo.StickyKeyPartitioner(nil).ForTopic(rec.Topic)
	return int32(p.Partition(&kgo.Record{Key: rec.Key}, int(n)))
}

// clientLog hears what the client logs. Its log is the only place where the client says, before it releases a partition's
// lock, that it is about to fail what is buffered there: see fence.go.
type clientLog struct {
	c   *client
	log zerolog.Logger
}

func (l *clientLog) Level() kgo.LogLevel { return kgo.LogLevelInfo }

func (l *clientLog) Log(level kgo.LogLevel, msg string, kvs ...any) {
	if topic, partition, ok := failing(kvs); ok {
		l.c.s.fence(l.c, topic, partition)
	}
	if level <= kgo.LogLevelWarn {
		l.log.Debug().Str("client", msg).Fields(kvs).Msg("kafka client")
	}
}
