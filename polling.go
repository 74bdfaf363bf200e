package walpost

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/checkpoint"
	"github.com/walpost/walpost/internal/advice"
	"github.com/walpost/walpost/internal/command/verify"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/parking"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/poll"
	"github.com/walpost/walpost/relay"
	"github.com/walpost/walpost/replication"
)

// polls reports whether the table is read by SQL.
func (c *Config) polls() bool { return c.Source.Kind == KindPoll }

// needsSlot adds a problem if the command needs a slot, and the configuration has none.
func (c *Config) needsSlot(found *Problems, command string) {
	if c.polls() {
		found.Add("source.kind", conf.MustBe, "wal for walpost "+command, c.Source.Kind)
	}
}

// polling is the configuration as the source wants it that polls.
func (r *Relay) polling() poll.Settings {
	return poll.Settings{
		Config: r.cfg.Source.Poll, Name: r.cfg.Name, DB: r.rows.DB, Table: r.rows.Names.Tables[0], OrderColumn: r.cfg.Source.OrderColumn,
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
	session, err := s.Source.Open(ctx, create, replaceLost)
	if err != nil {
		return nil, err // not session: a nil *Session would be a Session that is not nil
	}
	return session, nil
}

// pollSetup is what SetupSQL prints for a source that polls. If run is true, it makes what poll.Apply makes.
func (r *Relay) pollSetup(ctx context.Context, run bool) (sql string, made bool, why, err error) {
	set, table := r.polling(), ""
	conn, why := set.DB.ConnectSQL(ctx)
	var f *poll.Facts
	if why == nil {
		defer pg.Close(conn)
		if f, why = set.Describe(ctx, conn); why == nil && !f.Table.Exists() {
			f = nil
		}
	}
	if f == nil {
		outbox := *r.source.Config()
		table = replication.SetupSQL(outbox, replication.SetupOptions{Tables: []pg.Table{set.Table}}) + "\n"
	}
	rights := ""
	if role := r.cfg.SetupRole; role != "" {
		var has poll.RoleFacts
		if why == nil {
			if has, err = set.DescribeRole(ctx, conn, f, role); err != nil {
				return "", false, nil, err
			}
		}
		rights = set.MissingRights(has, role)
	}
	if run && why == nil {
		if made, err = set.Apply(ctx, conn, f, table, rights); err != nil {
			err = pg.Classify(fmt.Errorf("create what polling needs: %w", err))
		}
	}
	return table + set.SetupSQL(f) + rights, made, why, err
}

// applyPolling makes what polling needs, and returns what it made.
func (r *Relay) applyPolling(ctx context.Context) ([]string, error) {
	_, made, why, err := r.pollSetup(ctx, true)
	if why != nil || err != nil || !made {
		return nil, cmp.Or(why, err)
	}
	return []string{"what polling needs of table " + r.rows.Names.Tables[0].String()}, nil
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

// deliveredBelow is the id below which the rows of all transactions are delivered, 0 if that is not known.
func deliveredBelow(s relay.Status) uint64 {
	if !s.InStream || s.Confirmed <= cdc.Numbered(lowXIDs) {
		return 0
	}
	return s.Confirmed.Number()
}

// ReadPoll reads the state of the table that a relay polls: which rows are not delivered, and what
// delays them. All rows below the position at are delivered. If at is 0, ReadPoll takes the
// position of the checkpoint. If workers claim rows, the table says which rows are delivered, and
// at has no effect.
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
	case rec.Poll == "":
		return 0, fault.Config(fmt.Errorf("checkpoint %s was written for slot %q, not for polling", rec.Key(), rec.Slot), "")
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
			case rec.Poll != r.cfg.Source.Poll.Strategy || rec.XIDColumn != r.cfg.Source.Poll.XIDColumn: // positions of another source say nothing about this one
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

// formerSlot makes sure, before a recover, that no relay delivers by another source: that relay would go on, and its events would
// come twice. If the relay read a slot and polls from now on, formerSlot returns the slot.
func (r *Relay) formerSlot(ctx context.Context) (slot string, err error) {
	rec, err := r.stored(ctx)
	polls := r.cfg.polls()
	if err != nil || rec == nil || polls && rec.Poll == r.cfg.Source.Poll.Strategy && r.cfg.claims() || (rec.Poll != "") == polls && (!polls || rec.XIDColumn == r.cfg.Source.Poll.XIDColumn) {
		return "", nil //nolint:nilerr // the relay's loop reads the store once more, and says what is wrong
	}
	if former := (poll.Config{Strategy: rec.Poll}); !polls && former.Claims() || rec.Poll == "" && r.cfg.claims() {
		strategy := cmp.Or(rec.Poll, r.cfg.Source.Poll.Strategy)
		return "", fault.Config(fmt.Errorf("the relay cannot change between the WAL and source.poll.strategy %s in one step", strategy),
			"Change to source.kind poll with source.poll.strategy cursor first, and run "+fault.Command("recover")+". Then set source.kind and source.poll.strategy as you want them, and run the same command again.")
	}
	conn, err := r.rows.DB.ConnectSQL(ctx)
	if err != nil {
		return "", err
	}
	defer pg.Close(conn)
	var pid int32
	if rec.Poll != "" {
		pid, err = poll.Holder(ctx, conn, r.cfg.Name)
	} else {
		var found []struct{ PID int32 }
		found, err = pg.Rows[struct{ PID int32 }](ctx, conn, "read the slot", "SELECT coalesce(active_pid, 0) AS pid FROM pg_replication_slots WHERE slot_name = "+pg.QuoteLiteral(rec.Slot))
		for _, f := range found {
			slot, pid = rec.Slot, f.PID
		}
	}
	if err == nil && pid != 0 {
		return "", fault.Config(fmt.Errorf("the relay runs with its former configuration (server process %d)", pid), "Stop that walpost run first.")
	}
	return slot, err
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
	if old := s.shared; old == nil || old.SystemID != rec.SystemID || old.Timeline < rec.Timeline || old.Database != rec.Database || old.Poll != rec.Poll || old.Table != nil && rec.Table != nil && !old.Table.Is(*rec.Table) || rec.WAL < old.WAL { // a gap was accepted, if the WAL went back
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

// changeStrategy is Recover for a relay whose source.poll.strategy was changed. It reports whether that is so.
func (r *Relay) changeStrategy(ctx context.Context, opts RecoverOptions) (changed bool, err error) {
	if !r.cfg.polls() {
		return false, nil
	}
	store, free, err := r.openStore()
	if err != nil {
		return false, err
	}
	defer free()
	stored, err := readStore(ctx, store.Load, r.cfg.Name)
	rec, to := stored.Rec, r.cfg.Source.Poll.Strategy
	if err != nil || rec == nil || rec.Poll == "" || rec.Poll == to {
		return false, err
	}
	if rec.Copy != nil {
		return true, fault.Config(fmt.Errorf("a recover with source.poll.strategy %s is not finished", rec.Poll), "Set source.poll.strategy back to "+rec.Poll+" and run "+fault.Command("recover")+" to finish it.")
	}
	if rec.Poll == poll.Cursor && rec.XIDColumn != r.cfg.Source.Poll.XIDColumn {
		return true, fault.Config(fmt.Errorf("source.poll.xid_column is %q, but the checkpoint was written with %q", r.cfg.Source.Poll.XIDColumn, rec.XIDColumn), "Undo the change of source.poll.xid_column, and change only source.poll.strategy.")
	}
	if r.cfg.Stdout == nil {
		parked := r.parkingLog()
		defer closeWithin(parked.Close)
		if err := parking.None(ctx, parked, r.cfg.Delivery.ParkingTopic, r.cfg.Name, rec.Parking); err != nil {
			return true, err
		}
	}
	opts.Say(fmt.Sprintf("the relay changes from source.poll.strategy %s to %s", rec.Poll, to))
	what := "continue with the rows that are not finished"
	switch {
	case rec.Poll == poll.Cursor:
		what = "mark the rows that are delivered (finished_at)"
	case to == poll.Cursor:
		what = "begin at the oldest transaction with an unfinished row, and publish the finished rows of younger transactions again"
	}
	former := poll.Former{Strategy: rec.Poll, At: rec.Position, Border: rec.Border}
	former.Agree = func(found cdc.Identity) error {
		var gap *checkpoint.Refusal
		if _, err := checkpoint.Judge(rec, found); !errors.As(err, &gap) || gap.Reason != checkpoint.OtherSource {
			return advice.Of(err) // the record says nothing about the rows of this server
		}
		yes, err := opts.Ask(strings.ToUpper(what[:1]) + what[1:] + "?")
		if err == nil && !yes {
			err = ErrDeclined
		}
		return err
	}
	if rec.Next != nil && rec.Next.Rows > 0 {
		former.Open, former.Last = rec.Next.Commit, rec.Next.LastEventID
	}
	at, found, marked, err := r.polled.Change(ctx, former)
	if err != nil {
		return true, err
	}
	next := &checkpoint.Record{
		Name: r.cfg.Name, Epoch: rec.Epoch + 1, SystemID: found.SystemID, Timeline: found.Timeline, Poll: to, XIDColumn: found.XIDColumn, Table: checkpoint.TableOf(found), Database: found.Database,
		Position: at, WAL: checkpoint.FirstWAL(found, at), Accepted: rec.Accepted, RunID: rec.RunID, Holder: "recover-" + strings.ToLower(rand.Text()[:8]), Time: time.Now(),
	}
	if err := store.Save(ctx, next.HolderKey(), next.Encode()); err != nil {
		return true, fmt.Errorf("write checkpoint: %w", err)
	}
	for _, key := range append(stored.Older, rec.HolderKey()) {
		if err := store.Save(ctx, key, nil); err != nil {
			return true, fmt.Errorf("remove checkpoint: %w", err)
		}
	}
	if rec.Poll == poll.Cursor {
		opts.Say(fmt.Sprintf("%d rows are marked as delivered", marked))
	}
	opts.Say("walpost run goes on with source.poll.strategy " + to)
	return true, nil
}
