// Package sink delivers records: to Kafka (Open), or to a writer for trying (NewStdout). It also holds the stores of
// checkpoint bytes (NewKafkaStore, NewFileStore) and the Kafka side of the preconditions (Check).
//
// It knows the Kafka client, its settings and its errors. It knows nothing of transactions of the source or of positions.
package sink

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/fault"
)

// Config says how to reach Kafka and how to produce. The zero value of an optional field is its default. The names in
// brackets are those of walpost.yaml; Validate's messages use them.
type Config struct {
	Brokers  []string // [kafka.brokers] host:port; at least one
	ClientID string   // default "walpost"
	TLS      TLS      // [kafka.tls]
	SASL     SASL     // [kafka.sasl]

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

	// Dial replaces the dialer, for tests and tunnels. With it TLS is Dial's affair.
	Dial kgoDialer
}

// Topics says whether a missing topic is created, and how. -1, and 0, leave it to the broker's defaults.
type Topics struct {
	Create            bool
	Partitions        int
	ReplicationFactor int
}

// TLS is used when Enabled, or when any of the files or ServerName is set. The files are read again for every connection,
// so a renewed certificate needs no restart.
type TLS struct {
	Enabled    bool
	CAFile     string // PEM; default: the system's roots
	CertFile   string // PEM; with KeyFile
	KeyFile    string
	ServerName string // default: the broker's host
}

func (t TLS) on() bool {
	return t.Enabled || t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" || t.ServerName != ""
}

// SASL is used when Mechanism is set. The files are read again for every authentication.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM

	Username     string
	Password     string
	PasswordFile string

	// OAUTHBEARER
	Token      string
	TokenFile  string
	Extensions map[string]string

	// AWS_MSK_IAM. What is empty comes from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. The region is
	// Region; where that is empty, the one in the broker's name, else AWS_REGION.
	AccessKey     string
	SecretKey     string
	SecretKeyFile string
	SessionToken  string
	Region        string
}

const (
	defaultWindowEvents = 50_000
	defaultWindowBytes  = 64 << 20
)

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "walpost"
	}
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

// Validate returns every fault of the configuration, or nil. Files are only looked at for whether they can be read.
func (c Config) Validate() fault.Problems {
	var found fault.Problems

	if len(c.Brokers) == 0 {
		found.Add("kafka.brokers", "must name at least one broker (got none)")
	}
	for i, b := range c.Brokers {
		if err := checkBroker(b); err != nil {
			found.Add(fmt.Sprintf("kafka.brokers[%d]", i), "%v", err)
		}
	}
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

	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		found.Add("kafka.tls", "cert_file and key_file must both be set or both be left out (got cert_file %q, key_file %q)",
			c.TLS.CertFile, c.TLS.KeyFile)
	}
	if _, err := c.TLS.roots(); err != nil {
		found.Add("kafka.tls.ca_file", "%v", err)
	}
	if readable(&found, "kafka.tls.cert_file", c.TLS.CertFile) && readable(&found, "kafka.tls.key_file", c.TLS.KeyFile) {
		if _, err := c.TLS.pair(); err != nil {
			found.Add("kafka.tls.cert_file", "with kafka.tls.key_file: %v", err)
		}
	}
	c.SASL.validate(&found)
	return found
}

// readable says whether a file can be opened, or is not wanted.
func readable(found *fault.Problems, field, path string) bool {
	if path == "" {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		found.Add(field, "%v", err)
		return false
	}
	_ = f.Close() // opened for reading only
	return true
}

func checkBroker(b string) error {
	host, port, err := net.SplitHostPort(b)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ,") {
		return fmt.Errorf("must be host:port (got %q)", b)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("the port must be from 1 to 65535 (got %q)", b)
	}
	return nil
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}
