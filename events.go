package walpost

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"

	"github.com/walpost/walpost/internal/command/backfill"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/command/explain"
	"github.com/walpost/walpost/internal/command/verify"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/deadletter"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/lib/topicname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/relay"
)

// ExplainOptions select the rows to explain. Set exactly one of ID, Last and JSON.
type ExplainOptions = explain.Options

// An Explanation is the record that a row produces, or the reason that it produces none.
type Explanation = explain.Explanation

// ErrNoRow means that the requested row is not in the table.
var ErrNoRow = explain.ErrNoRow

// Explain routes rows as Run would, and passes each Explanation to show. The Explanation is valid
// only during that call. Explain writes nothing to the database or Kafka. The configuration must
// have exactly one table.
func Explain(ctx context.Context, cfg Config, opts ExplainOptions, show func(*Explanation) error) error {
	if err := cfg.needsTable("explain", ""); err != nil {
		return err
	}
	r, err := prepare(cfg, cfg.ValidateDatabase())
	if err != nil {
		return err
	}
	by := explain.Config{From: r.rows, Router: r.router, OrderColumn: cfg.Source.OrderColumn, Halted: cfg.haltedByRow()}
	if cfg.Stdout == nil && len(cfg.Kafka.Brokers) > 0 {
		to := cfg.sink()
		by.Kafka, by.Compression = &to.Config, to.Compression
	}
	return explain.Explain(ctx, by, opts, show)
}

// VerifyOptions say what Verify compares, and how much it reports.
type VerifyOptions = verify.Options

// A VerifyReport is what Verify found.
type VerifyReport = verify.Report

// DefaultVerifyWait is the default of VerifyOptions.Wait.
const DefaultVerifyWait = verify.DefaultWait

// Verify compares the tables with the topics, and changes nothing. It waits until the relay has
// passed the rows that it compares, so it needs the slot or, if the relay polls, the checkpoint.
// Differences aren't an error.
func Verify(ctx context.Context, cfg Config, opts VerifyOptions) (*VerifyReport, error) {
	if err := cfg.needsTable("verify", ""); err != nil {
		return nil, err
	}
	wrong := cfg.Validate()
	if cfg.Stdout != nil {
		wrong.Add("kafka.brokers", conf.Required, "because verify reads the topics", nil)
	}
	cfg.Records.PayloadCheck = "none" // a row that is in Kafka may have fitted a former version
	r, err := prepare(cfg, wrong)
	if err != nil {
		return nil, err
	}
	if opts.Say == nil {
		opts.Say = func(string) {}
	}
	polled, free, err := r.verified()
	if err != nil {
		return nil, err
	}
	defer free()
	to, say := cfg.sink(), opts.Say
	bound, _ := pg.ParseBound(cfg.Source.Snapshot) // another value is no bound
	return verify.Run(ctx, verify.Config{
		Polled: polled, From: r.rows, Router: r.router, Kafka: &to.Config, Slot: r.cfg.Source.Slot,
		OrderColumn: cfg.Source.OrderColumn, TimeColumn: cfg.Source.TimeColumn, Bound: bound,
		Unfinished: r.unfinished,
		Elsewhere: func(ctx context.Context) (func(table, id string) verify.Place, error) {
			defer func() { say = func(string) {} }() // the second look says nothing new
			return r.elsewhere(ctx, say)
		},
	}, opts)
}

// unfinished says that a snapshot or a recover is not finished.
func (r *Relay) unfinished(ctx context.Context) (string, error) {
	rec, err := r.stored(ctx)
	if err != nil || rec == nil || rec.Copy == nil {
		return "", err
	}
	return fmt.Sprintf("the %s is not finished: %d rows of the table are published", rec.Copy.Origin, rec.Copy.Rows), nil
}

// elsewhere reads the dead letter topic and the parked event topic, and returns a function that says what they have of an event of the
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
	add := func(place verify.Place, l *deadletter.Letter, state deadletter.State) {
		switch of := (event{l.Table, l.ID}); {
		case state == deadletter.Open:
			place.Open = true
			places[of] = place
		case state == deadletter.Dropped && !places[of].Open:
			place.Name += ", dropped by a person"
			places[of] = place
		}
	}
	for _, e := range dead.Fold.Entries() {
		if e.IsOf(r.cfg.Name, r.database) {
			add(verify.Place{Name: "dead letter"}, &e.Letter, e.State)
		}
	}
	for _, e := range parked.Events() {
		if e.Name == r.cfg.Name {
			add(verify.Place{Name: "parked event", Parked: true}, &e.Letter, e.State)
		}
	}
	return func(table, id string) verify.Place { return places[event{table, id}] }, nil
}

// ReplayOptions say which rows Replay publishes again, and how. ReplayFilter selects the rows.
type (
	ReplayOptions = backfill.ReplayOptions
	ReplayFilter  = backfill.Filter
)

// A ReplayReport says what Replay has published, or would publish.
type ReplayReport = backfill.ReplayReport

// Replay publishes rows of the tables again, with the header walpost.origin: replay. A relay may
// run at the same time. Replay changes neither the slot nor the checkpoint. It keeps its progress
// in the file opts.State, from which it continues after an interruption, and removes the file at
// the end.
func Replay(ctx context.Context, cfg Config, opts ReplayOptions) (*ReplayReport, error) {
	if err := cfg.needsTable("replay", ""); err != nil {
		return nil, err
	}
	cfg.Delivery.OnPoison = relay.Policies{relay.DefaultPolicy: relay.PolicyHalt} // a replay writes no dead letters
	wrong := cfg.Validate()
	cfg.target(&wrong, "--to-topic", opts.ToTopic)
	r, err := prepare(cfg, wrong)
	if err != nil {
		return nil, err
	}
	rec, err := r.stored(ctx)
	if err != nil {
		return nil, err
	}
	if rec != nil && rec.RunID != "" {
		r.router.SetRunID(rec.RunID)
	}
	if r.schemas != nil && !opts.DryRun {
		r.schemas.Produce(true)
	}
	what := backfill.Replaying{
		ReplayOptions: opts, Router: r.router, Window: cfg.Delivery.Window, Grace: cfg.ShutdownGrace,
		Sink: func() (relay.Sink, error) { to, _, err := r.openSink(false); return to, err },
	}
	if cfg.Stdout == nil {
		to := cfg.sink()
		what.Kafka = &to.Config
	}
	if cfg.Stdout == nil && opts.ToTopic == "" { // in another topic, no order is at stake
		what.Parked = func(ctx context.Context) (backfill.Aside, error) {
			at, err := r.elsewhere(ctx, opts.Say)
			return func(table, id string, _ bool) bool { place := at(table, id); return place.Parked && place.Open }, err
		}
	}
	state := statelog.NewFileStore(cmp.Or(opts.State, r.replayState(&opts)))
	const key = "replay/state"
	what.Load = func() ([]byte, error) {
		look := state.Load
		if opts.DryRun {
			look = state.Look // without the lock, which makes a file
		}
		values, err := look(ctx, "replay")
		return values[key], stateError(err)
	}
	what.Save = func(value []byte) error {
		if value == nil {
			return stateError(state.Remove())
		}
		return stateError(state.Save(ctx, key, value))
	}
	tables := r.tables()
	tables.TimeColumn = cfg.Source.TimeColumn
	defer state.Close() //nolint:errcheck // the lock ends with it
	return backfill.Replay(ctx, tables, what)
}

func stateError(err error) error {
	if err == nil {
		return nil
	}
	hint := fault.Hint(err)
	if fault.NeedsPerson(err) { // the file is damaged
		hint = "Remove the file to begin again, or name another one with --state."
	} else if hint == "" || !fault.Retryable(err) && fault.Passing(err, true) { // the file cannot be there
		hint = "Name a file in a folder that can be written with --state."
	}
	return fault.WithHint(fmt.Errorf("the state of the replay: %w", err), hint)
}

// replayState names the file of a replay by what it publishes, so that the same call finds it again.
func (r *Relay) replayState(opts *ReplayOptions) string {
	h := fnv.New32a()
	_ = json.NewEncoder(h).Encode([]any{r.cfg.Name, r.rows.Names.Tables, opts.Filter, opts.ToTopic}) // it never fails
	return fmt.Sprintf("walpost-replay-%08x.json", h.Sum32())
}

// BadEvents is the content of the dead letter topic and the parking topic at one moment. Close
// closes the connections.
type BadEvents = badevents.Topics

// A BadEventFilter selects bad events.
type BadEventFilter = badevents.Filter

// A BadEvent is an event that could not be delivered, or that is parked behind such an event.
type BadEvent = badevents.Event

// RetryOptions say how a retry delivers bad events.
type RetryOptions = badevents.RetryOptions

// A RetryReport says what a retry of bad events did, or would do.
type RetryReport = badevents.RetryReport

// ValidateKafka is Validate for OpenBadEvents, which needs no database.
func (c *Config) ValidateKafka() Problems {
	without := *c
	without.Source.DSN, without.Source.DSNFile = "postgres:///", ""
	without.Source.ForgetPassword()
	found := without.Validate()
	if c.Stdout != nil {
		found.Add("kafka.brokers", conf.Required, "because bad events are in topics", nil)
	}
	return found
}

// OpenBadEvents reads the dead letter topic and the parked event topic. The events of other relays
// are left out, unless a filter asks for them. say is called with single lines for the user, and
// progress with the progress of a step. toTopic is the topic to which a retry delivers events; ""
// stands for their original topics.
func OpenBadEvents(ctx context.Context, cfg Config, toTopic string, say func(text string), progress func(step string, done, total int64)) (*BadEvents, error) {
	wrong := cfg.ValidateKafka()
	if cfg.target(&wrong, "--to-topic", toTopic); len(wrong) > 0 {
		return nil, wrong
	}
	routes, schemas, err := cfg.router()
	if err != nil {
		return nil, err
	}
	routes.SendInstead(toTopic)
	produce := func(bool) {}
	if schemas != nil {
		produce = schemas.Produce
	}
	database := ""
	if from := cfg.replication(); from.DSN != "" {
		from.ForgetPassword() // the name of the database needs no secret
		if database, err = from.Database(); err != nil && cfg.Name == "" {
			return nil, err
		}
		cfg.Name = cmp.Or(cfg.Name, cfg.usualName(database))
	}
	return badevents.Open(ctx, badevents.Config{Name: cfg.Name, Database: database, Kafka: cfg.sink(), Parking: cfg.Delivery.ParkingTopic, Router: routes, Produce: produce, Version: cfg.Version, Say: say, Progress: progress})
}

// ValidateBrokers is Validate for OpenConsumed, which needs only the brokers.
func (c *Config) ValidateBrokers() Problems {
	found := c.Kafka.Validate()
	if c.Stdout != nil {
		found.Add("kafka.brokers", conf.Required, "because dead letters are in a topic", nil)
	}
	return found
}

// OpenConsumed reads the dead letter topic of consumers (package inbox/consumer). toTopic, say and
// progress are as in OpenBadEvents.
func OpenConsumed(ctx context.Context, cfg Config, topic, toTopic string, say func(text string), progress func(step string, done, total int64)) (*BadEvents, error) {
	wrong := cfg.ValidateBrokers()
	wrong.Try("--dead-letter-topic", topicname.Check(topic))
	if toTopic == topic {
		wrong.Add("--to-topic", conf.MustBe, "a topic other than --dead-letter-topic", toTopic)
	} else {
		cfg.target(&wrong, "--to-topic", toTopic)
	}
	cfg.Delivery.DeadLetterTopic = topic
	if len(wrong) > 0 {
		return nil, wrong
	}
	to := cfg.sink()
	to.Parking, to.Park, to.Topics.Create = "", false, false
	return badevents.Open(ctx, badevents.Config{Consumers: true, Kafka: to, Version: cfg.Version, Say: say, Progress: progress})
}
