package walpost

import (
	"context"

	"github.com/walpost/walpost/internal/badevents"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/router"
)

// BadEvents are the topics of bad events, as of one moment. Close frees the connections.
type BadEvents = badevents.Topics

// A BadEventFilter selects bad events.
type BadEventFilter = badevents.Filter

// A BadEvent is an event that could not be delivered, or that is parked behind such an event.
type BadEvent = badevents.Event

// RetryOptions say how bad events are delivered again.
type RetryOptions = badevents.RetryOptions

// A RetryReport is what a retry of bad events did, or would do.
type RetryReport = badevents.RetryReport

// ValidateKafka is Validate for OpenBadEvents, which needs no database.
func (c *Config) ValidateKafka() Problems {
	without := *c
	without.Source.DSN, without.Source.DSNFile, without.Source.Password, without.Source.PasswordFile = "postgres:///", "", "", ""
	found := without.Validate()
	if c.Stdout != nil {
		found.Add("kafka.brokers", conf.Required, "because bad events are in topics", nil)
	}
	return found
}

// OpenBadEvents reads the topics of bad events. say tells the user something in one line, and progress how far a step is.
// toTopic is where a retry is to deliver events, or "".
func OpenBadEvents(ctx context.Context, cfg Config, toTopic string, say func(text string), progress func(step string, done, total int64)) (*BadEvents, error) {
	wrong := cfg.ValidateKafka()
	if cfg.target(&wrong, "--to-topic", toTopic); len(wrong) > 0 {
		return nil, wrong
	}
	routes, err := router.New(cfg.routing())
	if err != nil {
		return nil, fault.Config(err, "")
	}
	return badevents.Open(ctx, badevents.Config{Kafka: cfg.sink(), Parking: cfg.Delivery.ParkingTopic, Router: routes, Version: cfg.Version, Say: say, Progress: progress})
}
