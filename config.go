package walpost

import (
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// A Config says what to relay, from where, to where. Start from DefaultConfig and set what differs; the zero value is
// not usable. The yaml tags are the keys of walpost.yaml, and messages name fields by them.
type Config struct {
	// Name is the key of the checkpoint. Two relays on one checkpoint topic need two names. Default: <database>.<slot>.
	Name string `yaml:"name"`

	Source     SourceConfig     `yaml:"source"`
	Router     router.Options   `yaml:"router"`
	Records    router.Records   `yaml:"records"`
	Kafka      sink.Config      `yaml:"kafka"`
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

// deadLetterTopic is the only value until dead letters exist.
const deadLetterTopic = "walpost.dead_letter"

// DefaultConfig returns every default. The DSN, a table and the brokers have none.
func DefaultConfig() Config {
	routes := router.DefaultConfig()
	return Config{
		Source: SourceConfig{
			Slot:              "walpost",
			Publication:       "walpost",
			Publish:           []string{"insert"},
			Create:            true,
			ConfirmKeepalives: true,
			BulkCatchUp:       "auto",
		},
		Router:  routes.Options,
		Records: routes.Records,
		Kafka:   sink.DefaultConfig(),
		Delivery: DeliveryConfig{
			Guarantee:       "at_least_once",
			Window:          WindowConfig{Events: 50_000, Bytes: 64 << 20},
			OnPoison:        "halt",
			DeadLetterTopic: deadLetterTopic,
		},
		Checkpoint:    CheckpointConfig{Store: "kafka", Topic: "walpost.checkpoints"},
		Monitor:       slot.DefaultConfig(),
		Cleanup:       CleanupConfig{Mode: "none", Keep: 72 * time.Hour},
		ShutdownGrace: 20 * time.Second,
		HaltLinger:    Linger(60 * time.Second),
	}
}

// A Secret never prints itself: not by fmt, not in JSON, not in a log. string(s) is its value. Beside
// each Secret there is a File that may hold it instead.
type Secret = conf.Secret

// A Size is a number of bytes; as text 1024, 64MiB, 10GiB, or with KB, MB, GB in powers of ten.
type Size = size.Bytes

// A Linger is a duration that may be without end.
type Linger time.Duration

// Forever is a Linger until the context is cancelled.
const Forever Linger = -1

// UnmarshalText reads a duration or "forever".
func (l *Linger) UnmarshalText(text []byte) error {
	d, err := conf.DurationOr(text, "forever", time.Duration(Forever))
	*l = Linger(d)
	return err
}

func (l Linger) String() string {
	if l == Forever {
		return "forever"
	}
	return time.Duration(l).String()
}
