package walpost

import (
	"context"
	"fmt"

	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/badevents"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/verify"
)

// VerifyOptions say what Verify compares, and how much it tells.
type VerifyOptions = verify.Options

// A VerifyReport is what Verify has found.
type VerifyReport = verify.Report

// DefaultVerifyWait is the default of VerifyOptions.Wait.
const DefaultVerifyWait = verify.DefaultWait

// Verify compares the tables with the topics, and changes nothing. It needs the slot, because it waits until the slot has passed
// what it reads. Differences are no error.
func Verify(ctx context.Context, cfg Config, opts VerifyOptions) (*VerifyReport, error) {
	wrong := cfg.Validate()
	if cfg.Stdout != nil {
		wrong.Add("kafka.brokers", conf.Required, "because verify reads the topics", nil)
	}
	r, err := prepare(cfg, wrong)
	if err != nil {
		return nil, err
	}
	if opts.Say == nil {
		opts.Say = func(string) {}
	}
	to, say := cfg.sink(), opts.Say
	return verify.Run(ctx, verify.Config{
		From: r.rows, Router: r.router, Kafka: &to.Config, Slot: cfg.Source.Slot,
		OrderColumn: cfg.Source.OrderColumn, TimeColumn: cfg.Source.TimeColumn,
		Unfinished: r.unfinished,
		Elsewhere: func(ctx context.Context) (func(table, id string) verify.Place, error) {
			defer func() { say = func(string) {} }() // the second look says nothing new
			return r.elsewhere(ctx, say)
		},
	}, opts)
}

// remembered is the newest checkpoint record, or nil. A running relay is not disturbed.
func (r *Relay) remembered(ctx context.Context) (*checkpoint.Record, error) {
	store, free, err := r.openStore()
	if err != nil {
		return nil, err
	}
	defer free()
	values, err := store.Look(ctx, r.cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	rec, _, err := checkpoint.Newest(r.cfg.Name, values)
	return rec, err
}

// unfinished says that a snapshot or a recover is not finished.
func (r *Relay) unfinished(ctx context.Context) (string, error) {
	rec, err := r.remembered(ctx)
	if err != nil || rec == nil || rec.Copy == nil {
		return "", err
	}
	return fmt.Sprintf("the %s is not finished: %d rows of the table are published", rec.Copy.Origin, rec.Copy.Rows), nil
}

// elsewhere reads the topics of dead letters and of parked events, and returns a function that says what they have of an event of the
// relay. If the user may not read a topic, its events count as missing, and say tells it.
func (r *Relay) elsewhere(ctx context.Context, say func(text string)) (func(table, id string) verify.Place, error) {
	to := r.cfg.sink()
	client, err := to.NewClient()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	nobody := func(int64, int64) {}
	dead := badevents.NewLetters(client, r.cfg.Delivery.DeadLetterTopic, nobody)
	parked := badevents.NewParked(client, r.cfg.Delivery.ParkingTopic, nobody)
	for topic, read := range map[string]func(context.Context) error{dead.Topic: dead.Read, parked.Topic: parked.Read} {
		if err := read(ctx); kafka.Denied(err) {
			say(fmt.Sprintf("topic %s cannot be read, so its events count as missing: grant Read and Describe on it (%v)", topic, err))
		} else if err != nil {
			return nil, err
		}
	}
	type event struct{ table, id string }
	places := map[event]verify.Place{}
	add := func(name string, l *deadletter.Letter, state deadletter.State) {
		switch of := (event{l.Table, l.ID}); {
		case state == deadletter.Open:
			places[of] = verify.Place{Name: name, Open: true}
		case state == deadletter.Dropped && !places[of].Open:
			places[of] = verify.Place{Name: name + ", dropped by a person"}
		}
	}
	for _, e := range dead.Fold.Entries() {
		add("dead letter", &e.Letter, e.State)
	}
	if lot := parked.Lots[r.cfg.Name]; lot != nil {
		for _, key := range lot.Keys() {
			for _, e := range lot.Entries(key) {
				add("parked event", e.Letter, e.State)
			}
		}
	}
	return func(table, id string) verify.Place { return places[event{table, id}] }, nil
}
