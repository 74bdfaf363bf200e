// Package cleanup deletes old rows of the outbox table, moves them to an archive table, or drops old
// partitions. It removes only rows that were delivered and are older than the user wants to keep.
//
// A row has no LSN. Therefore the cleaner records which transactions had ended (the xmin of
// pg_current_snapshot()), and then the position of the WAL. When the relay and the slot have both
// confirmed that position, every row of a transaction below that xmin is in Kafka. A restart, a
// lost connection or another session of the relay discards this knowledge, and the cleaner starts
// again.
//
// The cleaner runs beside the relay and never holds a transaction open for long. It works in small
// batches, pauses after each batch for as long as the batch took, and leaves locked rows for later.
//
// It isn't an API yet: anything in it may change with any release. The API is the root package, outbox and inbox.
package cleanup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/age"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/wait"
)

// A Mode is how rows are removed.
type Mode string

// The modes.
const (
	None           Mode = "none"
	Delete         Mode = "delete"
	DropPartitions Mode = "drop_partitions"
	MoveToArchive  Mode = "archive"
)

// Config says what to remove: the section cleanup of walpost.yaml.
type Config struct {
	// What happens to rows that are in Kafka and older than `cleanup.keep`.
	Mode Mode `yaml:"mode" words:"none|delete|drop_partitions|archive"`
	// How old a delivered row must be to be removed, by `source.time_column`.
	Keep time.Duration `yaml:"keep" min:"0s" max:"175200h" example:"24h"`
	// Where `archive` moves rows. By default, the outbox's name with `_archive`.
	ArchiveTable string `yaml:"archive_table" example:"public.outbox_archive"`
}

// Settings are all that a Cleaner needs.
type Settings struct {
	Config

	Tables []pgname.Table
	// TimeColumn is the column with the time of the row: a timestamptz, or a timestamp or date in
	// UTC.
	TimeColumn string
	// Slot and Publication are what the relay reads.
	Slot, Publication string
	// Below is for a relay that counts by transaction ids: the id below which all transactions are
	// delivered, 0 if that is not known. nil is for a relay that reads Slot.
	Below func() uint64
	// Connect opens an ordinary connection to the database as the relay's role.
	Connect func(ctx context.Context) (*pgconn.PgConn, error)
	// Kept returns the ids of events whose rows stay, because the events are dead or parked. It is asked
	// in each pass, after the confirmed position was read. nil keeps none.
	Kept func(ctx context.Context) ([]string, error)
	// IDColumn returns the column with the event id.
	IDColumn func(rel *cdc.Relation) string
	// Progress returns the relay's progress. It is called from the cleaner's goroutine and must not
	// block.
	Progress func() Progress
	// Logger is slog.Default() by default.
	Logger *slog.Logger
	// Every is the time between two passes. 0 means 10 s.
	Every time.Duration
	// Batch is the number of rows that one statement deletes. 0 means 1,000.
	Batch int
}

// DefaultConfig has the defaults of the section.
func DefaultConfig() Config { return Config{Mode: None, Keep: 72 * time.Hour} }

// Validate returns what is wrong with the keys together. timeColumn is source.time_column. conf.Check has what is wrong with each.
func (c *Config) Validate(timeColumn string) (found conf.Problems) {
	if (c.Mode == Delete || c.Mode == DropPartitions || c.Mode == MoveToArchive) && timeColumn == "" {
		found.Add("source.time_column", conf.Required, fmt.Sprintf("with cleanup.mode %s: the column says how old a row is", c.Mode), nil)
	}
	if c.ArchiveTable != "" {
		_, err := pgname.ParseTable(c.ArchiveTable)
		found.Try("cleanup.archive_table", err)
	}
	return found
}

const (
	defaultEvery = 10 * time.Second
	defaultBatch = 1000
	leastPause   = 20 * time.Millisecond
	sayAgain     = time.Hour   // until an error that persists is logged again
	lookAgain    = time.Second // the pause while no row is known to be delivered: such a pass only reads the catalog
)

// A Status has the counters since the start, and the present state.
type Status struct {
	Rows       uint64 `json:"rows"`            // deleted, or moved to the archive
	Partitions uint64 `json:"partitions"`      // dropped
	Made       uint64 `json:"partitions_made"` // partitions that were created in advance

	Waiting  string    `json:"waiting"`               // why no row is removed now; "" if nothing prevents it
	Err      string    `json:"error"`                 // of the newest pass; "" if it succeeded
	LastPass age.Since `json:"last_pass_seconds_ago"` // the end of the newest pass without an error
	Hints    []string  `json:"hints"`                 // what would make the cleanup cheaper, such as a missing index; never nil
}

// A Cleaner removes rows. Run must be called once. Any goroutine may call Status.
type Cleaner struct {
	cfg     Settings
	conn    *pgconn.PgConn // Run's goroutine only, like horizon
	role    string         // of conn
	horizon horizon
	piece   int64 // blocks of a partition that one statement reads
	// filtered says that the publication has a row filter for a table. Run's goroutine only.
	filtered bool
	tables   []pg.TableFacts
	kept     []string // of Settings.Kept, in this pass
	gap      string   // that the log has named, and that is still open
	keep     string   // a condition on the rows of the present table: the row stays
	notes    []string // hints of this pass, which the next pass reports
	// rests are the tables and partitions that the cleanup leaves alone for a while. Run's goroutine only.
	rests    map[pgname.Table]rest
	searched map[pgname.Table]search // what earlier passes found in a table, while Postgres is the same
	limit    time.Duration           // attachLimit, or less in a test

	mu     sync.Mutex
	status Status
}

// New returns a Cleaner. It does not connect.
func New(cfg Settings) *Cleaner {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Every <= 0 {
		cfg.Every = defaultEvery
	}
	if cfg.Batch <= 0 {
		cfg.Batch = defaultBatch
	}
	return &Cleaner{
		cfg: cfg, piece: pieceBlocks, keep: "false", limit: attachLimit, rests: map[pgname.Table]rest{}, searched: map[pgname.Table]search{},
	}
}

// Status returns a copy of the counters.
func (c *Cleaner) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Hints = append([]string{}, s.Hints...)
	return s
}

func (c *Cleaner) update(change func(s *Status)) {
	c.mu.Lock()
	change(&c.status)
	c.mu.Unlock()
}

// Run removes rows until ctx ends. It does not stop after an error. Status has the error, and the
// log has its start and its end. Errors never delay the relay.
func (c *Cleaner) Run(ctx context.Context) {
	defer c.drop()
	var failed string
	var said time.Time
	for {
		err := c.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
			if !c.usable() {
				c.drop()
			}
			c.update(func(s *Status) { s.Err = err.Error() })
			if failed != err.Error() || time.Since(said) > sayAgain {
				failed, said = err.Error(), time.Now()
				c.cfg.Logger.Warn("cleanup fails", "err", err)
			}
		default:
			c.update(func(s *Status) { s.Err, s.LastPass = "", age.Since{Time: time.Now()} })
			if failed != "" {
				failed = ""
				c.cfg.Logger.Info("cleanup works again")
			}
		}
		pause := c.cfg.Every
		if err == nil && c.horizon.below == 0 && !c.filtered {
			pause = min(pause, lookAgain)
		}
		if !wait.For(ctx, pause) {
			return
		}
	}
}

// usable reports whether the connection still serves after an error. Then an error of one table or one
// partition keeps no other one, and what was read on the connection stays true.
func (c *Cleaner) usable() bool {
	return c.conn != nil && !c.conn.IsClosed() && c.conn.TxStatus() == 'I'
}

// drop closes the connection and forgets everything that was read on it.
func (c *Cleaner) drop() {
	pg.Close(c.conn)
	c.conn = nil
	c.horizon.forget()
	maps.DeleteFunc(c.rests, func(_ pgname.Table, r rest) bool { return r.why == "" }) // what takes too long does so on another connection too
	clear(c.searched)
}

// pass removes the rows that can be removed now.
func (c *Cleaner) pass(ctx context.Context) error {
	if c.cfg.Progress().Session == 0 {
		c.drop()
		c.waits("the relay is not streaming")
		return nil
	}
	if c.conn == nil {
		conn, err := c.cfg.Connect(ctx)
		if err != nil {
			return fmt.Errorf("cleanup: %w", err)
		}
		c.conn = conn
		if err := c.prepare(ctx); err != nil {
			c.drop()
			return err
		}
	}
	switch err := c.look(ctx); {
	case givesWay(err):
		c.waits(fmt.Sprintf("a table is locked: %s", err))
		return nil
	case err != nil:
		return err
	}
	c.notes = nil
	// Partitions that cannot be created must not keep old rows from being removed.
	var failed error
	for i := range c.tables {
		if t := &c.tables[i]; c.cfg.Mode == DropPartitions {
			if err := c.lacks(t.Table, c.makeAhead(ctx, t)); err != nil {
				failed = cmp.Or(failed, fmt.Errorf("cleanup of %s: %w", t, err))
			}
		}
	}
	if failed != nil && !c.usable() {
		return failed
	}
	return cmp.Or(c.remove(ctx), failed)
}

// remove removes what is old and delivered.
func (c *Cleaner) remove(ctx context.Context) error {
	if c.filtered {
		c.waits("the publication has a row filter")
		return nil
	}
	if gap := c.cfg.Progress().Gap; gap != "" {
		why := fmt.Sprintf("gap %s was accepted, and rows of it may not be in Kafka: publish them, and run %s", gap, fault.Command("recover", "--close-gap="+gap))
		if c.waits(why); c.gap != gap {
			c.cfg.Logger.Warn("cleanup removes nothing: "+why, "token", gap)
		}
		c.gap = gap
		return nil
	}
	c.gap = ""
	below, err := c.below(ctx)
	if err != nil || below == 0 {
		return err
	}
	if c.kept = nil; c.cfg.Kept != nil {
		ids, err := c.cfg.Kept(ctx)
		if err != nil {
			c.waits("the events that are dead or parked cannot be read, and their rows must stay")
			return fmt.Errorf("cleanup: find the events whose rows must stay: %w", err)
		}
		c.kept = slices.Sorted(slices.Values(ids)) // so that equal answers are recognised
	}
	var failed error
	for i := range c.tables {
		t := &c.tables[i]
		if err := c.clean(ctx, t, below); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("cleanup of %s: %w", t, err))
			if !c.usable() {
				break
			}
		}
	}
	return failed
}

func (c *Cleaner) clean(ctx context.Context, t *pg.TableFacts, below uint64) (err error) {
	if c.keep, err = c.keeps(t); err != nil {
		return err
	}
	if c.cfg.Mode == MoveToArchive {
		if _, err := c.archive(ctx, t.Table); err != nil {
			return err
		}
	}
	if c.cfg.Mode == DropPartitions {
		return c.dropOld(ctx, t, below)
	}
	return c.deleteOld(ctx, t, below)
}

// A rest is why the cleanup leaves a table or a partition alone.
type rest struct {
	place string    // the ctid of a row that has to stay in a partition; "" for none
	until time.Time // of the next attempt
	why   string    // a hint for people, "" for none
}

const (
	// attemptShare bounds the time that the cleanup spends on what stays: one part of so many.
	attemptShare = 20
	// longestRest is the longest time between two attempts at what stays.
	longestRest = time.Hour
	// tooLongRest is the time between two attempts that take too long.
	tooLongRest = 10 * time.Minute
)

// rest leaves t alone after an attempt that took a while.
func (c *Cleaner) rest(t pgname.Table, took time.Duration, place string) {
	left := rest{place: place}
	if pause := min(attemptShare*took, longestRest); pause > c.cfg.Every {
		left.until = time.Now().Add(pause)
	}
	c.rests[t] = left
}

// tooLong leaves t alone after an attempt that took too long.
func (c *Cleaner) tooLong(t pgname.Table, format string, args ...any) {
	c.rests[t] = rest{until: time.Now().Add(tooLongRest), why: fmt.Sprintf(format, args...)}
	c.note("%s", c.rests[t].why)
}

// resting reports whether t is left alone.
func (c *Cleaner) resting(t pgname.Table) bool {
	r := c.rests[t]
	if !time.Now().Before(r.until) {
		return false
	}
	if r.why != "" {
		c.note("%s", r.why)
	}
	return true
}

// errWaits means that the cleanup must wait. It is not reported as an error.
var errWaits = errors.New("waits")

// note adds a hint of this pass, which the next pass reports.
func (c *Cleaner) note(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(c.notes, note) {
		c.notes = append(c.notes, note)
	}
}

// lacks adds the statement that grants the missing right, if err is about a right.
func (c *Cleaner) lacks(t pgname.Table, err error) error {
	if pg.SQLState(err) != pg.StateNoRight {
		return err
	}
	if c.cfg.Mode == DropPartitions {
		return fmt.Errorf("%w; role %s must own the table and its partitions: ALTER TABLE %s OWNER TO %[2]s; (walpost check names the partitions of other roles)", err, pgname.QuoteIdent(c.role), t.SQL())
	}
	return fmt.Errorf("%w; run: GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %s;", err, pgname.QuoteIdent(c.cfg.TimeColumn), t.SQL(), pgname.QuoteIdent(c.role))
}

func (c *Cleaner) waits(why string) { c.update(func(s *Status) { s.Waiting = why }) }

// below is the transaction id below which everything was delivered, or 0 if it is not known.
func (c *Cleaner) below(ctx context.Context) (uint64, error) {
	// Read the progress before the slot and the mark. If the session ends in between, the next read
	// sees it, and the mark counts no more.
	if c.cfg.Below != nil {
		return c.known(c.cfg.Below()), nil
	}
	p := c.cfg.Progress()
	if c.horizon.wants(p) {
		m, err := c.mark(ctx)
		if err != nil {
			return 0, err
		}
		c.horizon.note(p, m)
	}
	slot, err := c.slot(ctx)
	if errors.Is(err, errWaits) {
		c.horizon.forget()
		c.waits("no process reads the slot on this server")
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return c.known(c.horizon.bound(c.cfg.Progress(), slot)), nil
}

// known shows why the cleaner waits if below is 0.
func (c *Cleaner) known(below uint64) uint64 {
	why := ""
	if below == 0 {
		why = "no position has been confirmed since the relay connected"
	}
	c.waits(why)
	return below
}
