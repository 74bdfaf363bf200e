package walpost

import (
	"cmp"
	"regexp"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/secret"
	"github.com/walpost/walpost/internal/topicname"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// A Problem is one thing that is wrong with a Config: Field is its path by walpost.yaml's keys, Text says the bound and
// the value.
type Problem = fault.Problem

// Problems is everything that is wrong with a Config. It is an error that a retry cannot help.
type Problems = fault.Problems

// checks collects problems; its methods name the field, the bound and the value.
type checks struct{ found Problems }

func (c *checks) add(field, format string, args ...any) {
	c.found.Add(field, format, args...)
}

func atLeast[T cmp.Ordered](c *checks, field string, value, bound T) {
	if value < bound {
		c.add(field, "must be at least %v (got %v)", bound, value)
	}
}

func atMost[T cmp.Ordered](c *checks, field string, value, bound T) {
	if value > bound {
		c.add(field, "must be at most %v (got %v)", bound, value)
	}
}

// oneOf reports a value that is none of the words. A word that ends with "?" is one of the contract that does not work
// yet: accepting it would promise what is not done.
func (c *checks) oneOf(field, value string, words ...string) {
	known := make([]string, len(words))
	for i, word := range words {
		name, later := strings.CutSuffix(word, "?")
		if value == name {
			if later {
				c.add(field, "%s: not supported yet", value)
			}
			return
		}
		known[i] = name
	}
	if known[0] == "" {
		known = known[1:]
	}
	c.add(field, "must be one of %s (got %q)", strings.Join(known, ", "), value)
}

// only reports a value of a key that does nothing yet, unless it is the inert one.
func only[T comparable](c *checks, field string, value, inert T) {
	if value != inert {
		c.add(field, "%v: not supported yet", value)
	}
}

// secret is a secret's value, from its file where it has one.
func (c *checks) secret(field string, value Secret, file string) string {
	if file == "" {
		return string(value)
	}
	if value != "" {
		c.add(field+"_file", "contradicts %s: write one of both", field)
		return string(value)
	}
	text, err := secret.Read(file)
	if err != nil {
		c.add(field+"_file", "%v", err)
	}
	return text
}

func (c *checks) topic(field, name string) {
	if topicname.Check(name) != nil {
		c.add(field, "must be a topic name: 1 to 249 of a-z A-Z 0-9 . _ - (got %q)", name)
	}
}

// Validate returns everything that is wrong with the Config, or nil. It connects nowhere.
func (c *Config) Validate() Problems {
	var k checks
	if strings.ContainsAny(c.Name, "/ \t\n") || len(c.Name) > 200 {
		k.add("name", "must be at most 200 characters without spaces and slashes (got %q)", c.Name)
	}
	c.Source.validate(&k, c.replication())
	c.Router.validate(&k, c.routing())
	c.Records.validate(&k)
	c.Kafka.validate(&k, c.sink(), c.Stdout != nil)
	c.Delivery.validate(&k)

	k.oneOf("checkpoint.store", c.Checkpoint.Store, "kafka", "file")
	switch c.Checkpoint.Store {
	case "kafka":
		k.topic("checkpoint.topic", c.Checkpoint.Topic)
		if c.Checkpoint.Path != "" {
			k.add("checkpoint.path", "belongs to checkpoint.store: file (the store is kafka)")
		}
		if c.Stdout != nil {
			k.add("checkpoint.store", "must be file with --stdout (got kafka)")
		}
	case "file":
		if c.Checkpoint.Path == "" {
			k.add("checkpoint.path", "is required with checkpoint.store: file")
		}
	}

	atLeast(&k, "monitor.interval", c.Monitor.Interval, time.Second)
	atMost(&k, "monitor.interval", c.Monitor.Interval, time.Hour)
	atLeast(&k, "monitor.retained_warn", c.Monitor.RetainedWarn, 1)
	if c.Monitor.RetainedCritical < c.Monitor.RetainedWarn {
		k.add("monitor.retained_critical", "must be at least monitor.retained_warn, %v (got %v)",
			c.Monitor.RetainedWarn, c.Monitor.RetainedCritical)
	}
	if w := c.Monitor.WALDiskSize; w != 0 {
		atLeast(&k, "monitor.wal_disk_size", w, 64<<20)
	}
	k.oneOf("monitor.breaker", c.Monitor.Breaker, slot.BreakerOff, slot.BreakerAlert, slot.BreakerDrop)
	atLeast(&k, "monitor.breaker_forecast", c.Monitor.BreakerForecast, 0)
	if c.Monitor.BreakerForecast != 0 && c.Monitor.Breaker == slot.BreakerOff {
		k.add("monitor.breaker_forecast", "needs monitor.breaker alert or stop_and_drop_slot (it is none)")
	}
	k.oneOf("cleanup.mode", c.Cleanup.Mode, "none", "delete", "drop_partitions")
	if c.Cleanup.Mode != "none" && c.Source.TimeColumn == "" {
		k.add("source.time_column", "is required with cleanup.mode %s: rows are kept for cleanup.keep by it", c.Cleanup.Mode)
	}
	atLeast(&k, "cleanup.keep", c.Cleanup.Keep, 0)
	atMost(&k, "cleanup.keep", c.Cleanup.Keep, 20*365*24*time.Hour)
	atLeast(&k, "shutdown_grace", c.ShutdownGrace, 0)
	atMost(&k, "shutdown_grace", c.ShutdownGrace, time.Hour)
	if c.HaltLinger < 0 && c.HaltLinger != Forever {
		k.add("halt_linger", "must be at least 0s (got %v)", c.HaltLinger)
	}
	return k.found
}

// validate reports contradictions, and then what replication itself says of its part.
func (c *SourceConfig) validate(k *checks, settings replication.Config) {
	if c.Table != "" && len(c.Tables) > 0 {
		k.add("source.tables", "contradicts source.table: write one of both")
		settings.Tables = c.Tables
	}
	settings.DSN = k.secret("source.dsn", c.DSN, c.DSNFile)
	settings.Password = k.secret("source.password", c.Password, c.PasswordFile)
	if settings.Password != "" && passwordInDSN.MatchString(settings.DSN) {
		k.add("source.password", "contradicts the password in source.dsn: write one of both")
	}
	if settings.DSN == "" {
		if c.DSNFile == "" {
			k.add("source.dsn", "is required")
		}
		settings.DSN = "host=unset"
	}
	if len(settings.Tables) == 0 {
		k.add("source.table", "is required")
		settings.Tables = []string{"unset"}
	}
	k.found = append(k.found, settings.Validate()...)
	k.oneOf("source.snapshot", c.Snapshot, "", "never", "initial")
	// auto is the default of the contract; while bulk catch-up is not delivered it behaves as never.
	k.oneOf("source.bulk_catch_up", c.BulkCatchUp, "auto", "never")
}

var passwordInDSN = regexp.MustCompile(`(?i)^[a-z]+://[^/@:]*:[^/@]+@|[?&\s]password\s*=|^password\s*=`)

// validate reports what the router itself says of its options and of those of records.
func (c *RouterConfig) validate(k *checks, settings router.Config) {
	for _, p := range settings.Validate() {
		k.add(p.Option, "%s", p.Message)
	}
}

// validate reports options of a converter that was not chosen: they would do nothing.
func (c *RecordsConfig) validate(k *checks) {
	for _, o := range []struct {
		prefix, name, delegate                    string
		schemas, delegateSchemas, nulls, delNulls bool
		format, delegateFormat                    string
	}{
		{"key.converter", c.KeyConverter, c.KeyDelegate, c.KeySchemas, c.KeyDelegateSchemas, c.KeyNullDefault, c.KeyDelegateNullDefault, c.KeyDecimalFormat, c.KeyDelegateDecimalFormat},
		{"value.converter", c.ValueConverter, c.ValueDelegate, c.ValueSchemas, c.ValueDelegateSchemas, c.ValueNullDefault, c.ValueDelegateNullDefault, c.ValueDecimalFormat, c.ValueDelegateDecimalFormat},
		{"header.converter", c.HeaderConverter, "", c.HeaderSchemas, false, c.HeaderNullDefault, true, c.HeaderDecimalFormat, "base64"},
	} {
		option := "records." + o.prefix
		if o.name != "json" && (o.schemas || !o.nulls || !strings.EqualFold(o.format, "base64")) {
			k.add(option, "must be json with %s.schemas.enable, decimal.format or replace.null.with.default (got %q)", o.prefix, o.name)
		}
		if o.delegate != "json" && (o.delegateSchemas || !o.delNulls || !strings.EqualFold(o.delegateFormat, "base64")) {
			k.add(option+".delegate.converter.type", "must be json with schemas.enable, decimal.format or replace.null.with.default behind it (got %q)", o.delegate)
		}
	}
}

// validate reports contradictions, and then what the sink itself says of its part, which begins with the field.
func (c *KafkaConfig) validate(k *checks, settings sink.Config, stdout bool) {
	k.secret("kafka.sasl.session_token", c.SASL.SessionToken, c.SASL.SessionTokenFile)
	switch {
	case stdout && len(c.Brokers) > 0:
		k.add("kafka.brokers", "contradicts --stdout: records go to one place")
		return
	case stdout:
		return
	case len(c.Brokers) == 0:
		k.add("kafka.brokers", "is required")
		settings.Brokers = []string{"unset:9092"}
	}
	settings.WindowEvents, settings.WindowBytes = 0, 0 // DeliveryConfig has stricter bounds
	k.found = append(k.found, settings.Validate()...)
}

func (c *DeliveryConfig) validate(k *checks) {
	k.oneOf("delivery.guarantee", c.Guarantee, "at_least_once", "exactly_once?")
	atLeast(k, "delivery.window.events", c.Window.Events, 1)
	atMost(k, "delivery.window.events", c.Window.Events, 10_000_000)
	atLeast(k, "delivery.window.bytes", c.Window.Bytes, 1<<10)
	atMost(k, "delivery.window.bytes", c.Window.Bytes, 64<<30)
	k.oneOf("delivery.on_poison", c.OnPoison, "halt", "dead_letter?", "park_key?")
	only(k, "delivery.dead_letter_topic", c.DeadLetterTopic, "walpost.dead_letter")
}
