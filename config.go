package walpost

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/lib/topicname"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/registry"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// A Config says what to relay, from where, and to where. Start from DefaultConfig and set what
// differs; the zero value isn't usable. The yaml tags are the keys of walpost.yaml, and messages
// refer to fields by these keys.
type Config struct {
	// The checkpoint's key, by default `<database>.<slot>`, or `<database>.<schema>.<table>` when
	// polling. Relays that share a topic for checkpoints or parked events need different names; a hot
	// standby has the same name. Before changing it, even by choosing another slot, release or drop
	// parked keys.
	Name string `yaml:"name" pattern:"^[^/ \\t\\n]{0,200}$" want:"at most 200 characters without spaces or slashes" example:"shop.walpost"`

	// What walpost reads.
	Source SourceConfig `yaml:"source"`
	// The options of Debezium's Outbox EventRouter, with its defaults.
	Router router.Options `yaml:"router"`
	// How column values become bytes. The names are Kafka Connect's and Debezium's.
	Records router.Records `yaml:"records"`
	// The registry for `avro`, `json_schema`, `protobuf` and `records.validate`. walpost waits while it's down.
	SchemaRegistry registry.Config `yaml:"schema_registry"`
	// The Kafka cluster.
	Kafka sink.Config `yaml:"kafka"`
	// Limits, and what happens to poison messages.
	Delivery DeliveryConfig `yaml:"delivery"`
	// Where walpost keeps its position.
	Checkpoint statelog.StoreConfig `yaml:"checkpoint"`
	// The slot's health, and the circuit breaker.
	Monitor slot.Config `yaml:"monitor"`
	// Removal of [delivered rows](cleanup.md).
	Cleanup cleanup.Config `yaml:"cleanup"`

	// How long walpost waits for acknowledgements when stopping.
	ShutdownGrace time.Duration `yaml:"shutdown_grace" min:"0s" max:"1h" example:"30s"`
	// How long a halted relay shows the reason before it exits with code 3. During this time, or
	// `shutdown_grace` if that's longer, it delivers what it read before a bad event.
	HaltLinger Linger `yaml:"halt_linger" words:"forever" min:"0s" example:"10m"`

	// AcceptGap is the token of the one gap that Run accepts. The error that refused the gap
	// printed the token.
	AcceptGap string `yaml:"-"`
	// Unordered allows rows of the table to be published in any order if neither the server's
	// commit times nor Source.OrderColumn determine one.
	Unordered bool `yaml:"-"`
	// With SetupPartitioned, Setup creates a missing table as partitioned by Source.TimeColumn.
	// SetupRole is the role that walpost runs as, if Setup connects as another role. With
	// SetupSlot, Setup also creates the slot; otherwise the first run does.
	SetupPartitioned bool   `yaml:"-"`
	SetupRole        string `yaml:"-"`
	SetupSlot        bool   `yaml:"-"`
	// Stdout receives the records as JSON lines, instead of Kafka, for trying walpost out. It needs
	// Checkpoint.Store "file".
	Stdout io.Writer `yaml:"-"`
	// Observer is notified of each event that Run delivers to Kafka, or that can't be delivered.
	// Package spans has one for OpenTelemetry. nil costs nothing.
	Observer Observer `yaml:"-"`
	// Version is the program's version, which goes into its dead letters.
	Version string `yaml:"-"`
	// Logger gets a line only when something changes: started, connected, lost, recovered, stopped.
	// The default is slog.Default(). slog.New(slog.DiscardHandler) is silent.
	Logger *slog.Logger `yaml:"-"`
}

// SourceConfig says what walpost reads: by its Kind, the WAL, or the table with SQL. The fields of
// replication.Config for the slot and the publication apply only to the WAL.
type SourceConfig struct {
	// Read the WAL, or [poll](polling.md) the table with SQL.
	Kind               string `yaml:"kind" words:"wal|poll"`
	replication.Config `yaml:",inline"`
	// Only with `source.kind: poll`: see [polling-reference.md](polling-reference.md).
	Poll poll.Config `yaml:"poll"`
}

// The kinds of source.
const (
	KindWAL  = "wal"
	KindPoll = "poll"
)

// An Observer is notified, with a Delivery, when the delivery of an event ends. A Header is a
// header of the event's record.
type (
	Observer = relay.Observer
	Delivery = relay.Delivery
	Header   = cdc.Header
)

// DeliveryConfig limits what may be in flight, and says what happens to an event that can't be
// delivered.
type DeliveryConfig struct {
	// With [`exactly_once`](guarantees.md#exactly-once), a `read_committed` consumer gets each event
	// once.
	Guarantee string `yaml:"guarantee" words:"at_least_once|exactly_once"`
	// Limits memory use, and what a crash can repeat.
	Window relay.Window `yaml:"window"`
	// The [policy](repair.md#choose-a-policy) for an event that can't be routed, or that Kafka refuses
	// even on its own. `{default: dead_letter, unroutable: halt}` sets a policy for each reason.
	OnPoison relay.Policies `yaml:"on_poison" words:"halt|dead_letter|park_key" keys:"default|unroutable|too_large|invalid_record|invalid_topic" example:"{default: dead_letter, unroutable: halt}"`
	// The dead letter topic, created when a policy or `walpost skip` needs it.
	DeadLetterTopic string `yaml:"dead_letter_topic" pattern:"^[A-Za-z0-9._-]{1,249}$" example:"shop.dead_letter"`
	// The topic of parked events, created for `park_key`. It must contain nothing else.
	ParkingTopic string `yaml:"parking_topic" pattern:"^[A-Za-z0-9._-]{1,249}$" example:"shop.parked"`
	// Above this limit, walpost stops reading until you release or drop enough.
	ParkLimit ParkLimit `yaml:"park_limit"`
}

// The guarantees of DeliveryConfig.Guarantee.
const (
	AtLeastOnce = "at_least_once"
	ExactlyOnce = "exactly_once"
)

// ParkLimit limits what may be parked. At the limit, the relay stops reading until enough is
// released or dropped.
type ParkLimit = parking.Limit

// DefaultConfig returns a Config with all defaults. The DSN, the table and the brokers have none.
func DefaultConfig() Config {
	routes, run := router.DefaultConfig(), relay.DefaultConfig()
	return Config{
		Source:  SourceConfig{Kind: KindWAL, Config: replication.DefaultConfig(), Poll: poll.DefaultConfig()},
		Router:  routes.Options,
		Records: routes.Records,
		Kafka:   sink.DefaultConfig(),
		Delivery: DeliveryConfig{
			Guarantee:       AtLeastOnce,
			Window:          run.Window,
			OnPoison:        relay.Policies{relay.DefaultPolicy: relay.PolicyHalt},
			DeadLetterTopic: "walpost.dead_letter",
			ParkingTopic:    "walpost.parked",
			ParkLimit:       ParkLimit{Keys: 1000, Events: 100_000},
		},
		Checkpoint:    statelog.DefaultStore(),
		Monitor:       slot.DefaultConfig(),
		Cleanup:       cleanup.DefaultConfig(),
		ShutdownGrace: run.ShutdownGrace,
		HaltLinger:    Linger(60 * time.Second),
	}
}

// A Secret is never printed by fmt, in JSON or in a log. string(s) is its value. Each Secret has a
// second field, ending in File, for the name of a file that contains it.
type Secret = conf.Secret

// A Size is a number of bytes. As text, it looks like 1024, 64MiB or 10GiB. KB, MB and GB are
// powers of ten.
type Size = size.Bytes

// A Linger is a duration, or Forever.
type Linger time.Duration

// Forever lets a halted relay linger until the context is cancelled.
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

// A Problem is one thing that is wrong with a Config. Field is its path in walpost.yaml.
type Problem = conf.Problem

// Problems is everything that is wrong with a Config. It is an error that retrying can't fix.
type Problems = conf.Problems

// Validate returns everything that is wrong with the Config, or nil. It makes no connections.
func (c *Config) Validate() Problems { return c.validate(true) }

// ValidateDatabase is Validate for Setup, ReadSlot and Explain, which need no brokers.
func (c *Config) ValidateDatabase() Problems { return c.validate(len(c.Kafka.Brokers) > 0) }

func (c *Config) validate(brokers bool) (found Problems) {
	routes := c.routing()
	found = slices.Concat(conf.Check("", c, "router", "records"), c.Source.Validate(), routes.Validate())
	c.validatePoll(&found)
	switch {
	case c.Stdout == nil:
		for _, p := range c.Kafka.Validate() {
			if brokers || p.Field != "kafka.brokers" {
				found = append(found, p)
			}
		}
	case len(c.Kafka.Brokers) > 0:
		found.Add("kafka.brokers", conf.Contradicts, "--stdout: records can go to one place only", nil)
	}
	found = append(found, c.SchemaRegistry.Validate()...)
	if (c.Records.Registered() || c.Records.Validates()) && len(c.SchemaRegistry.URLs) == 0 {
		found.Add("schema_registry.urls", conf.Required, "with the converters avro, json_schema and protobuf, and with records.validate", nil)
	}
	if c.Records.ClaimCheck.On() && c.Stdout != nil {
		found.Add("records.claim_check.over", conf.Contradicts, "--stdout, which stores nothing", nil)
	}
	c.Delivery.validate(&found)
	found = append(found, c.Checkpoint.Validate()...)
	for field, topic := range map[string]string{"delivery.dead_letter_topic": c.Delivery.DeadLetterTopic, "delivery.parking_topic": c.Delivery.ParkingTopic} {
		if c.Checkpoint.Store == "kafka" && c.Checkpoint.Topic == topic {
			found.Add(field, conf.MustBe, "a topic other than checkpoint.topic", topic)
		}
	}
	if c.exactlyOnce() {
		const because = "with delivery.guarantee exactly_once"
		if c.Checkpoint.Store != "kafka" {
			found.Add("checkpoint.store", conf.MustBe, "kafka "+because, c.Checkpoint.Store)
		}
		if c.claims() {
			found.Add("source.poll.strategy", conf.MustBe, "cursor "+because, c.Source.Poll.Strategy)
		}
	}
	if c.Checkpoint.Store == "kafka" && c.Stdout != nil {
		found.Add("checkpoint.store", conf.MustBe, "file with --stdout", c.Checkpoint.Store)
	}
	found = slices.Concat(found, c.Monitor.Validate(), c.Cleanup.Validate(c.Source.TimeColumn))
	if c.Cleanup.Mode != cleanup.None && c.onlyMessages() {
		found.Add("cleanup.mode", conf.MustBe, "none without source.table, because messages are in no table", c.Cleanup.Mode)
	}
	return found
}

// onlyMessages says that logical messages are the only events.
func (c *Config) onlyMessages() bool {
	return len(c.Source.AllTables()) == 0 && c.Source.Messages.On()
}

// needsTable is an error of a command that reads a table, if there is none.
func (c *Config) needsTable(command, hint string) error {
	if !c.onlyMessages() {
		return nil
	}
	return fault.Config(fmt.Errorf("walpost %s reads rows of a table, and source.table is not set: logical messages are only in the WAL", command), hint)
}

func (c *DeliveryConfig) validate(found *Problems) {
	found.Try("delivery.dead_letter_topic", topicname.Check(c.DeadLetterTopic))
	found.Try("delivery.parking_topic", topicname.Check(c.ParkingTopic))
	if c.ParkingTopic == c.DeadLetterTopic {
		found.Add("delivery.parking_topic", conf.MustBe, "a topic other than delivery.dead_letter_topic", c.ParkingTopic)
	}
}

// target adds what is wrong with a topic that a command publishes to instead of the topic of each event. walpost's own topics take no
// event: nobody would find it there.
func (c *Config) target(found *Problems, flag, topic string) {
	if topic == "" {
		return
	}
	found.Try(flag, topicname.Check(topic))
	if topic == c.Delivery.DeadLetterTopic || topic == c.Delivery.ParkingTopic || c.Checkpoint.Store == "kafka" && topic == c.Checkpoint.Topic {
		found.Add(flag, conf.MustBe, "a topic that is not walpost's own", topic)
	}
}

// replication is the configuration as the source wants it, but for the columns that the router needs.
func (c *Config) replication() replication.Config {
	s := c.Source.Config
	s.ReadSecrets()
	s.Outbox = replication.Outbox{
		Role: c.SetupRole, Slot: c.SetupSlot, TimeColumn: s.TimeColumn, Partitioned: c.SetupPartitioned,
		Deletes:  c.Cleanup.Mode == cleanup.Delete || c.Cleanup.Mode == cleanup.MoveToArchive,
		Archives: c.Cleanup.Mode == cleanup.MoveToArchive, ArchiveTable: c.Cleanup.ArchiveTable,
		Owns: c.Cleanup.Mode == cleanup.DropPartitions,
	}
	s.Logger = c.Logger
	return s
}

// routing is the configuration as the router wants it.
func (c *Config) routing() router.Config {
	cfg := router.Config{Tables: []string{}, Updates: slices.Contains(c.Source.Publish, "update"), Options: c.Router, Records: c.Records}
	for _, name := range c.Source.AllTables() {
		if t, err := pgname.ParseTable(name); err == nil { // replication reports the others
			cfg.Tables = append(cfg.Tables, t.Schema+"."+t.Name)
		}
	}
	if cfg.DebeziumMessages = c.Source.Messages.Debezium(); cfg.DebeziumMessages {
		cfg.Database, _ = c.Source.Database() // replication reports a wrong DSN
	}
	return cfg
}

// router makes a router, and its client of the schema registry, nil without one.
func (c *Config) router() (*router.Router, *registry.Client, error) {
	cfg := c.routing()
	var schemas *registry.Client
	if c.Records.Registered() || c.Records.Validates() {
		var err error
		if schemas, err = registry.New(c.SchemaRegistry); err != nil {
			return nil, nil, fault.Config(err, "")
		}
		cfg.Registry, cfg.Validator = schemas, schemas
	}
	routes, err := router.New(cfg)
	if err != nil {
		return nil, nil, fault.Config(err, "")
	}
	return routes, schemas, nil
}

// sink is the configuration as the Kafka sink wants it.
func (c *Config) exactlyOnce() bool { return c.Delivery.Guarantee == ExactlyOnce }

// transactionalID is the one of the events. The parked events have one of their own: the relay's name, in which there is no slash.
func (c *Config) transactionalID() string { return c.Name + "/events" }

func (c *Config) sink() sink.Config {
	cfg := c.Kafka
	cfg.WindowBytes, cfg.Logger = int64(c.Delivery.Window.Bytes), c.Logger
	cfg.DeadLetters, cfg.Bury = c.Delivery.DeadLetterTopic, c.Delivery.OnPoison.Bury()
	cfg.Parking, cfg.Park = c.Delivery.ParkingTopic, c.Delivery.OnPoison.Park()
	cfg.Store = c.claimStore()
	return cfg
}
