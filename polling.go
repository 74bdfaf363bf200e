package walpost

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/cleanup"
	"github.com/walpost/walpost/doctor"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/command/verify"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
	"github.com/walpost/walpost/slot"
)

// polls reports whether the table is read by SQL.
func (c *Config) polls() bool { return c.Source.Kind == KindPoll }

// counts says what the positions of a source that polls count; nil for a source that reads a slot.
func (c *Config) counts() *cdc.Polled {
	if !c.polls() {
		return nil
	}
	return c.Source.Poll.Counts()
}

// needsSlot adds a problem if the command needs a slot, and the configuration has none.
func (c *Config) needsSlot(found *Problems, command string) {
	if c.polls() {
		found.Add("source.kind", conf.MustBe, "wal for walpost "+command, c.Source.Kind)
	}
}

// polling is the configuration as the source wants it that polls.
func (r *Relay) polling() poll.Settings {
	return poll.Settings{
		Config: r.cfg.Source.Poll, Name: r.cfg.Name, DB: r.rows.DB, Database: r.database, Table: r.rows.Names.Tables[0], OrderColumn: r.cfg.Source.OrderColumn,
		TimeColumn: r.cfg.Source.TimeColumn, Snapshot: r.cfg.Source.Snapshot, Needs: r.router.Needs, Logger: r.cfg.Logger,
		Bound: r.sends.Set, Unreachable: r.unreachable,
		ID:  func(rel *cdc.Relation) string { return r.router.Columns(rel).ID },
		Key: func(rel *cdc.Relation) string { return r.router.Columns(rel).Key },
	}
}

// reads is what the relay reads.
func (r *Relay) reads() relay.Source {
	if r.cfg.claims() {
		return claimSource{pollSource{r.polled}, r.polled.Claims()}
	}
	if r.polled != nil {
		return pollSource{r.polled}
	}
	return pgSource{r.source}
}

// unreachable reports whether the brokers cannot be reached, as far as the sink of a Run knows.
func (r *Relay) unreachable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kafka != nil && r.kafka.Unreachable()
}

// pollSource is poll.Source as package relay wants it.
type pollSource struct{ *poll.Source }

func (s pollSource) Open(ctx context.Context, create, replaceLost bool) (relay.Session, error) {
	return opened(s.Source.Open(ctx, create, replaceLost))
}

// begin makes a beginning behind everything that has committed by now.
func (s pollSource) begin(ctx context.Context) (relay.Session, error) {
	return opened(s.OpenAtBorder(ctx))
}

// checkPolling changes a check for a relay that polls.
func (r *Relay) checkPolling(run *doctor.Run) {
	if r.polled == nil {
		return
	}
	set := r.polling()
	run.Postgres = set.Check
	if set.Claims() {
		run.Retries, run.Retried = "is retried as source.poll.attempts says, delays its key meanwhile, and then ", "If finished_at of the row is set, walpost doesn't read it again:"
		if run.Kafka != nil {
			run.Kafka.Parking = "" // no key is parked
		}
	}
}

// pollSetup is what SetupSQL prints for a source that polls. If run is true, it makes what poll.Apply makes.
func (r *Relay) pollSetup(ctx context.Context, run bool) (sql string, made bool, why, err error) {
	set, outbox, table := r.polling(), r.source.Config(), ""
	connected, exists := "", false // exists is of the role that is to have the rights
	conn, why := set.DB.ConnectSQL(ctx)
	var f *poll.Facts
	if why == nil {
		defer pg.Close(conn)
		if f, why = set.Describe(ctx, conn); why == nil {
			connected, exists = f.Server.Role, true
			if !f.Table.Exists() {
				f = nil
			}
		}
	}
	if f == nil {
		table = replication.SetupSQL(*outbox, replication.SetupOptions{Tables: []pgname.Table{set.Table}}) + "\n"
	}
	rights := ""
	if role := r.cfg.SetupRole; role != "" {
		var has poll.RoleFacts
		if why == nil {
			if has, err = set.DescribeRole(ctx, conn, f, role); err != nil {
				return "", false, nil, err
			}
		}
		rights, exists = set.MissingRights(has, role), has.Exists
	}
	cleaner := cmp.Or(r.cfg.SetupRole, connected, replication.FullSetup(*outbox).Role)
	asked := conn
	if !exists {
		asked = nil
	}
	cleaning, index, err := outbox.CleanupSQL(ctx, asked, cleaner, f == nil)
	if err != nil {
		return "", false, nil, err
	}
	if run && why == nil {
		after := rights
		if cleaner != connected { // a role cannot give itself a right, and has all rights on its own tables
			after += cleaning
		}
		if made, err = set.Apply(ctx, conn, f, table, after); err != nil {
			err = pg.Classify(fmt.Errorf("create what polling needs: %w", err))
		}
	}
	return table + set.SetupSQL(f) + rights + cleaning + index, made, why, err
}

// applyPolling makes what polling needs, and returns what it made.
func (r *Relay) applyPolling(ctx context.Context) ([]string, error) {
	_, made, why, err := r.pollSetup(ctx, true)
	if why != nil || err != nil || !made {
		return nil, cmp.Or(why, err)
	}
	return []string{"what polling needs of table " + r.rows.Names.Tables[0].String()}, nil
}

// watch examines what the relay reads, until ctx ends.
func (r *Relay) watch(ctx context.Context, loop *relay.Relay, observe func(slot.Status, slot.Config)) {
	if r.polled != nil {
		r.polled.Watch(ctx, r.cfg.Monitor.Interval, func() cdc.Position { return delivered(loop.Status()) })
		return
	}
	r.monitor.Run(ctx, r.slotReader(), observe, r.cfg.Logger)
}

// delivered is the position below which a relay has delivered everything, 0 if it does not know.
func delivered(s relay.Status) cdc.Position {
	if s.State == relay.Standby {
		return 0 // another process delivers
	}
	return max(s.Confirmed, s.Checkpoint)
}

// lowXIDs are ids that rows have which are older than all transactions.
const lowXIDs = 3

// haltedByRow is Halted of explain.
func (c *Config) haltedByRow() string {
	if !c.polls() {
		return ""
	}
	return "If run has halted on this row, repair the configuration, or update or delete the row. Then start walpost again: it reads the row again."
}

// deliveredBelow is the id below which the rows of all transactions are delivered, 0 if that is not known.
func deliveredBelow(s relay.Status) uint64 {
	if !s.InStream || s.Confirmed <= cdc.Numbered(lowXIDs) {
		return 0
	}
	return s.Confirmed.Number()
}

// ReadPoll reads the state of the table that a relay polls: which rows are undelivered, and what
// delays them. It assumes that all rows below the position at are delivered. If at is 0, ReadPoll
// uses the checkpoint's position. If workers claim rows, the table itself records which rows are
// delivered, and at has no effect.
func ReadPoll(ctx context.Context, cfg Config, at cdc.Position) (poll.Status, error) {
	wrong := cfg.ValidateDatabase()
	if at == 0 && !cfg.claims() {
		wrong = cfg.Validate()
	}
	r, err := prepare(cfg, wrong)
	if err != nil {
		return poll.Status{}, err
	}
	s := r.polled.Status()
	if at == 0 && !cfg.claims() {
		if at, err = r.storedPosition(ctx); err != nil {
			return s, err
		}
	}
	s.Backlog, err = r.polled.Backlog(ctx, at)
	return s, err
}

// storedPosition is the position of the newest checkpoint of a relay that polls.
func (r *Relay) storedPosition(ctx context.Context) (cdc.Position, error) {
	rec, err := r.stored(ctx)
	switch {
	case err != nil:
		return 0, err
	case rec == nil:
		return 0, fault.WithHint(fmt.Errorf("no checkpoint of %s is stored: the relay has delivered nothing yet", r.cfg.Name), "The first walpost run writes it.")
	case rec.Polled == nil:
		return 0, fault.Config(fmt.Errorf("checkpoint %s was written for slot %q, not for polling", rec.Key(), rec.Slot), "")
	}
	if rec.Intended() { // its position is that of the former source
		return 0, advice.Of(rec.Unfinished())
	}
	return rec.Position, nil
}

// stored is the newest checkpoint, nil for none.
func (r *Relay) stored(ctx context.Context) (*checkpoint.Record, error) {
	store, free, err := r.openStore()
	if err != nil {
		return nil, err
	}
	defer free()
	stored, err := readStore(ctx, store.Look, r.cfg.Name)
	return stored.Rec, err
}

// readStore reads what a store has of a relay. load is the store's Load or Look.
func readStore(ctx context.Context, load func(ctx context.Context, name string) (map[string][]byte, error), name string) (checkpoint.Stored, error) {
	values, err := load(ctx, name)
	if err != nil {
		return checkpoint.Stored{}, fmt.Errorf("read checkpoint: %w", err)
	}
	return checkpoint.Read(name, values)
}

// verified is what verify asks about a relay that polls, nil for one that reads a slot. free must be called at the end.
func (r *Relay) verified() (polled *verify.Polled, free func(), err error) {
	if r.polled == nil {
		return nil, func() {}, nil
	}
	if r.cfg.claims() {
		return nil, nil, fault.Config(fmt.Errorf("walpost verify needs a position, and with source.poll.strategy %s the table says which rows are delivered", r.cfg.Source.Poll.Strategy),
			"Count the undelivered rows: SELECT count(*) FROM "+r.rows.Names.Tables[0].SQL()+" WHERE finished_at IS NULL;")
	}
	store, free, err := r.openStore()
	if err != nil {
		return nil, nil, err
	}
	return &verify.Polled{
		XIDColumn: r.cfg.Source.Poll.XIDColumn,
		Reached: func(ctx context.Context) (reached verify.Reached, err error) {
			stored, err := readStore(ctx, store.Look, r.cfg.Name)
			rec := stored.Rec
			switch {
			case err != nil:
				return reached, err
			case rec == nil:
				reached.Unknown = fmt.Sprintf("no checkpoint of %s is stored: the relay has delivered nothing yet", r.cfg.Name)
				return reached, nil
			case !rec.Polled.Counts(r.cfg.counts()) || rec.Intended(): // the position of another source says nothing about this one
				reached.Unknown, err = r.refused(ctx)
				return reached, err
			}
			reached.Position = rec.Position
			if rec.Border != "" {
				reached.Border, err = cdc.ParseSnapshot(rec.Border)
			}
			return reached, err
		},
		Refused: r.refused,
		Stalled: r.stands,
	}, free, nil
}

// refused says why a start of the relay would fail now, "" if it would not.
func (r *Relay) refused(ctx context.Context) (why string, err error) {
	if f := r.foresee(ctx); f.err != nil && ctx.Err() == nil {
		why = "walpost run would not start: " + f.err.Error()
	}
	return why, context.Cause(ctx)
}

// stands says why a relay that polls comes no further than to at.
func (r *Relay) stands(ctx context.Context, at cdc.Position) (why string, err error) {
	conn, err := r.rows.DB.ConnectSQL(ctx)
	if err != nil {
		return "", err
	}
	defer pg.Close(conn)
	pid, err := poll.Holder(ctx, conn, r.cfg.Name)
	switch {
	case err != nil:
		return "", err
	case pid == 0:
		return "no process polls the table: start walpost run", nil
	}
	backlog, err := r.polled.Backlog(ctx, at)
	switch {
	case err != nil:
		return "", err
	case backlog.Blocker != nil:
		return "rows wait for " + backlog.Blocker.String(), nil
	}
	return "walpost run polls the table, but makes no progress: read its log", nil
}

// usualName is the name of a relay whose configuration gives none.
func (c *Config) usualName(database string) string {
	if c.polls() {
		from := c.replication()
		return database + "." + from.Names().Tables[0].String()
	}
	return database + "." + c.Source.Slot
}

// validatePoll adds what is wrong with a source that polls: also keys that only a slot or a publication has.
func (c *Config) validatePoll(found *Problems) {
	if !c.polls() {
		return
	}
	*found = append(*found, c.Source.Poll.Validate()...)
	s, usual := &c.Source, replication.DefaultConfig()
	if s.OrderColumn == "" {
		found.Add("source.order_column", conf.Required, "with source.kind: poll, because only this column defines the order of the rows of a key", nil)
	}
	switch n := len(s.AllTables()); {
	case n == 0:
		found.Add("source.table", conf.Required, "with source.kind: poll", nil)
	case n > 1:
		found.Add("source.tables", conf.MustBe, "one table with source.kind: poll; run one relay for each table", strings.Join(s.AllTables(), ", "))
	}
	const (
		slotless = "source.kind: poll, which has neither slot nor publication"
		inserts  = "source.kind: poll, which sees new rows only"
		onlyWAL  = "source.kind: poll, because messages are only in the WAL"
	)
	for _, key := range []struct {
		field string
		given bool
		why   string
	}{
		{"source.slot", s.Slot != usual.Slot, slotless},
		{"source.publication", s.Publication != usual.Publication, slotless},
		{"source.failover", s.Failover, slotless},
		{"source.create", !s.Create, slotless},
		{"monitor.breaker", c.Monitor.Breaker != slot.DefaultConfig().Breaker, slotless},
		{"source.publish", !slices.Equal(s.Publish, usual.Publish), inserts},
		{"source.messages", s.Messages.Prefix != "", onlyWAL},
	} {
		if key.given {
			found.Add(key.field, conf.Contradicts, key.why, nil)
		}
	}
	if !s.Poll.Claims() {
		return
	}
	c.validateClaims(found)
	switch why := "none with source.poll.strategy: " + s.Poll.Strategy + ", "; {
	case c.Cleanup.Mode == cleanup.None:
	case s.Poll.Strategy == poll.Delete:
		found.Add("cleanup.mode", conf.MustBe, why+"which removes each row itself", string(c.Cleanup.Mode))
	default:
		found.Add("cleanup.mode", conf.MustBe, why+"because finished_at says which rows are delivered: remove delivered rows with SQL, or use the strategy delete", string(c.Cleanup.Mode))
	}
}

// validateClaims adds what makes no sense if workers claim rows.
func (c *Config) validateClaims(found *Problems) {
	strategy := "source.poll.strategy: " + c.Source.Poll.Strategy
	for reason, policy := range c.Delivery.OnPoison {
		if policy == relay.PolicyParkKey {
			found.Add("delivery.on_poison", conf.MustBe, "halt or dead_letter with "+strategy+", because a refused row waits in the table, with the younger rows of its key, while all other rows are delivered", reason+": "+policy)
			break
		}
	}
	if c.Source.Snapshot == "never" || pg.IsBound(c.Source.Snapshot) {
		found.Add("source.snapshot", conf.MustBe, "initial, or not set, with "+strategy+", because the table says what is delivered: to leave rows out, run UPDATE … SET finished_at = now()", c.Source.Snapshot)
	}
}

// claims reports whether workers claim the rows of the table.
func (c *Config) claims() bool { return c.polls() && c.Source.Poll.Claims() }

// claimSource is the source of a relay that claims rows.
type claimSource struct {
	pollSource
	*poll.Claims
}

// A claimStore is the checkpoint store of one worker. The table says what is delivered, so a position means
// nothing to another process, and stays in memory. The store below has one record of all workers: it says
// which strategy the relay has, it has the run id, and it says how far the server's WAL has come, so that a
// restored copy of the database is noticed.
type claimStore struct {
	relay.Store
	memory map[string][]byte
	shared *checkpoint.Record // nil for none
	moved  time.Time          // when shared was last written
}

// claimWALEvery is how often a worker writes how far the server's WAL has come.
const claimWALEvery = 5 * time.Second

// Load returns the record of this worker, or the one of all workers before there is one.
func (s *claimStore) Load(ctx context.Context, name string) (map[string][]byte, error) {
	if len(s.memory) > 0 {
		return maps.Clone(s.memory), nil
	}
	values, err := s.Store.Load(ctx, name)
	if err == nil {
		var stored checkpoint.Stored
		stored, err = checkpoint.Read(name, values)
		s.shared = stored.Rec
	}
	return values, err
}

// Save keeps a record of this worker. The first worker of all makes the shared record, too.
func (s *claimStore) Save(ctx context.Context, key string, value []byte) error {
	if value == nil {
		delete(s.memory, key)
		return nil
	}
	rec, err := checkpoint.Decode(key, value)
	if err != nil {
		return err
	}
	if old := s.shared; old == nil || old.SystemID != rec.SystemID || old.Timeline < rec.Timeline || old.Database != rec.Database || !old.Polled.Counts(rec.Polled) || !old.Polled.IsTable(rec.Polled) || rec.WAL < old.WAL { // a gap was accepted, if the WAL went back
		if err := s.Store.Save(ctx, key, value); err != nil {
			return err
		}
		s.shared, s.moved = rec, time.Now()
	} else if rec.WAL > old.WAL && time.Since(s.moved) >= claimWALEvery {
		next := *old // under the key of all workers
		next.WAL, next.Time = rec.WAL, rec.Time
		if !s.further(ctx, &next) {
			if err := s.Store.Save(ctx, next.HolderKey(), next.Encode()); err != nil {
				return err
			}
		}
		s.shared, s.moved = &next, time.Now()
	}
	s.memory[key] = value
	return nil
}

// further reports whether another worker has written the shared record with a WAL that is as far or further. If the store cannot be read,
// the record is written.
func (s *claimStore) further(ctx context.Context, rec *checkpoint.Record) bool {
	stored, err := readStore(ctx, s.Store.Load, rec.Name)
	return err == nil && stored.Rec != nil && stored.Rec.HolderKey() == rec.HolderKey() && stored.Rec.WAL >= rec.WAL
}
