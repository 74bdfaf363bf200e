// Package sink delivers records: to Kafka (Open), or to a writer for trying (NewStdout).
//
// It knows the Kafka client, its settings and its errors. It knows nothing of transactions of the source or of positions.
package sink

import (
	"math"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/kafka"
)

// Config says how to reach Kafka and how to produce: the section kafka of walpost.yaml. Start from DefaultConfig.
type Config struct {
	kafka.Config `yaml:",inline"`

	Compression string `yaml:"compression"` // none, gzip, snappy, lz4 or zstd; empty is snappy
	Linger      Linger `yaml:"linger"`
	Topics      Topics `yaml:"topics"`

	// WindowEvents and WindowBytes are what the relay has in flight at most. The client's own limits are set above them, so
	// that the window is the only brake.
	WindowEvents int   `yaml:"-"`
	WindowBytes  int64 `yaml:"-"`

	// DeadLetters is the dead letter topic, "" for none. It is created if it's missing, whatever Topics.Create says: with Bury at
	// Open, and otherwise for the first letter.
	DeadLetters string `yaml:"-"`
	Bury        bool   `yaml:"-"`
	// Parking is the topic of parked events. Park says that a policy parks keys.
	Parking string `yaml:"-"`
	Park    bool   `yaml:"-"`

	// Logger is written to at edges only. The zero value is silent.
	Logger zerolog.Logger `yaml:"-"`
	// Hooks are given to every client that produces, such as those of the metrics plugin. They must bear several clients.
	Hooks []kgo.Hook `yaml:"-"`
}

// Topics says whether a missing topic is created, and how. -1, and 0, leave it to the broker's defaults.
type Topics struct {
	Create            bool `yaml:"create"`
	Partitions        int  `yaml:"partitions"`
	ReplicationFactor int  `yaml:"replication_factor"`
}

// A Linger is how long a batch waits for more records while it is not full. 0 is auto: nothing waits, because batches fill
// while requests are on their way.
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

// Validate returns every fault of the configuration, or nil. It connects nowhere.
func (c *Config) Validate() conf.Problems {
	found := c.Config.Validate()
	found.OneOf("kafka.compression", c.Compression, "", "none", "gzip", "snappy", "lz4", "zstd")
	if c.Linger < 0 || time.Duration(c.Linger) > maxLinger {
		found.Add("kafka.linger", conf.MustBe, "auto, or from 0s to "+maxLinger.String(), c.Linger)
	}
	if n := c.Topics.Partitions; n < -1 || n > math.MaxInt32 {
		found.Add("kafka.topics.partitions", conf.MustBe, "-1 (the broker's default) or at least 1", n)
	}
	if n := c.Topics.ReplicationFactor; n < -1 || n > math.MaxInt16 {
		found.Add("kafka.topics.replication_factor", conf.MustBe, "-1 (the broker's default) or from 1 to 32767", n)
	}
	return found
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
