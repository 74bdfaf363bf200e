package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/inbox"
)

// A Handler applies one message. The consumer commits the message's offset after the Handler has
// returned nil, so a Handler that writes to a database must have committed its transaction by then.
// inbox.Handler returns such a Handler.
//
// ctx has the values of the record's own context, which hooks of the Kafka client can set, for
// example with a tracing span. ctx ends after Config.HandlerTimeout, when the message's partition
// moves to another member, or when the consumer stops and Config.Grace is over. A Handler must
// return soon after that.
type Handler func(ctx context.Context, m inbox.Message) error

// A BatchHandler applies several messages from one partition, all or none. Messages with one key
// are in order. If it returns an error, it gets each of these messages on its own, after a pause if
// Postgres was unavailable. inbox.BatchHandler returns a BatchHandler. ctx is as for a Handler, but
// has the values of a record's context only if the batch is a single message.
type BatchHandler func(ctx context.Context, batch []inbox.Message) error

// An Order says which messages are handled one after another.
type Order int

// The orders.
const (
	// ByKey handles a partition's messages with one key in order, and other messages concurrently.
	// Messages without a key have no order.
	ByKey Order = iota
	// ByPartition handles all messages of a partition in order. A failing message holds up its
	// partition.
	ByPartition
)

// Config says what a Consumer consumes, and how. Zero values stand for the defaults.
type Config struct {
	Brokers []string // the addresses (host:port) of some brokers
	// ClientOptions are for the Kafka client: TLS, SASL, the client id, fetch sizes, the balancer.
	// They can't change the options that the Consumer depends on: the brokers, the group and its
	// rebalance timeout, the topics, the commits, and the group's callbacks.
	ClientOptions []kgo.Opt
	Group         string
	Topics        []string

	// Exactly one of these is set.
	Handler      Handler
	BatchHandler BatchHandler

	BatchSize int // messages in one call of BatchHandler at most; 100 by default
	// Concurrency is how many calls of the handler run at the same time; 16 by default. Each call
	// of an inbox.Handler needs a connection, so a smaller pool runs fewer (by default, a pgxpool
	// has 4 connections, or one per CPU if that's more).
	Concurrency int
	Order       Order

	IDHeader string // the header with the event's id; "id" by default
	// MissingID says what happens to a message without this header. By default, it becomes a dead
	// letter.
	MissingID inbox.MissingID
	// Scope returns the Message.Scope of the messages of a topic. By default, it is the topic. A
	// renamed topic keeps its marks if Scope returns the old name.
	Scope func(topic string) string

	// DeadLetterTopic gets the messages that cannot be handled. The topic must exist, and its
	// max.message.bytes must exceed that of Topics by about 8 KiB. walpost dead --dead-letter-topic
	// lists these messages, sends them back or gives them up. Without a DeadLetterTopic, the
	// Consumer retries such a message until the handler accepts it. Meanwhile, later messages with
	// its key wait, and the partition stops once its buffer is full.
	DeadLetterTopic string
	// Attempts is how often a message is handled before it becomes a dead letter; 8 by default.
	// With inbox.Unlimited, only an inbox.Permanent error makes it one. Failures that aren't the
	// message's fault don't count (see inbox.Retryable).
	Attempts int
	// HandlerTimeout ends the ctx of a call of the handler; 1 minute by default. The first 5
	// failures of a message because of a deadline don't count; later ones do.
	HandlerTimeout time.Duration
	// The pauses between attempts double from BackoffMin (200 ms by default) to BackoffMax (10 s by
	// default). Each is shortened at random by up to half.
	BackoffMin, BackoffMax time.Duration

	// Buffer and BufferBytes limit the messages that are received but not yet committed: 10,000
	// messages and 64 MiB by default. All partitions have equal shares, and a partition is paused
	// while its share is used up. In addition, the Kafka client fetches up to a quarter of
	// BufferBytes ahead from each broker.
	Buffer      int
	BufferBytes int

	// Grace is how long running handlers may continue when their partitions are revoked or the
	// Consumer stops; 10 s by default. Run then returns within another 16 s, whatever Kafka does.
	Grace time.Duration
	// RebalanceTimeout is how long the group waits for this member when partitions are reassigned;
	// 60 s by default. It must be at least 14 s longer than Grace.
	RebalanceTimeout time.Duration
	// CommitInterval is the time between commits; 1 s by default. After a crash, what was handled since
	// the last commit is delivered again.
	CommitInterval time.Duration

	// Failed, if set, is called after each failed attempt at a message. Several goroutines may call
	// it at the same time. A failed batch isn't an attempt, because each of its messages is then
	// handled on its own.
	Failed func(f inbox.Failure)

	Logger *slog.Logger // slog.Default() by default; slog.New(slog.DiscardHandler) is silent
}

const (
	// afterCancel is how long a handler may need to return after its context has ended.
	afterCancel = 2 * time.Second
	// requestTimeout bounds a commit, and the request that leaves the group.
	requestTimeout = 4 * time.Second
	// closeTimeout is how long Run waits for the connections to end.
	closeTimeout = 2 * time.Second
	// releaseTime is how long it takes at most to give a partition up after Grace: a handler that is
	// cancelled, a commit that runs already, the last commit, and a margin for the group itself.
	releaseTime = afterCancel + 3*requestTimeout
)

func (c *Config) complete() error {
	c.IDHeader = cmp.Or(c.IDHeader, "id")
	c.Logger = cmp.Or(c.Logger, slog.Default())
	setDefault(&c.BatchSize, 100)
	setDefault(&c.Concurrency, 16)
	setDefault(&c.Attempts, 8)
	setDefault(&c.HandlerTimeout, time.Minute)
	setDefault(&c.BackoffMin, 200*time.Millisecond)
	setDefault(&c.BackoffMax, max(c.BackoffMin, 10*time.Second))
	setDefault(&c.Buffer, 10_000)
	setDefault(&c.BufferBytes, 64<<20)
	setDefault(&c.Grace, 10*time.Second)
	setDefault(&c.RebalanceTimeout, time.Minute)
	setDefault(&c.CommitInterval, time.Second)

	var wrong []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf("consumer: "+format, args...))
		}
	}
	refuse(len(c.Brokers) == 0, "Brokers: must have at least one address")
	refuse(c.Group == "", "Group: must be set")
	refuse(len(c.Topics) == 0, "Topics: must name at least one topic")
	refuse((c.Handler == nil) == (c.BatchHandler == nil), "Handler, BatchHandler: exactly one of them must be set")
	for name, n := range map[string]int{
		"BatchSize": c.BatchSize, "Concurrency": c.Concurrency, "Buffer": c.Buffer, "BufferBytes": c.BufferBytes,
	} {
		refuse(n < 1, "%s: must be at least 1 (got %d)", name, n)
	}
	refuse(c.Attempts < 1 && c.Attempts != inbox.Unlimited, "Attempts: must be at least 1, or inbox.Unlimited (got %d)", c.Attempts)
	for name, d := range map[string]time.Duration{
		"HandlerTimeout": c.HandlerTimeout, "BackoffMin": c.BackoffMin, "BackoffMax": c.BackoffMax, "Grace": c.Grace, "CommitInterval": c.CommitInterval,
	} {
		refuse(d < 0, "%s: must not be negative (got %s)", name, d)
	}
	refuse(c.Grace > c.RebalanceTimeout-releaseTime, "Grace: must be at least %s shorter than RebalanceTimeout (got %s and %s)", releaseTime, c.Grace, c.RebalanceTimeout)
	refuse(c.BackoffMax < c.BackoffMin, "BackoffMax: must be at least BackoffMin (got %s and %s)", c.BackoffMax, c.BackoffMin)
	for _, topic := range c.Topics {
		refuse(topic == c.DeadLetterTopic, "DeadLetterTopic: must not be one of Topics (got %q)", topic)
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	if c.Handler != nil {
		c.BatchSize = 1
	}
	return nil
}

func setDefault[T int | time.Duration](field *T, value T) { *field = cmp.Or(*field, value) }
