// Package sink delivers records: to Kafka (Open), or to a writer for trying (NewStdout). It also holds the stores of
// checkpoint bytes (NewKafkaStore, NewFileStore) and the Kafka side of the preconditions (Check).
//
// It knows the Kafka client, its settings and its errors. It knows nothing of transactions of the source or of positions.
package sink

import (
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
)

// Config says how to reach Kafka and how to produce. The zero value of an optional field is its default. The names in
// brackets are those of walpost.yaml; Validate's messages use them.
type Config struct {
	kafka.Config

	// Compression is none, gzip, snappy, lz4 or zstd; "" is snappy. [kafka.compression]
	Compression string
	// Linger is how long a batch waits for more records while it is not full. Used only with FixedLinger; otherwise
	// ("auto") nothing waits: batches fill while requests are on their way. [kafka.linger]
	Linger      time.Duration
	FixedLinger bool

	// WindowEvents and WindowBytes are what the relay has in flight at most; the client's own limits are set above them, so
	// that the window is the only brake. Zero: 50,000 and 64 MiB. [delivery.window]
	WindowEvents int
	WindowBytes  int64

	Topics Topics // [kafka.topics]

	Logger zerolog.Logger
	// Hooks are given to every client that produces, such as those of the metrics plugin. They must bear several clients.
	Hooks []kgo.Hook
}

// Topics says whether a missing topic is created, and how. -1, and 0, leave it to the broker's defaults.
type Topics struct {
	Create            bool
	Partitions        int
	ReplicationFactor int
}

const (
	defaultWindowEvents = 50_000
	defaultWindowBytes  = 64 << 20
)

func (c Config) withDefaults() Config {
	if c.Compression == "" {
		c.Compression = "snappy"
	}
	if c.WindowEvents == 0 {
		c.WindowEvents = defaultWindowEvents
	}
	if c.WindowBytes == 0 {
		c.WindowBytes = defaultWindowBytes
	}
	return c
}

// Validate returns every fault of the configuration, or nil. It connects nowhere.
func (c Config) Validate() fault.Problems {
	found := c.Config.Validate()
	if _, ok := codecs[c.Compression]; c.Compression != "" && !ok {
		found.Add("kafka.compression", "must be none, gzip, snappy, lz4 or zstd (got %q)", c.Compression)
	}
	if c.FixedLinger && (c.Linger < 0 || c.Linger > maxLinger) {
		found.Add("kafka.linger", "must be auto, or from 0s to %s (got %s)", maxLinger, c.Linger)
	}
	if c.WindowEvents < 0 {
		found.Add("delivery.window.events", "must be at least 1 (got %d)", c.WindowEvents)
	}
	if c.WindowBytes < 0 {
		found.Add("delivery.window.bytes", "must be at least 1 (got %d)", c.WindowBytes)
	}
	if n := c.Topics.Partitions; n < -1 || n > 1<<31-1 {
		found.Add("kafka.topics.partitions", "must be -1 (the broker's default) or at least 1 (got %d)", n)
	}
	if n := c.Topics.ReplicationFactor; n < -1 || n > 1<<15-1 {
		found.Add("kafka.topics.replication_factor", "must be -1 (the broker's default) or from 1 to 32767 (got %d)", n)
	}
	return found
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}
