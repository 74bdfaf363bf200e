package walpost

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/conf"
)

// A Problem is one thing that is wrong with a Config. Its Field is the path by walpost.yaml's keys.
type Problem = conf.Problem

// Problems is everything that is wrong with a Config. It is an error that a retry cannot help.
type Problems = conf.Problems

// Validate returns everything that is wrong with the Config, or nil. It connects nowhere.
func (c *Config) Validate() Problems { return c.validate(true) }

// ValidateDatabase is Validate for Setup, ReadSlot and Explain, which need no brokers.
func (c *Config) ValidateDatabase() Problems { return c.validate(len(c.Kafka.Brokers) > 0) }

func (c *Config) validate(brokers bool) (found Problems) {
	if strings.ContainsAny(c.Name, "/ \t\n") || len(c.Name) > 200 {
		found.Add("name", conf.MustBe, "at most 200 characters without spaces and slashes", c.Name)
	}
	routes, cleaning := c.routing(), c.Cleanup
	cleaning.TimeColumn = c.Source.TimeColumn
	found = slices.Concat(found, c.Source.Validate(), routes.Validate())
	switch {
	case c.Stdout == nil:
		for _, p := range c.Kafka.Validate() {
			if brokers || p.Field != "kafka.brokers" {
				found = append(found, p)
			}
		}
	case len(c.Kafka.Brokers) > 0:
		found.Add("kafka.brokers", conf.Contradicts, "--stdout: records go to one place", nil)
	}
	c.Delivery.validate(&found)
	found = append(found, c.Checkpoint.Validate()...)
	if c.Checkpoint.Store == "kafka" && c.Stdout != nil {
		found.Add("checkpoint.store", conf.MustBe, "file with --stdout", c.Checkpoint.Store)
	}
	found = slices.Concat(found, c.Monitor.Validate(), cleaning.Validate())
	conf.Range(&found, "shutdown_grace", c.ShutdownGrace, 0, time.Hour)
	if c.HaltLinger != Forever {
		conf.Range(&found, "halt_linger", c.HaltLinger, 0, math.MaxInt64)
	}
	return found
}

func (c *DeliveryConfig) validate(found *Problems) {
	found.OneOf("delivery.guarantee", c.Guarantee, "at_least_once", "exactly_once?")
	conf.Range(found, "delivery.window.events", c.Window.Events, 1, 10_000_000)
	conf.Range(found, "delivery.window.bytes", c.Window.Bytes, 1<<10, 64<<30)
	found.OneOf("delivery.on_poison", c.OnPoison, "halt", "dead_letter?", "park_key?")
	if c.DeadLetterTopic != deadLetterTopic {
		found.Add("delivery.dead_letter_topic", conf.Unsupported, "", c.DeadLetterTopic)
	}
}
