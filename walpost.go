// Package walpost relays the inserts of a Postgres outbox table to Kafka, for a Go service that wants to run the relay
// inside itself. The walpost program is built on this package.
//
//	cfg := walpost.DefaultConfig()
//	cfg.Source.DSN = walpost.Secret(os.Getenv("DATABASE_URL"))
//	cfg.Source.Table = "public.outbox"
//	cfg.Kafka.Brokers = []string{"kafka:9092"}
//	cfg.Logger = logger // slog.Default() by default
//	r, err := walpost.New(cfg)
//	if err != nil {
//		return err
//	}
//	return r.Run(ctx)
//
// Errors have methods that say what to do about them. If NeedsPerson() bool returns true, retrying
// can't help. If Misconfigured() bool returns true, the configuration must be corrected. Hint()
// string returns the next step.
package walpost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/command/backfill"
	"github.com/walpost/walpost/internal/command/badevents"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/kafka"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/registry"
	"github.com/walpost/walpost/internal/statelog"
	"github.com/walpost/walpost/internal/table"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/router"
	"github.com/walpost/walpost/sink"
	"github.com/walpost/walpost/slot"
)

// A Relay delivers one database's outbox to Kafka. Call Run once. Any goroutine may call Status at
// any time.
type Relay struct {
	cfg      Config
	unnamed  bool // the name is the default
	database string
	rows     table.Source
	source   *replication.Source
	polled   *poll.Source   // nil if the WAL is read
	sends    kafka.Deadline // of the sink, if workers claim rows
	router   *router.Router
	schemas  *registry.Client // nil without a schema registry
	started  atomic.Bool
	created  time.Time

	monitor *slot.Monitor

	mu       sync.Mutex         // guards what Run sets:
	relay    *relay.Relay       // nil before Run
	kafka    *sink.Kafka        // nil with Stdout
	dead     *badevents.Waiting // nil with Stdout
	cleaning *cleanup.Cleaner   // nil if no rows are removed
	breaker  *slot.Breaker      // nil if the breaker is off
}

// New returns a Relay that isn't running yet, or everything that is wrong with cfg. It makes no
// connections and starts nothing.
func New(cfg Config) (*Relay, error) { return prepare(cfg, cfg.Validate()) }

// prepare makes a Relay of a Config with which wrong was found to be wrong.
func prepare(cfg Config, wrong Problems) (*Relay, error) {
	if len(wrong) > 0 {
		return nil, wrong
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	routes, schemas, err := cfg.router()
	if err != nil {
		return nil, err
	}
	from := cfg.replication()
	if from.Messages.On() {
		if err := routes.CheckMessages(from.Messages.Prefix); err != nil {
			return nil, fault.Config(err, "")
		}
	}
	from.Needs = routes.Needs
	database, err := from.Database()
	if err != nil {
		return nil, err
	}
	unnamed := cfg.Name == ""
	cfg.Name = cmp.Or(cfg.Name, cfg.usualName(database))
	if strings.Contains(cfg.Name, "/") {
		return nil, Problems{{Field: "name", Rule: conf.Required, Want: "because the database's name contains a slash"}}
	}
	cfg.Monitor.Tableless = cfg.onlyMessages()
	r := &Relay{
		cfg: cfg, unnamed: unnamed, database: database, rows: table.Source{DB: from.Connection(), Names: from.Names()}, source: replication.NewSource(from), router: routes, schemas: schemas,
		created: time.Now(), monitor: slot.NewMonitor(cfg.Monitor, cfg.Source.Slot, database),
	}
	if cfg.polls() {
		r.rows.Names.Publication = "" // a publication may exist, and says nothing about what is polled
		r.polled = poll.NewSource(r.polling())
	}
	return r, nil
}

// Run delivers events until ctx ends, or until a fault that retrying can't fix; relay.Relay.Run
// describes what it promises at the end. Run also monitors the slot on a separate connection, even
// while nothing is streamed or the relay is halted.
func (r *Relay) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		panic("walpost: Run called twice")
	}
	loop, kafka, free, err := r.open(ctx, r.snapshot(), r.cfg.linger())
	if err != nil {
		return err
	}
	defer free()
	var observe func(slot.Status, slot.Config)
	dead := r.deadLetters(loop)
	var open func(context.Context) ([]string, error)
	if dead != nil {
		open = openEvents(dead.IDs, loop.ParkedEvents)
		defer dead.Close()
	}
	cleaner := r.cleaner(loop, open)
	r.mu.Lock()
	r.relay, r.kafka, r.cleaning, r.dead = loop, kafka, cleaner, dead
	if r.cfg.Monitor.Breaker != slot.BreakerOff && r.polled == nil {
		r.breaker = slot.NewBreaker(r.cfg.Monitor.Breaker, loop.Halt, r.source.DropSlot, r.cfg.Logger)
		observe = r.breaker.Observe
	}
	r.mu.Unlock()

	// The monitor outlives ctx: what a drain or a halt does to the slot is seen too.
	monitoring, stop := context.WithCancel(context.WithoutCancel(ctx))
	var monitor sync.WaitGroup
	monitor.Go(func() { r.watch(monitoring, loop, observe) })
	defer monitor.Wait()
	defer stop()
	beside, end := context.WithCancel(ctx) // not ctx alone: where the relay ends by itself, nobody ends ctx
	defer end()
	if dead != nil {
		monitor.Go(func() { dead.Run(beside) })
	}
	if cleaner != nil {
		monitor.Go(func() { cleaner.Run(beside) })
	}
	return r.runLoop(ctx, loop)
}

// runLoop runs the loop, with the ids of schemas.
func (r *Relay) runLoop(ctx context.Context, loop *relay.Relay) error {
	if r.schemas != nil {
		defer r.schemas.Deliver(ctx, r.cfg.Logger)()
	}
	return loop.Run(ctx)
}

// SetLimits replaces the limits of the section monitor, even during Run: how much WAL the slot may
// retain, how large pg_wal may become, and the forecast that trips the breaker. It ignores the
// fields Interval and Breaker.
func (r *Relay) SetLimits(limits slot.Config) error {
	limits.Interval, limits.Breaker = r.cfg.Monitor.Interval, r.cfg.Monitor.Breaker
	if wrong := slices.Concat(conf.Check("monitor", &limits), limits.Validate()); len(wrong) > 0 {
		return wrong
	}
	r.monitor.SetLimits(limits)
	return nil
}

// snapshot is what Run publishes ahead of the stream; nil for nothing.
func (r *Relay) snapshot() *relay.Copying {
	if !r.source.Config().Copies() || r.polled != nil { // a source that polls begins with the oldest rows itself
		return nil
	}
	tables := r.tables()
	if bound, err := pg.ParseBound(r.cfg.Source.Snapshot); err == nil {
		tables.After = bound.XID
	}
	return &relay.Copying{Origin: checkpoint.OriginSnapshot, Tables: tables, After: tables.After}
}

// open makes the loop of a Run or a Recover. free closes its store, and its reader of the parking topic.
func (r *Relay) open(ctx context.Context, copying *relay.Copying, linger time.Duration) (loop *relay.Relay, kafka *sink.Kafka, free func(), err error) {
	to, kafka, err := r.openSink(true)
	if err != nil {
		return nil, nil, nil, err
	}
	store, free, err := r.openStore()
	if err != nil {
		return nil, nil, nil, errors.Join(err, to.Close(ctx))
	}
	cfg := r.loopConfig(copying, linger)
	if kafka != nil && r.cfg.exactlyOnce() {
		cfg.Committer, cfg.Peek = kafka, store.Peek
	}
	var kept relay.Store = store
	if r.cfg.claims() { // a row waits in the table instead of being parked
		kept = &claimStore{Store: store, memory: map[string][]byte{}}
	} else if kafka != nil {
		parked, freeStore := r.parkingLog(), free
		parked.Upload = kafka.Upload
		cfg.Parking, free = parked, func() {
			closeWithin(parked.Close)
			freeStore()
		}
	}
	return relay.New(cfg, r.reads(), remarks{r.router, r.source}, to, kept), kafka, free, nil
}

// parkingLog is the topic of parked events. Its writer is the holder of the slot.
func (r *Relay) parkingLog() *statelog.Log {
	to := r.cfg.sink()
	return statelog.New(statelog.Config{
		Config: to.Config, Topic: to.Parking, Settings: statelog.Letters, TransactionalID: r.cfg.Name, Codec: to.Codec(), Logger: to.Logger, Hooks: to.Hooks,
	})
}

// closeLimit is how long the end of a transaction in the parking topic is waited for. The relay has waited for its records before.
const closeLimit = 2 * time.Second

func closeWithin(end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = end(ctx) // what does not end in time is aborted by the brokers
}

func (r *Relay) loopConfig(copying *relay.Copying, linger time.Duration) relay.Config {
	var tables []string
	for _, t := range r.rows.Names.Tables {
		tables = append(tables, t.Schema+"."+t.Name) // as cdc.Relation prints it
	}
	return relay.Config{
		Name:            r.cfg.Name,
		Window:          r.cfg.Delivery.Window,
		ShutdownGrace:   r.cfg.ShutdownGrace,
		HaltLinger:      linger,
		MonitorInterval: r.cfg.Monitor.Interval,
		AcceptGap:       r.cfg.AcceptGap,
		Create:          r.cfg.Source.Create || r.polled != nil,
		Copying:         copying,
		Poison: relay.Poison{
			Policies: r.cfg.Delivery.OnPoison, Topic: r.cfg.Delivery.DeadLetterTopic, Version: r.cfg.Version,
			ParkingTopic: r.cfg.Delivery.ParkingTopic, ParkLimit: r.cfg.Delivery.ParkLimit, Tables: tables,
		},
		SkipSnapshot: r.cfg.Source.Snapshot == "never",
		Observer:     r.cfg.Observer,
		Logger:       r.cfg.Logger,
	}
}

// tables reads the rows that are in the tables.
func (r *Relay) tables() *backfill.Tables {
	t := &backfill.Tables{
		Source: r.source, From: r.rows, Columns: r.router.Columns, OrderColumn: r.cfg.Source.OrderColumn, Unordered: r.cfg.Unordered, Logger: r.cfg.Logger,
	}
	if r.polled != nil {
		t.Begin = pollSource{r.polled}.begin
	}
	return t
}

// slotReader reads the slot.
func (r *Relay) slotReader() *slot.Reader {
	return slot.NewReader(r.rows.DB, r.cfg.Source.Slot)
}

// ReadSlot reads the slot once. If apart isn't 0, it reads the slot again after that time, to add a
// forecast.
func ReadSlot(ctx context.Context, cfg Config, apart time.Duration) (slot.Status, error) {
	wrong := cfg.ValidateDatabase()
	cfg.needsSlot(&wrong, "status") // walpost status calls ReadPoll instead
	r, err := prepare(cfg, wrong)
	if err != nil {
		return slot.Status{}, err
	}
	return slot.Once(ctx, r.cfg.Monitor, r.cfg.Source.Slot, r.database, r.slotReader(), apart)
}

// linger is how long a halted relay stays: with a breaker at least until the breaker can trip.
func (c *Config) linger() time.Duration {
	long := time.Duration(c.HaltLinger)
	if long >= 0 {
		long = max(long, c.Monitor.TripsWithin())
	}
	return long
}

// cleaner makes the cleaner of old rows; nil where none is wanted. It asks loop how far the relay is, and open which events' rows stay.
func (r *Relay) cleaner(loop *relay.Relay, open func(context.Context) ([]string, error)) *cleanup.Cleaner {
	cfg := cleanup.Settings{Config: r.cfg.Cleanup}
	if cfg.Mode == cleanup.None {
		return nil
	}
	if cfg.Kept = open; open != nil {
		cfg.IDColumn = func(rel *cdc.Relation) string { return r.router.Columns(rel).ID }
	}
	cfg.Tables, cfg.TimeColumn, cfg.Slot = r.rows.Names.Tables, r.cfg.Source.TimeColumn, r.cfg.Source.Slot
	cfg.Publication = r.rows.Names.Publication
	cfg.Connect, cfg.Logger = r.rows.DB.ConnectForTables, r.cfg.Logger
	cfg.Progress = func() cleanup.Progress { return progress(loop.Status()) }
	if r.polled != nil {
		cfg.Below = func() uint64 { return deliveredBelow(loop.Status()) }
	}
	return cleanup.New(cfg)
}

// deadLetters is what is known of the dead letter topic beside loop; nil if there are no topics.
func (r *Relay) deadLetters(loop *relay.Relay) *badevents.Waiting {
	if r.cfg.Stdout != nil {
		return nil
	}
	to := r.cfg.sink()
	return badevents.NewWaiting(badevents.WaitingConfig{
		Kafka: to.Config, Topic: to.DeadLetters, Name: r.cfg.Name, Database: r.database,
		Written: func() bool { return to.Bury || len(loop.Status().DeadLetters) > 0 },
	})
}

// progress is how far the relay is: in a session only while it reads the stream. Its epoch names the session, as each takes the next one.
func progress(s relay.Status) cleanup.Progress {
	if !s.InStream {
		return cleanup.Progress{}
	}
	p := cleanup.Progress{Session: s.Epoch}
	if !s.Confirmed.IsNumber() {
		p.Confirmed = s.Confirmed.LSN()
	}
	if len(s.Accepted) > 0 {
		p.Gap = s.Accepted[0].Token
	}
	return p
}

// openSink opens the sink. commits says that its user is a loop, which commits what it sends with exactly_once, and has the observer.
func (r *Relay) openSink(commits bool) (relay.Sink, *sink.Kafka, error) {
	if r.cfg.Stdout != nil {
		return sink.NewStdout(r.cfg.Stdout), nil, nil
	}
	cfg := r.cfg.sink()
	if r.cfg.claims() {
		cfg.Until = &r.sends
	}
	cfg.Observed = commits && r.cfg.Observer != nil
	if commits && r.cfg.exactlyOnce() {
		cfg.TransactionalID, cfg.Checkpoints = r.cfg.transactionalID(), r.cfg.Checkpoint.Topic
	}
	kafka, err := sink.Open(cfg)
	if err != nil {
		return nil, nil, err
	}
	return kafka, kafka, nil
}

// A store is a relay.Store that can also be read without an effect.
type store interface {
	relay.Store
	Look(ctx context.Context, name string) (map[string][]byte, error)
	// Peek is Load without a wait for open transactions of Kafka. It may give an older record.
	Peek(ctx context.Context, name string) (map[string][]byte, error)
	// LookNames is Look for all relays whose names start with prefix.
	LookNames(ctx context.Context, prefix string) (map[string][]byte, error)
}

func (r *Relay) openStore() (kept store, free func(), err error) {
	defer func() {
		if err == nil && r.unnamed && len(r.rows.Names.Tables) > 0 {
			kept = namedStore{kept, r}
		}
	}()
	if r.cfg.Checkpoint.Store == "file" {
		file := statelog.NewFileStore(r.cfg.Checkpoint.Path)
		return file, func() {
			if err := file.Close(); err != nil {
				r.cfg.Logger.Warn("closing the checkpoint file", "err", err)
			}
		}, nil
	}
	to := r.cfg.sink()
	kafka, err := statelog.NewKafkaStore(statelog.Config{Config: to.Config, Topic: r.cfg.Checkpoint.Topic, Logger: to.Logger})
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint store: %w", err)
	}
	return kafka, func() { closeWithin(kafka.Close) }, nil
}

// pgSource is replication.Source as package relay wants it: its sessions behind an interface.
type pgSource struct{ *replication.Source }

func (s pgSource) Open(ctx context.Context, create, replaceLost bool) (relay.Session, error) {
	return opened(s.Source.Open(ctx, create, replaceLost))
}

// opened is what the Open of a source returns. A nil pointer in it would be a Session that is not nil.
func opened[S relay.Session](session S, err error) (relay.Session, error) {
	if err != nil {
		return nil, err
	}
	return session, nil
}

// remarks is a router that also says what the source passes over.
type remarks struct {
	*router.Router
	source *replication.Source
}

func (r remarks) Remarks(each func(what string, severe bool, count uint64, last string)) {
	r.Router.Remarks(each)
	r.source.Remarks(each)
}

// Status is a copy of the relay's state at one moment.
type Status struct {
	relay.Status
	Name string      `json:"name"`
	Slot slot.Status `json:"-"`
	// Poll is nil if the source is the WAL. If it is not nil, Slot is empty.
	Poll *poll.Status `json:"-"`
	// Topics counts acknowledged events by topic; those beyond the first 200 together, as "other".
	Topics map[string]uint64 `json:"topics"`
	Window relay.Window      `json:"-"`
	// Bury reports whether bad events go to the dead letter topic, for at least one reason.
	Bury bool `json:"-"`
	// OpenDeadLetters counts the dead letters to retry or drop; nil before Run and without topics.
	OpenDeadLetters *badevents.Count `json:"-"`
	// Park reports whether bad events have their keys parked, for at least one reason.
	Park bool `json:"-"`
	// Abandoned is how often a partition got a new producer id after a response was lost. Each
	// time, events may have been delivered twice.
	Abandoned uint64 `json:"-"`
	// Cleanup is nil if no cleanup is configured, and before Run.
	Cleanup *cleanup.Status `json:"cleanup"`
	// Breaker is nil if monitor.breaker is none, and before Run.
	Breaker *slot.BreakerStatus `json:"breaker"`
}

// judge makes the slot's danger the state, unless the relay's own state is worse. Ready does not change: events flow until the
// slot is lost. A transaction that delays a relay that polls is the reason, also if the relay streams.
func (s *Status) judge() {
	if p := s.Poll; p != nil {
		if s.State == relay.Streaming && p.Backlog != nil && p.Backlog.Blocker != nil {
			s.Reason = "rows wait for " + p.Backlog.Blocker.String()
		}
		return
	}
	if s.Slot.Severity != slot.Critical || !relay.SlotAtRisk.Worse(s.State) {
		return
	}
	s.Reason = strings.TrimSuffix(s.Slot.Reasons[0]+"; "+s.Reason, "; ")
	s.State = relay.SlotAtRisk
}

// Status returns a copy of the relay's state. Before Run, its State is relay.Starting.
func (r *Relay) Status() Status {
	r.mu.Lock()
	loop, kafka, dead, cleaning, breaker := r.relay, r.kafka, r.dead, r.cleaning, r.breaker
	r.mu.Unlock()
	st := Status{Name: r.cfg.Name, Window: r.cfg.Delivery.Window, Bury: r.cfg.Delivery.OnPoison.Bury(), Park: r.cfg.Delivery.OnPoison.Park()}
	st.Status = relay.Status{State: relay.Starting, Reason: "starting", Since: age.Since{Time: r.created}}
	if loop != nil {
		st.Status = loop.Status()
	}
	if r.polled != nil {
		st.Poll = new(r.polled.Status())
	} else {
		st.Slot = r.monitor.Status(time.Now(), st.Opened)
	}
	if kafka != nil {
		s := kafka.Status()
		st.Topics, st.Abandoned = s.Delivered, s.Abandoned
	}
	if dead != nil {
		st.OpenDeadLetters = new(dead.Count())
	}
	if cleaning != nil {
		st.Cleanup = new(cleaning.Status())
	}
	if breaker != nil {
		st.Breaker = new(breaker.Status())
	}
	st.judge()
	return st
}
