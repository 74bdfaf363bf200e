// Package table reads rows of the outbox tables over SQL, for whoever publishes, explains or checks them.
package table

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/pg"
)

// A Source says where rows are read. Its publication tells which columns of a row the stream has.
type Source struct {
	DB    pg.Database
	Names pg.Names
}

// A Reader reads rows of the tables as the inserts that the stream would have given for them: the same relation with its catalog
// fields, the same text of each value. All that it reads is of one snapshot of the database, which it holds until Close. VACUUM
// cannot remove what was deleted since then. It is used by one goroutine at a time.
type Reader struct {
	conn    *pgconn.PgConn
	tables  []*Table
	commits bool    // the server keeps commit timestamps (track_commit_timestamp)
	sees    string  // what the snapshot sees, as pg_current_snapshot prints it
	xmax    uint64  // the first full transaction id that the snapshot does not see
	at      cdc.LSN // a position behind every transaction that it sees
	system  string  // the system identifier of the server
}

// A Table is one of the tables that a Reader reads. Its Relation is the table as the stream has it: the published columns, in their
// order.
type Table struct {
	pg.TableFacts
	// Filter is the publication's row filter as an SQL expression; "" for none. Rows for which it is not true are not published.
	Filter string
	reader *Reader
}

// Options say how a Reader reads.
type Options struct {
	// Snapshot is one that was exported on another connection; empty for the present state.
	Snapshot string
	// Timeout bounds each statement; 0 is no bound.
	Timeout time.Duration
}

// Open opens a Reader on a connection of its own. The tables must exist, and the role must have the right to select from them.
// Neither the slot nor the publication need exist.
func (s Source) Open(ctx context.Context, opts Options) (*Reader, error) {
	f, version, err := s.describe(ctx)
	if err != nil {
		return nil, err
	}
	r := &Reader{}
	for i := range f.Tables {
		t := &f.Tables[i]
		if !t.Exists() {
			return nil, fault.Config(fmt.Errorf("source.table: table %s does not exist", t.Table), "Run "+fault.Command("check")+": it tells a table that was renamed from one that was never there, and prints what to do.")
		}
		if !t.Readable {
			cc, err := s.DB.Config()
			if err != nil {
				return nil, err
			}
			return nil, fault.WithHint(fmt.Errorf("table %s: role %q lacks the privilege to read it", t.Table, cc.User),
				pg.ReadingRights(t.Table, cc.User)+"\n(streaming does not need these rights, but reading the table does)")
		}
		read := &Table{TableFacts: *t, Filter: f.Publication.Filter(t.Table), reader: r}
		read.Relation = t.Streamed(f.Publication, version)
		r.tables = append(r.tables, read)
	}
	if err := r.open(ctx, s.DB, opts, version); err != nil {
		return nil, err
	}
	return r, nil
}

// describe reads the catalog on a connection that it closes, because a role may have few connections.
func (s Source) describe(ctx context.Context) (f *pg.Facts, version int, err error) {
	sql, err := s.DB.ConnectSQL(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer pg.Close(sql)
	f = &pg.Facts{}
	if version, err = pg.ServerVersion(ctx, sql); err == nil {
		err = s.Names.DescribePublished(ctx, sql, f)
	}
	return f, version, err
}

// open connects and begins the transaction. The connection has the settings of the stream's connection, the search path
// included, because the text of a regclass column depends on it.
func (r *Reader) open(ctx context.Context, db pg.Database, opts Options, version int) error {
	cc, err := db.Config()
	if err != nil {
		return err
	}
	cc.RuntimeParams["statement_timeout"] = strconv.FormatInt(opts.Timeout.Milliseconds(), 10)
	cc.RuntimeParams["lock_timeout"] = "5s"
	cc.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	if r.conn, err = db.Connect(ctx, cc, "connect to read the table"); err != nil {
		return err
	}
	begin := ""
	if version >= pg.FailoverVersion { // the parameter came with 17
		begin = "SET transaction_timeout = 0; "
	}
	begin += "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	if opts.Snapshot != "" {
		begin += "; SET TRANSACTION SNAPSHOT " + pgname.QuoteLiteral(opts.Snapshot)
	} else { // a snapshot that is older than an ALTER TABLE that rewrites the table sees no row of it
		for _, t := range r.tables {
			begin += "; LOCK TABLE " + t.SQL() + " IN ACCESS SHARE MODE"
		}
	}
	if _, err = r.conn.Exec(ctx, begin).ReadAll(); err == nil {
		type snapshot struct {
			On           bool
			Sees, System string
			XMax         uint64 `json:",string"`
			At           cdc.LSN
		}
		var now snapshot
		// The snapshot of a slot that waited for transactions can have an xmin above its xmax, and then sees what is below its xmin.
		// Postgres prints such a snapshot, and does not read it.
		now, err = pg.Row[snapshot](ctx, r.conn, "read the snapshot", `SELECT current_setting('track_commit_timestamp') = 'on' AS on,
 CASE WHEN pg_snapshot_xmin(s) > pg_snapshot_xmax(s) THEN format('%s:%1$s:', pg_snapshot_xmin(s)) ELSE s::text END AS sees, greatest(pg_snapshot_xmin(s), pg_snapshot_xmax(s))::text AS xmax,
 (SELECT system_identifier::text FROM pg_control_system()) AS system,
 CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END AS at FROM pg_current_snapshot() s`)
		r.commits, r.sees, r.system, r.xmax, r.at = now.On, now.Sees, now.System, now.XMax, now.At
	}
	if err != nil {
		r.Close()
		return pg.Classify(fmt.Errorf("begin to read the table: %w", err))
	}
	return nil
}

// Close frees the snapshot and the connection.
func (r *Reader) Close() { pg.Close(r.conn) }

// KeepsCommitTimes says whether the server keeps the commit times of transactions (track_commit_timestamp).
func (r *Reader) KeepsCommitTimes() bool { return r.commits }

// Position is behind the commit of every transaction whose rows are read.
func (r *Reader) Position() cdc.LSN { return r.at }

// System is the system identifier of the server.
func (r *Reader) System() string { return r.system }

// FullXID is the full id of the transaction that wrote a row with this xmin, as pg.FullXID has it. It is 0 if the transaction is older than
// any other.
func (r *Reader) FullXID(xmin uint32) uint64 {
	if xmin < 3 {
		return 0
	}
	return r.xmax - (r.xmax-uint64(xmin))&(1<<32-1)
}

// Tables are the tables, in the configuration's order.
func (r *Reader) Tables() []*Table { return r.tables }

// from is the table in a FROM clause, as t.
func (t *Table) from() string { return t.From("t") }

// kept is a condition for the rows that the row filter lets through.
func (t *Table) kept() string {
	if t.Filter == "" {
		return "true"
	}
	return "(" + t.Filter + ") IS TRUE"
}

func (t *Table) commitTime() string {
	if !t.reader.commits {
		return "NULL::bigint"
	}
	return pg.Micros(commitTimestamp)
}

// Rows reads one table's rows one by one. It holds one row in memory.
type Rows struct {
	step   string
	format Format
	result *pgconn.MultiResultReader
	event  cdc.Event
	hint   func(err error) error // explains an error of the statement; may be nil

	// CommitKnown says that the newest event's time is its transaction's commit time; otherwise it is the time of reading.
	CommitKnown bool
	// LeftOut says that the row filter leaves the newest event out. Only a Selection of all rows has such rows.
	LeftOut bool
	// Transaction is the id of the transaction that wrote the newest row, of 32 bits as text.
	Transaction []byte
	place       Place
	skip        int // rows of the first key that are still to be left out
}

// A Place is the place of a row in a reading. A later reading can go on behind it.
type Place struct {
	Sees string // what the reading saw, as pg_current_snapshot prints it
	Key  string // of the row, by the order
	Nth  int    // of the rows with that key, from 1
	ID   string // value of Selection.IDColumn
}

// Place returns the place of the newest row.
func (r *Rows) Place() Place { return r.place }

// format is what every statement gives of a row. The key and id are those of its Place, skip counts the row if it is skippable, and kept
// says that the row filter lets it through.
func (t *Table) format(key, id, skippable, kept string) Format {
	return Format{Relation: t.Relation, Time: t.commitTime(), More: []string{key, id, skippable, kept, "t.xmin::text"}}
}

// query runs a statement that gives rows in a format.
func (t *Table) query(ctx context.Context, step, sql string, format Format, hint func(error) error) (*Rows, error) {
	rows := &Rows{step: step, format: format, hint: hint}
	rows.place.Sees = t.reader.sees
	rows.result = t.reader.conn.Exec(ctx, sql)
	if !rows.result.NextResult() {
		return nil, rows.end()
	}
	return rows, nil
}

// Next returns the next row as an Insert, or nil behind the last one. The row is valid until the next call, and its relation
// stays valid.
func (r *Rows) Next() (*cdc.Event, error) {
	reader := r.result.ResultReader()
	for reader.NextRow() {
		more, timed, err := r.format.Insert(&r.event, reader.Values(), time.Now())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.step, err)
		}
		key, id, skippable := more[0], more[1], more[2]
		if r.place.Nth == 0 || string(key) != r.place.Key {
			r.place.Key, r.place.Nth = string(key), 0
		}
		r.place.Nth++
		r.place.ID = string(id)
		if r.skip > 0 && string(skippable) == "t" {
			r.skip--
			continue
		}
		r.CommitKnown, r.LeftOut, r.Transaction = timed, string(more[3]) != "t", more[4]
		return &r.event, nil
	}
	if _, err := reader.Close(); err != nil {
		r.result = nil
		return nil, r.fault(err)
	}
	return nil, r.end()
}

func (r *Rows) end() error {
	if r.result == nil {
		return nil
	}
	err := r.result.Close()
	r.result = nil
	if err != nil {
		return r.fault(err)
	}
	return nil
}

func (r *Rows) fault(err error) error {
	err = pg.Classify(fmt.Errorf("%s: %w", r.step, err))
	if r.hint != nil {
		err = r.hint(err)
	}
	return err
}
