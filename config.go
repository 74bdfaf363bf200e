package walpost

import (
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// A Config says what to relay, from where, to where. Start from DefaultConfig and set what differs; the zero value is
// not usable. The yaml tags are the keys of walpost.yaml, and messages name fields by them.
type Config struct {
	// Name is the key of the checkpoint. Two relays on one checkpoint topic need two names. Default: <database>.<slot>.
	Name string `yaml:"name"`

	Source     replication.Config `yaml:"source"`
	Router     router.Options     `yaml:"router"`
	Records    router.Records     `yaml:"records"`
	Kafka      sink.Config        `yaml:"kafka"`
	Delivery   DeliveryConfig     `yaml:"delivery"`
	Checkpoint sink.StoreConfig   `yaml:"checkpoint"`
	Monitor    slot.Config        `yaml:"monitor"`
	Cleanup    cleanup.Config     `yaml:"cleanup"`

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

// deadLetterTopic is the only value until dead letters exist.
const deadLetterTopic = "walpost.dead_letter"

// DefaultConfig returns every default. The DSN, a table and the brokers have none.
func DefaultConfig() Config {
	routes := router.DefaultConfig()
	return Config{
		Source:  replication.DefaultConfig(),
		Router:  routes.Options,
		Records: routes.Records,
		Kafka:   sink.DefaultConfig(),
		Delivery: DeliveryConfig{
			Guarantee:       "at_least_once",
			Window:          WindowConfig{Events: 50_000, Bytes: 64 << 20},
			OnPoison:        "halt",
			DeadLetterTopic: deadLetterTopic,
		},
		Checkpoint:    sink.DefaultStore(),
		Monitor:       slot.DefaultConfig(),
		Cleanup:       cleanup.DefaultConfig(),
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
