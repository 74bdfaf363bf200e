package walpost

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/slot"
)

// A Config says what to relay, from where, to where. Start from DefaultConfig and set what differs; the zero value is
// not usable. The yaml tags are the keys of walpost.yaml, and messages name fields by them.
type Config struct {
	// Name is the key of the checkpoint. Two relays on one checkpoint topic need two names. Default: <database>.<slot>.
	Name string `yaml:"name"`

	Source     SourceConfig     `yaml:"source"`
	Router     RouterConfig     `yaml:"router"`
	Records    RecordsConfig    `yaml:"records"`
	Kafka      KafkaConfig      `yaml:"kafka"`
	Delivery   DeliveryConfig   `yaml:"delivery"`
	Checkpoint CheckpointConfig `yaml:"checkpoint"`
	Monitor    slot.Config      `yaml:"monitor"`
	Cleanup    CleanupConfig    `yaml:"cleanup"`

	// ShutdownGrace bounds how long a stop, or a lost source, waits for acknowledgements that are outstanding.
	ShutdownGrace time.Duration `yaml:"shutdown_grace"`
	// HaltLinger is how long Run stays, with the monitor, after an error that needs a person, so that it is seen.
	HaltLinger Linger `yaml:"halt_linger"`

	// AcceptGap is the token that a refusal to go on over a gap printed. It opens that one gap and no other.
	AcceptGap string `yaml:"-"`
	// Unordered lets rows of the table be published in any order, where neither the server's commit times nor Source.OrderColumn tell it.
	Unordered bool `yaml:"-"`
	// SetupPartitioned has a setup make a missing table as one that is partitioned by Source.TimeColumn.
	SetupPartitioned bool `yaml:"-"`
	// Stdout receives the records as JSON lines instead of Kafka, for trying. It needs Checkpoint.Store "file".
	Stdout io.Writer `yaml:"-"`
	// Logger is written to at edges only: started, connected, lost, recovered, stopped. The zero value is silent.
	Logger zerolog.Logger `yaml:"-"`
	// KafkaHooks are given to the Kafka client, for metrics and logs of its own.
	KafkaHooks []kgo.Hook `yaml:"-"`
}

// SourceConfig is the database, the slot and what to read.
type SourceConfig struct {
	// DSN is a libpq URI or keyword string of a role that may replicate and select from the table.
	DSN     Secret `yaml:"dsn"`
	DSNFile string `yaml:"dsn_file"`
	// Password is the role's, for a DSN without one.
	Password     Secret `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
	// Table is schema.table, as SQL reads names. Tables is for several; only one of both may be set.
	Table       string   `yaml:"table"`
	Tables      []string `yaml:"tables"`
	Slot        string   `yaml:"slot"`
	Publication string   `yaml:"publication"`
	// Publish is what a publication that walpost makes carries: insert, and update where an update of a row's primary key is
	// to be published as Debezium does. A publication that is there is used as it is.
	Publish []string `yaml:"publish"`
	// Create makes the publication, and then the slot, where they are missing and no checkpoint knows the slot.
	Create bool `yaml:"create"`
	// Snapshot is "never" or "initial": whether the rows that are there before the slot is made are published, ahead of the stream and with
	// the header walpost.origin: snapshot. Empty means never, but a first start over a table that has rows refuses until it is written.
	Snapshot string `yaml:"snapshot"`
	// OrderColumn orders what is read from the table, where the server keeps no commit times. TimeColumn ages rows for Cleanup, and for a
	// recover where the server keeps none.
	OrderColumn string `yaml:"order_column"`
	TimeColumn  string `yaml:"time_column"`
	// Failover makes the slot one that survives a failover (Postgres 17 and newer).
	Failover bool `yaml:"failover"`
	// ConfirmKeepalives lets an idle slot follow the server. Off for forks of Postgres where that is unsafe.
	ConfirmKeepalives bool   `yaml:"confirm_keepalives"`
	BulkCatchUp       string `yaml:"bulk_catch_up"`
}

// AllTables is Table or Tables.
func (c *SourceConfig) AllTables() []string {
	if c.Table != "" {
		return append([]string{c.Table}, c.Tables...)
	}
	return c.Tables
}

// KafkaConfig is the brokers and how to talk to them.
type KafkaConfig struct {
	Brokers []string `yaml:"brokers"`
	// TLS is off where nil; an empty one trusts the system's roots.
	TLS  *TLSConfig `yaml:"tls"`
	SASL SASLConfig `yaml:"sasl"`
	// Compression is none, gzip, snappy, lz4 or zstd.
	Compression string `yaml:"compression"`
	// Linger is how long a batch is waited for; LingerAuto waits for nothing.
	Linger LingerTime   `yaml:"linger"`
	Topics TopicsConfig `yaml:"topics"`
}

// TLSConfig names PEM files. All are optional; CertFile and KeyFile belong together.
type TLSConfig struct {
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"`
}

// SASLConfig is how to authenticate. It is off while Mechanism is empty.
type SASLConfig struct {
	// Mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM.
	Mechanism string `yaml:"mechanism"`
	// Username and Password are for PLAIN and SCRAM. The files are read again for every authentication.
	Username     string `yaml:"username"`
	Password     Secret `yaml:"password"`
	PasswordFile string `yaml:"password_file"`

	// Token and Extensions are for OAUTHBEARER.
	Token      Secret            `yaml:"token"`
	TokenFile  string            `yaml:"token_file"`
	Extensions map[string]string `yaml:"extensions"`

	// AWS_MSK_IAM. What is empty comes from the AWS_… environment.
	AccessKey        string `yaml:"access_key"`
	SecretKey        Secret `yaml:"secret_key"`
	SecretKeyFile    string `yaml:"secret_key_file"`
	SessionToken     Secret `yaml:"session_token"`
	SessionTokenFile string `yaml:"session_token_file"`
	Region           string `yaml:"region"`
}

// TopicsConfig says whether and how missing topics are made. -1 is the broker's default.
type TopicsConfig struct {
	Create            bool `yaml:"create"`
	Partitions        int  `yaml:"partitions"`
	ReplicationFactor int  `yaml:"replication_factor"`
}

// DeliveryConfig is what is promised about each event, and what is done with one that cannot be delivered.
type DeliveryConfig struct {
	Guarantee       string       `yaml:"guarantee"`
	Window          WindowConfig `yaml:"window"`
	OnPoison        string       `yaml:"on_poison"`
	DeadLetterTopic string       `yaml:"dead_letter_topic"`
}

// WindowConfig bounds what is in flight, and with it memory and the duplicates after a crash.
type WindowConfig struct {
	Events int  `yaml:"events"`
	Bytes  Size `yaml:"bytes"`
}

// CheckpointConfig says where the position is remembered: in a compacted topic, or in a file on this one host.
type CheckpointConfig struct {
	Store string `yaml:"store"`
	Topic string `yaml:"topic"`
	Path  string `yaml:"path"`
}

// CleanupConfig is what is done with old rows of the table: only what was delivered is ever removed. See package cleanup.
type CleanupConfig struct {
	// Mode is none, delete or drop_partitions.
	Mode string `yaml:"mode"`
	// Keep is how old a row must be at least by SourceConfig.TimeColumn; 0 removes what was delivered.
	Keep time.Duration `yaml:"keep"`
}

// DefaultConfig returns every default. The DSN, a table and the brokers have none.
func DefaultConfig() Config {
	return Config{
		Source: SourceConfig{
			Slot:              "walpost",
			Publication:       "walpost",
			Publish:           []string{"insert"},
			Create:            true,
			ConfirmKeepalives: true,
			BulkCatchUp:       "auto",
		},
		Router:  defaultRouter(),
		Records: defaultRecords(),
		Kafka: KafkaConfig{
			Compression: "snappy",
			Linger:      LingerAuto,
			Topics:      TopicsConfig{Partitions: -1, ReplicationFactor: -1},
		},
		Delivery: DeliveryConfig{
			Guarantee:       "at_least_once",
			Window:          WindowConfig{Events: 50_000, Bytes: 64 << 20},
			OnPoison:        "halt",
			DeadLetterTopic: "walpost.dead_letter",
		},
		Checkpoint:    CheckpointConfig{Store: "kafka", Topic: "walpost.checkpoints"},
		Monitor:       slot.DefaultConfig(),
		Cleanup:       CleanupConfig{Mode: "none", Keep: 72 * time.Hour},
		ShutdownGrace: 20 * time.Second,
		HaltLinger:    Linger(60 * time.Second),
	}
}

// A Secret never prints itself: not by fmt, not in JSON, not in a log. string(s) is its value. Beside each Secret there is
// a File that may hold it instead; the line end that editors put there is not part of it.
type Secret string

const redacted = "(secret)"

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString is what %#v prints.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText is what encoders write.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Size is a number of bytes; as text 1024, 64MiB, 10GiB, or with KB, MB, GB in powers of ten.
type Size = size.Bytes

// A Linger is a duration that may be without end.
type Linger time.Duration

// Forever is a Linger until the context is cancelled.
const Forever Linger = -1

// UnmarshalText reads a duration or "forever".
func (l *Linger) UnmarshalText(text []byte) error {
	return unmarshalDuration((*time.Duration)(l), text, "forever", time.Duration(Forever))
}

func (l Linger) String() string {
	if l == Forever {
		return "forever"
	}
	return time.Duration(l).String()
}

// A LingerTime is how long the Kafka client waits for a batch to fill.
type LingerTime time.Duration

// LingerAuto leaves it to the client: none now, because batches fill while requests are on their way.
const LingerAuto LingerTime = -1

// UnmarshalText reads a duration or "auto".
func (l *LingerTime) UnmarshalText(text []byte) error {
	return unmarshalDuration((*time.Duration)(l), text, "auto", time.Duration(LingerAuto))
}

func (l LingerTime) String() string {
	if l == LingerAuto {
		return "auto"
	}
	return time.Duration(l).String()
}

func unmarshalDuration(d *time.Duration, text []byte, word string, value time.Duration) error {
	if string(text) == word {
		*d = value
		return nil
	}
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("must be %s or a duration such as 10s (got %q)", word, text)
	}
	*d = v
	return nil
}
