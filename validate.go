package walpost

import (
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/topicname"
)

// A Problem is one thing that is wrong with a Config. Its Field is the path by walpost.yaml's keys.
type Problem = conf.Problem

// Problems is everything that is wrong with a Config. It is an error that a retry cannot help.
type Problems = conf.Problems

// Validate returns everything that is wrong with the Config, or nil. It connects nowhere.
func (c *Config) Validate() (found Problems) {
	if strings.ContainsAny(c.Name, "/ \t\n") || len(c.Name) > 200 {
		found.Add("name", conf.MustBe, "at most 200 characters without spaces and slashes", c.Name)
	}
	c.validateSource(&found)
	routes := c.routing()
	found = append(found, routes.Validate()...)
	switch {
	case c.Stdout == nil:
		found = append(found, c.Kafka.Validate()...)
	case len(c.Kafka.Brokers) > 0:
		found.Add("kafka.brokers", conf.Contradicts, "--stdout: records go to one place", nil)
	}
	c.Delivery.validate(&found)
	c.Checkpoint.validate(&found)
	if c.Checkpoint.Store == "kafka" && c.Stdout != nil {
		found.Add("checkpoint.store", conf.MustBe, "file with --stdout", c.Checkpoint.Store)
	}
	found = append(found, c.Monitor.Validate()...)
	c.Cleanup.validate(&found)
	if c.Cleanup.Mode != "none" && c.Source.TimeColumn == "" {
		found.Add("source.time_column", conf.Required, "with cleanup.mode "+c.Cleanup.Mode+": rows are kept for cleanup.keep by it", nil)
	}
	conf.Range(&found, "shutdown_grace", c.ShutdownGrace, 0, time.Hour)
	if c.HaltLinger != Forever {
		conf.Range(&found, "halt_linger", c.HaltLinger, 0, math.MaxInt64)
	}
	return found
}

// validateSource adds contradictions, and then what replication itself says of its part.
func (c *Config) validateSource(found *Problems) {
	s := &c.Source
	settings := c.replication()
	if s.Table != "" && len(s.Tables) > 0 {
		found.Add("source.tables", conf.Contradicts, "source.table: write one of both", nil)
		settings.Tables = s.Tables
	}
	s.DSN.Check(found, "source.dsn", s.DSNFile)
	s.Password.Check(found, "source.password", s.PasswordFile)
	if settings.Password != "" && passwordInDSN.MatchString(settings.DSN) {
		found.Add("source.password", conf.Contradicts, "the password in source.dsn: write one of both", nil)
	}
	for _, p := range settings.Validate() {
		if p.Field != "source.dsn" || settings.DSN != "" || s.DSNFile == "" { // the file's fault is told
			*found = append(*found, p)
		}
	}
	found.OneOf("source.snapshot", s.Snapshot, "", "never", "initial")
	// auto is the default of the contract; while bulk catch-up is not delivered it behaves as never.
	found.OneOf("source.bulk_catch_up", s.BulkCatchUp, "auto", "never")
}

var passwordInDSN = regexp.MustCompile(`(?i)^[a-z]+://[^/@:]*:[^/@]+@|[?&\s]password\s*=|^password\s*=`)

func (c *DeliveryConfig) validate(found *Problems) {
	found.OneOf("delivery.guarantee", c.Guarantee, "at_least_once", "exactly_once?")
	conf.Range(found, "delivery.window.events", c.Window.Events, 1, 10_000_000)
	conf.Range(found, "delivery.window.bytes", c.Window.Bytes, 1<<10, 64<<30)
	found.OneOf("delivery.on_poison", c.OnPoison, "halt", "dead_letter?", "park_key?")
	if c.DeadLetterTopic != deadLetterTopic {
		found.Add("delivery.dead_letter_topic", conf.Unsupported, "", c.DeadLetterTopic)
	}
}

func (c *CheckpointConfig) validate(found *Problems) {
	found.OneOf("checkpoint.store", c.Store, "kafka", "file")
	switch c.Store {
	case "kafka":
		if topicname.Check(c.Topic) != nil {
			found.Add("checkpoint.topic", conf.MustBe, "a topic name: 1 to 249 of a-z A-Z 0-9 . _ -", c.Topic)
		}
		if c.Path != "" {
			found.Add("checkpoint.path", conf.Contradicts, "checkpoint.store kafka: it belongs to store file", c.Path)
		}
	case "file":
		if c.Path == "" {
			found.Add("checkpoint.path", conf.Required, "with checkpoint.store: file", nil)
		}
	}
}

func (c *CleanupConfig) validate(found *Problems) {
	found.OneOf("cleanup.mode", c.Mode, "none", "delete", "drop_partitions")
	conf.Range(found, "cleanup.keep", c.Keep, 0, 20*365*24*time.Hour)
}
