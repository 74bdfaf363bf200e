package cleanup

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// A place is a database with an outbox, a slot that somebody holds, and a cleaner beside it.
type place struct {
	*testing.T
	*Cleaner
	ctx  context.Context
	sql  *pgx.Conn
	dsn  string
	slot string

	stream *pgconn.PgConn

	mu       sync.Mutex
	progress Progress
}

// oldestAndNewest are for tests of what no version has of its own.
var oldestAndNewest = []string{"14", "18"}

// eachVersion runs a test on several versions at the same time. A transaction of a database holds back the marks of all
// databases of its server, so only one place may be in use on a server, and subtests of the test are not parallel.
func eachVersion(t *testing.T, versions []string, test func(t *testing.T, version string)) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

func newPlace(t *testing.T, version, ddl string, cfg Settings) *place {
	t.Helper()
	testenv.SameDay(t)
	pg := testenv.Postgres(t, version)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &place{T: t, ctx: ctx, dsn: pg.Database(t), slot: fmt.Sprintf("s%d_%d", os.Getpid(), time.Now().UnixNano())}
	var err error
	if p.sql, err = pgx.Connect(ctx, p.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.sql.Close(context.Background()) })
	p.exec(ddl, "CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root)",
		"SELECT pg_create_logical_replication_slot('"+p.slot+"', 'pgoutput')")
	sep := "?"
	if strings.Contains(p.dsn, "?") {
		sep = "&"
	}
	if p.stream, err = pgconn.Connect(ctx, p.dsn+sep+"replication=database"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.stream.Close(context.Background()) })
	if err := pglogrepl.StartReplication(ctx, p.stream, p.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'pub'"},
	}); err != nil {
		t.Fatal(err)
	}
	cfg.Tables, cfg.TimeColumn, cfg.Slot, cfg.Publication = []pgname.Table{{Schema: "public", Name: "outbox"}}, "created_at", p.slot, "pub"
	cfg.Connect = func(ctx context.Context) (*pgconn.PgConn, error) { return pgconn.Connect(ctx, p.dsn) }
	cfg.Progress = func() Progress {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.progress
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	p.Cleaner = New(cfg)
	t.Cleanup(p.drop)
	p.set(1, 0)
	return p
}

func (p *place) exec(sql ...string) {
	p.Helper()
	for _, s := range sql {
		if _, err := p.sql.Exec(p.ctx, s); err != nil {
			p.Fatalf("%s: %v", s, err)
		}
	}
}

func (p *place) set(session uint64, confirmed cdc.LSN) {
	p.mu.Lock()
	p.progress = Progress{Session: session, Confirmed: confirmed}
	p.mu.Unlock()
}

// confirm confirms everything there is, as the relay would.
func (p *place) confirm() {
	p.Helper()
	pos := p.end()
	p.confirmSlot(pos)
	p.set(p.progress.Session, pos)
}

// end is the end of the WAL.
func (p *place) end() cdc.LSN {
	p.Helper()
	pos, err := cdc.ParseLSN(p.value("SELECT pg_current_wal_insert_lsn()::text"))
	if err != nil {
		p.Fatal(err)
	}
	return pos
}

func (p *place) confirmSlot(pos cdc.LSN) {
	p.Helper()
	lsn := pglogrepl.LSN(pos)
	if err := pglogrepl.SendStandbyStatusUpdate(p.ctx, p.stream, pglogrepl.StandbyStatusUpdate{WALWritePosition: lsn, WALFlushPosition: lsn, WALApplyPosition: lsn}); err != nil {
		p.Fatal(err)
	}
	for ok := false; !ok; {
		if err := p.sql.QueryRow(p.ctx, "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", pos.String(), p.slot).Scan(&ok); err != nil {
			p.Fatal(err)
		}
	}
}

func (p *place) run() {
	p.Helper()
	if err := p.pass(p.ctx); err != nil {
		p.Fatal(err)
	}
}

func (p *place) ids() (ids []int) {
	p.Helper()
	for _, id := range strings.Fields(p.query("SELECT id::text FROM outbox ORDER BY outbox.id")) {
		n, err := strconv.Atoi(id)
		if err != nil {
			p.Fatal(err)
		}
		ids = append(ids, n)
	}
	return ids
}

func (p *place) want(why string, ids ...int) {
	p.Helper()
	if got := p.ids(); !slices.Equal(got, ids) {
		p.Errorf("%s: the table has %v, must have %v (%+v)", why, got, ids, p.Status())
	}
}

const plainTable = "CREATE TABLE outbox (id int PRIMARY KEY, created_at timestamptz DEFAULT now())"

func insert(id int, age string) string {
	return fmt.Sprintf("INSERT INTO outbox VALUES (%d, now() - interval '%s')", id, age)
}

func TestOnlyWhatIsConfirmedAndOldIsDeleted(t *testing.T) {
	for _, version := range oldestAndNewest {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, version, plainTable, Settings{Config: Config{Mode: Delete, Keep: time.Hour}, Batch: 2})
			p.exec(insert(1, "2 hours"), insert(2, "2 hours"), insert(3, "1 minute"), "INSERT INTO outbox VALUES (4, NULL)")
			p.run() // notes a mark
			p.run()
			p.want("nothing is confirmed", 1, 2, 3, 4)
			p.exec(insert(5, "2 hours"))
			p.confirm()
			p.exec(insert(6, "2 hours"))
			p.run()
			p.want("confirmed, but 5 and 6 came after the mark", 3, 4, 5, 6)
			p.run()
			p.want("the next mark is not confirmed", 3, 4, 5, 6)
			p.confirm()
			p.run()
			p.want("now it is", 3, 4)
			if s := p.Status(); s.Rows != 4 || s.Waiting != "" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A row that the publication's row filter leaves out was never delivered, and a row that an UPDATE made one of the filter's neither.
func TestNothingIsRemovedUnderARowFilter(t *testing.T) {
	eachVersion(t, []string{"14", "15", "18"}, func(t *testing.T, version string) {
		for mode, table := range map[Mode]string{Delete: plainTable, DropPartitions: "CREATE TABLE outbox (id int, created_at timestamptz) PARTITION BY RANGE (created_at)"} {
			t.Run(string(mode), func(t *testing.T) {
				p := newPlace(t, version, table, Settings{Config: Config{Mode: mode}})
				if mode == DropPartitions {
					p.exec("CREATE TABLE old PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')")
				}
				filtered := version != "14" // which has no filters
				if filtered {
					p.exec("ALTER PUBLICATION pub SET TABLE outbox WHERE (id > 1)")
				}
				p.exec("INSERT INTO outbox VALUES (1, '2020-01-01 12:00'), (2, '2020-01-01 12:00')")
				for range 4 {
					p.run()
					p.confirm()
				}
				s := p.Status()
				if !filtered {
					p.want("there is no filter")
					return
				}
				p.want("there is a filter", 1, 2)
				if !strings.Contains(strings.Join(s.Hints, ""), "row filter for public.outbox ((id > 1))") || s.Waiting == "" {
					t.Errorf("%+v", s)
				}
				if mode == DropPartitions && s.Made == 0 {
					t.Error("no partitions are made for rows to come")
				}
				p.exec("ALTER PUBLICATION pub SET TABLE outbox")
				for range 4 {
					p.run()
					p.confirm()
				}
				p.want("the filter is gone")
				if s := p.Status(); s.Waiting != "" {
					t.Errorf("%+v", s)
				}
			})
		}
	})
}

// The two that must have confirmed are the relay, whose word counts for delivery, and the slot on this very server.
func TestTheWordOfOneIsNotEnough(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
	p.exec(insert(1, "1 hour"))
	p.run()
	p.set(1, 1<<62)
	p.run()
	p.want("the relay alone", 1)
	p.set(1, 0)
	pos := p.end()
	p.confirmSlot(pos)
	p.run()
	p.want("the slot alone", 1)
	p.exec(insert(2, "1 hour"))
	p.set(2, pos)
	p.run()
	p.want("the relay's next session: a mark of its own", 1, 2)
	p.confirm()
	p.run()
	p.want("confirmed")
}

func TestWithoutASessionOrAReaderNothingIsDeleted(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
	p.exec(insert(1, "1 hour"))
	p.run()
	p.confirm()
	p.set(0, 1<<62)
	p.run()
	p.want("the relay has no session", 1)
	p.set(3, 1<<62)
	if err := p.stream.Close(p.ctx); err != nil {
		t.Fatal(err)
	}
	for active := true; active; {
		if err := p.sql.QueryRow(p.ctx, "SELECT active FROM pg_replication_slots WHERE slot_name = $1", p.slot).Scan(&active); err != nil {
			t.Fatal(err)
		}
	}
	p.exec("SELECT pg_replication_slot_advance('" + p.slot + "', pg_current_wal_lsn())") // somebody
	p.run()
	p.run()
	p.want("nobody reads the slot", 1)
	if s := p.Status(); !strings.Contains(s.Waiting, "slot") {
		t.Errorf("%+v", s)
	}
}

// A row's transaction may still be open when the mark is noted, or be a subtransaction of one that is.
func TestRowsOfOpenTransactionsAreNotSeenAsDelivered(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
	other := p.connect()
	for _, s := range []string{"BEGIN", insert(1, "1 hour"), "SAVEPOINT a", insert(2, "1 hour"), "RELEASE a", "SAVEPOINT b", insert(3, "1 hour")} {
		if _, err := other.Exec(p.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	p.exec(insert(4, "1 hour")) // a later id, and committed before
	p.run()                     // the mark
	if _, err := other.Exec(p.ctx, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	mark := p.horizon.pending.position
	p.confirmSlot(mark)
	p.set(1, mark)
	p.run()
	p.want("the open transaction's rows, and what is above it", 1, 2, 3, 4)
	p.confirm()
	p.run()
	p.want("after the next mark")
}

// Rows that somebody has locked are left, and nobody waits for them.
func TestLockedRowsAreLeftForLater(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
	p.exec(insert(1, "3 hours"), insert(2, "2 hours"), insert(3, "1 hour"))
	p.run()
	p.confirm()
	other := p.connect()
	if _, err := other.Exec(p.ctx, "BEGIN; SELECT FROM outbox WHERE id = 2 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	p.run()
	p.want("2 is locked", 2)
	if _, err := other.Exec(p.ctx, "ROLLBACK; BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	p.run() // gives way after its lock_timeout
	if _, err := other.Exec(p.ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	p.settle()
	p.want("nobody holds it any more")
}

// What delivered makes of ids whose high half is not stored: the newest possible one.
func TestTransactionIDsAreComparedAcrossARound(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}})
	const round = int64(1) << 32
	for _, c := range []struct {
		xmin, next, below int64
		want              bool
	}{
		{2, 100, 0, true}, // frozen by an old version
		{1, 100, 0, true},
		{50, 100, 51, true},
		{50, 100, 50, false},
		{99, 100, 100, true},
		{50, round + 100, round + 50, false}, // of this round
		{50, round + 100, round + 51, true},
		{4294967290, round + 100, round - 6, false}, // of the round before
		{4294967290, round + 100, round - 5, true},
		{4294967290, round + 100, round + 50, true},
		{101, round + 100, round + 100, true}, // as old as it can be
		{101, round + 100, 101, false},
		{101, round + 100, 102, true},
		{100, round + 100, round + 100, false}, // cannot be visible; kept
		{4294967295, 7 * round, 7*round - 1, false},
		{4294967295, 7 * round, 7 * round, true},
	} {
		var got bool
		sql := fmt.Sprintf("SELECT %s FROM (SELECT '%d'::xid AS xmin) t, (SELECT %d::int8 AS next) r", delivered(fmt.Sprint(c.below)), c.xmin, c.next)
		if err := p.sql.QueryRow(p.ctx, sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != c.want {
			t.Errorf("xmin %d, next %d, below %d: %v", c.xmin, c.next, c.below, got)
		}
	}
}

func TestOnePassTakesAsManyBatchesAsThereAre(t *testing.T) {
	p := newPlace(t, "", plainTable, Settings{Config: Config{Mode: Delete}, Batch: 2})
	p.exec("INSERT INTO outbox SELECT n, now() - interval '1 hour' FROM generate_series(1, 7) n") // one time for all
	p.run()
	p.confirm()
	p.run()
	p.want("one pass")
}

const partitioned = `CREATE TABLE outbox (id int GENERATED BY DEFAULT AS IDENTITY, created_at timestamptz NOT NULL, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`

func part(name string, from, to int) string {
	return fmt.Sprintf(`DO $$ BEGIN EXECUTE format('CREATE TABLE %s PARTITION OF outbox FOR VALUES FROM (%%L) TO (%%L)',
 date_trunc('day', now()) + '%d days', date_trunc('day', now()) + '%d days'); END $$`, name, from, to)
}

func (p *place) parts() []string {
	p.Helper()
	return strings.Fields(p.query("SELECT relname::text FROM pg_class WHERE relname LIKE 'outbox\\_%' AND relkind = 'r' AND relname NOT LIKE '%2_______' ORDER BY 1"))
}

func TestOldPartitionsAreDroppedOnceAllInThemIsConfirmed(t *testing.T) {
	eachVersion(t, oldestAndNewest, func(t *testing.T, version string) {
		for _, def := range []bool{false, true} {
			t.Run(fmt.Sprintf("default=%v", def), func(t *testing.T) {
				p := newPlace(t, version, partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
				p.exec(part("outbox_old", -5, -4), part("outbox_older", -6, -5), part("outbox_kept", -2, -1), part("outbox_now", 0, 1))
				if def {
					p.exec("CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT")
				}
				p.exec("INSERT INTO outbox SELECT n, date_trunc('day', now()) + '-5 days 1 hour' FROM generate_series(1, 10) n",
					"INSERT INTO outbox SELECT n, date_trunc('day', now()) + '-2 days 1 hour' FROM generate_series(11, 20) n")
				have := func(why string, names ...string) {
					t.Helper()
					if def {
						names = append(names, "outbox_rest")
						slices.Sort(names)
					}
					if got := p.parts(); !slices.Equal(got, names) {
						t.Errorf("%s: %v, must be %v", why, got, names)
					}
				}
				p.run()
				if made := p.Status().Made; made != 3 {
					t.Errorf("%d partitions were made ahead", made)
				}
				p.exec(insert(100, "0"), insert(101, "-1 day"), insert(102, "-2 day"), insert(103, "-3 day"))
				have("nothing is confirmed", "outbox_kept", "outbox_now", "outbox_old", "outbox_older")
				p.confirm()
				p.exec("INSERT INTO outbox SELECT 30, date_trunc('day', now()) + '-5 days 2 hours'") // late, and not confirmed
				p.run()
				have("one row is not confirmed", "outbox_kept", "outbox_now", "outbox_old")
				p.run()
				p.confirm()
				p.run()
				have("all is confirmed", "outbox_kept", "outbox_now")
				if s := p.Status(); s.Partitions != 2 || s.Err != "" {
					t.Errorf("%+v", s)
				}
				if got := len(p.ids()); got != 14 {
					t.Errorf("%d rows are left", got)
				}
			})
		}
	})
}

// A detach that was begun, or done and not followed by the drop, is found again.
func TestADetachedPartitionIsDroppedLater(t *testing.T) {
	p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
	p.exec(part("outbox_old", -5, -4), "INSERT INTO outbox SELECT 1, date_trunc('day', now()) + '-5 days 2 hours'",
		"COMMENT ON TABLE outbox_old IS '"+remark+"public.outbox'", "ALTER TABLE outbox_old ADD CONSTRAINT "+closed+" CHECK (false) NOT VALID",
		"ALTER TABLE outbox DETACH PARTITION outbox_old CONCURRENTLY",
		"CREATE TABLE outbox_mine (LIKE outbox)") // not ours
	p.run()
	if got := p.parts(); len(got) != 2 {
		t.Errorf("dropped before it was confirmed: %v", got)
	}
	p.confirm()
	p.run()
	if got := p.parts(); !slices.Equal(got, []string{"outbox_mine"}) {
		t.Errorf("left: %v", got)
	}
}

func TestWhatCannotBeCleanedIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		ddl, want string
		mode      Mode
	}{
		"no column":        {"CREATE TABLE outbox (id int)", "no column created_at", Delete},
		"no time":          {"CREATE TABLE outbox (id int, created_at bigint)", "column created_at of public.outbox is a bigint", Delete},
		"not partitioned":  {plainTable, "PARTITION BY RANGE (created_at)", DropPartitions},
		"other partitions": {"CREATE TABLE outbox (id int, created_at timestamptz) PARTITION BY RANGE (id)", "PARTITION BY RANGE (created_at)", DropPartitions},
		"list":             {"CREATE TABLE outbox (id int, created_at date) PARTITION BY LIST (created_at)", "PARTITION BY RANGE (created_at)", DropPartitions},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "", c.ddl, Settings{Config: Config{Mode: c.mode}})
			err := p.pass(p.ctx)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, ddl := range []string{plainTable, partitioned} {
		p := newPlace(t, "", ddl, Settings{Config: Config{Mode: Delete}})
		p.run()
		if s := p.Status(); len(s.Hints) != 1 {
			t.Fatalf("no advice for an index: %+v", s)
		}
		_, sql, _ := strings.Cut(p.Status().Hints[0], "; ")
		p.exec(sql)
		p.run()
		if s := p.Status(); len(s.Hints) != 0 {
			t.Errorf("%s was run, and the advice is still there: %+v", sql, s)
		}
	}
}

// Of two tables, one isn't partitioned by the time column. The other one gets its partitions, and the unfit one is left as it is.
func TestATableWithOtherPartitionsStopsNoOther(t *testing.T) {
	for _, filtered := range []bool{false, true} {
		p := newPlace(t, "", partitioned, Settings{Config: Config{Mode: DropPartitions, Keep: 48 * time.Hour}})
		p.exec(part("today", 0, 1), "CREATE TABLE another (id int, created_at timestamptz, at timestamptz) PARTITION BY RANGE (at)",
			"CREATE TABLE another_old PARTITION OF another FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')")
		set := "ALTER PUBLICATION pub SET TABLE outbox, another"
		if filtered {
			set += " WHERE (id > 1)"
		}
		p.exec(set)
		p.cfg.Tables = append([]pgname.Table{{Schema: "public", Name: "another"}}, p.cfg.Tables...)
		if err := p.pass(p.ctx); err == nil || !strings.Contains(err.Error(), "cleanup of public.another: cleanup.mode drop_partitions needs a table with PARTITION BY RANGE (created_at)") {
			t.Errorf("filtered: %t: %v", filtered, err)
		}
		of := func(table string) string {
			return p.query("SELECT count(*)::text FROM pg_inherits WHERE inhparent = '" + table + "'::regclass")
		}
		if mine, other := of("outbox"), of("another"); mine != "4" || other != "1" {
			t.Errorf("filtered: %t: %s partitions, and the other table has %s", filtered, mine, other)
		}
	}
}
