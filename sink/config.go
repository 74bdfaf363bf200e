// Package sink delivers records: to Kafka (Open), or to a writer for trials (NewStdout).
//
// It knows the Kafka client, its settings and its errors. It knows nothing of transactions of the source or of positions.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package sink

import (
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/kafka"
)

// Config says how to reach Kafka and how to produce: the section kafka of walpost.yaml. Start from DefaultConfig.
type Config struct {
	kafka.Config `yaml:",inline"`

	// The records' compression.
	Compression string `yaml:"compression" words:"|none|gzip|snappy|lz4|zstd"`
	// How long a batch waits for more records. With `0s` or `auto`, it waits only while requests are in
	// flight.
	Linger Linger `yaml:"linger" words:"auto" min:"0s" max:"10s" example:"5ms"`
	// What to do about missing topics.
	Topics Topics `yaml:"topics"`

	// WindowBytes are what the relay has in flight at most. A check compares them with the brokers' limits.
	WindowBytes int64 `yaml:"-"`

	// DeadLetters is the dead letter topic, "" for none. It is created if it's missing, whatever Topics.Create says: with Bury at
	// Open, and otherwise for the first letter.
	DeadLetters string `yaml:"-"`
	Bury        bool   `yaml:"-"`
	// Parking is the topic of parked events. Park says that a policy parks keys.
	Parking string `yaml:"-"`
	Park    bool   `yaml:"-"`

	// TransactionalID has everything sent in transactions, each with a record in the topic Checkpoints; "" for at_least_once.
	TransactionalID string `yaml:"-"`
	Checkpoints     string `yaml:"-"`

	// Store gets the payloads of claims. It is needed if a record has a claim.
	Store Store `yaml:"-"`

	// Observed has each Ack contain the record that was delivered, and its offset.
	Observed bool `yaml:"-"`

	// Logger is written to at edges only. By default it is slog.Default().
	Logger *slog.Logger `yaml:"-"`
	// Hooks are given to every client that produces, such as those of the metrics plugin. They must bear several clients.
	Hooks []kgo.Hook `yaml:"-"`
}

// Topics says whether a missing topic is created, and how. -1, and 0, leave it to the broker's defaults.
type Topics struct {
	// Create missing topics, instead of waiting for them.
	Create bool `yaml:"create"`
	// Created topics' partition count. With -1, the broker decides.
	Partitions int `yaml:"partitions" min:"-1" max:"2147483647" example:"12"`
	// Created topics' replication factor. With -1, the broker decides.
	ReplicationFactor int `yaml:"replication_factor" min:"-1" max:"32767" example:"3"`
}

// A Linger is how long a batch waits for more records while it is not full. 0 is auto: a batch waits only while others are on their way, at
// most for autoLinger.
type Linger time.Duration

// UnmarshalText reads a duration or "auto".
func (l *Linger) UnmarshalText(text []byte) error {
	d, err := conf.DurationOr(text, "auto", 0)
	*l = Linger(d)
	return err
}

func (l Linger) String() string { return time.Duration(l).String() }

// DefaultConfig has every default. The brokers have none.
func DefaultConfig() Config {
	return Config{Compression: "snappy", Topics: Topics{Partitions: -1, ReplicationFactor: -1}}
}

// Codec is what Compression names.
func (c *Config) Codec() kgo.CompressionCodec { return codecs[c.Compression] }

var codecs = map[string]kgo.CompressionCodec{
	"":       kgo.SnappyCompression(),
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}
