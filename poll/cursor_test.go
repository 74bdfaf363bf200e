package poll

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

func TestRowsComeOnceInOrder(t *testing.T) {
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg)
		w.exec(insert("a", "1", "2"))
		w.begin()
		w.want("( 1 2 )")
		w.want("")
		w.exec(insert("a", "3"), insert("b", "4"))
		w.want("( 3 4 )")
		w.session.Close(t.Context())
		w.begin()
		w.want("")
		w.exec(insert("a", "5"))
		w.want("( 5 )")
	})
}

// A transaction with a lower id that has not ended delays what has a higher id. Its own rows come with
// them, in the order of the order column.
func TestAnOpenTransactionDelaysThoseBehindIt(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	first := testenv.Conn(t, w.dsn)
	testenv.Run(t, first, "BEGIN", insert("a", "1"))
	w.exec(insert("b", "2"))
	w.want("")
	testenv.Run(t, first, "COMMIT")
	w.want("( 1 2 )")
}

// The second writer of a key has the lower id, because it began first and then waited for the first one. A
// third transaction is open all the while, whose id is between the two.
func TestARowDoesNotOvertakeARowOfItsKey(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.exec("CREATE TABLE other (id int)")
	w.begin()
	second, third, first := testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn)
	testenv.Run(t, second, "BEGIN", "SELECT pg_current_xact_id()")
	testenv.Run(t, third, "BEGIN", "INSERT INTO other VALUES (1)")
	testenv.Run(t, first, "BEGIN", insert("a", "1"), "COMMIT")
	testenv.Run(t, second, insert("a", "2"), insert("b", "3"), "COMMIT")
	w.want("")
	w.exec(insert("a", "4"))
	w.want("")
	testenv.Run(t, third, "COMMIT")
	w.want("( 1 2 3 4 )")
}

// The rows of other keys do not wait: the range is cut before the one that would overtake.
func TestARangeIsCutBeforeARowThatWouldOvertake(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	w.exec(insert("x", "0"))
	early, second, third, first := testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn)
	testenv.Run(t, early, "BEGIN", insert("b", "e"))
	testenv.Run(t, second, "BEGIN", "SELECT pg_current_xact_id()")
	testenv.Run(t, third, "BEGIN", "SELECT pg_current_xact_id()")
	testenv.Run(t, first, "BEGIN", insert("a", "1"), "COMMIT")
	testenv.Run(t, second, insert("a", "2"), "COMMIT")
	testenv.Run(t, early, "COMMIT")
	w.want("( 0 e )")
	testenv.Run(t, third, "COMMIT")
	w.want("( 1 2 )")
}

func TestSavepointsLoseNothing(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	first, other := testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn)
	testenv.Run(t, first, "BEGIN", insert("a", "1"), "SAVEPOINT s", insert("a", "2"))
	testenv.Run(t, other, "BEGIN", insert("b", "x"))
	testenv.Run(t, first, "SAVEPOINT u", insert("a", "3"), "ROLLBACK TO u", insert("a", "4"), "RELEASE s", insert("a", "5"))
	w.want("")
	testenv.Run(t, first, "COMMIT")
	got := w.read()
	testenv.Run(t, other, "COMMIT")
	got += " " + w.read()
	if words := strings.NewReplacer("( ", "", " )", "").Replace(strings.TrimSpace(got)); words != "1 2 4 5 x" && words != "1 2 x 4 5" && words != "1 x 2 4 5" {
		t.Errorf("read %q", got)
	}
}

// The server gives out ids again after a crash, if nothing with these ids was in its WAL on disk. Transactions that end without a change do
// not wait for the disk, so a position that moves with the ids of a snapshot would be too high.
func TestIdsThatComeAgainAfterACrashLoseNothing(t *testing.T) {
	pg := testenv.Postgres(t, "15", testenv.Private(), testenv.Param("wal_writer_delay", "10s"))
	w := newWorld(t, pg)
	w.exec(insert("a", "1"), "CHECKPOINT")
	w.begin()
	w.want("( 1 )")
	var last string
	for range 20 {
		last = pg.Value(t, w.dsn, "SELECT pg_current_xact_id()::text")
	}
	w.want("")
	ended, err := strconv.ParseUint(last, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Stop("immediate", time.Minute); err != nil {
		t.Fatal(err)
	}
	pg.Start(t)
	again := pg.Value(t, w.dsn, "SELECT pg_current_xact_id()::text")
	t.Logf("ids up to %s were given out and had ended; after the crash comes %s; the position is %s", last, again, w.at)
	if n, err := strconv.ParseUint(again, 10, 64); err != nil || n > ended || n < w.at.Number() {
		t.Errorf("no id came again, or one below the position: %v", err)
	}
	w.open(false).Continue()
	w.exec(insert("a", "2"))
	w.want("( 2 )")
}

// Another process of the relay waits, and a relay with another strategy is refused.
func TestWhoMayPoll(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	second, err := NewSource(w.set).Open(t.Context(), false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close(t.Context()) //nolint:errcheck // it was used
	if pid := second.Identity().SlotFound.ActivePID; pid != w.session.pid {
		t.Errorf("process %d polls, and must be %d", pid, w.session.pid)
	}
	started := make(chan error, 1)
	go func() { started <- second.Start(t.Context(), w.at) }()
	select {
	case err := <-started:
		t.Fatalf("two processes poll for one relay: %v", err)
	case <-time.After(2 * lockEvery):
	}
	w.session.Close(t.Context())
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	other := w.set
	other.Name, other.Strategy = "other", Claim
	w.exec(other.claimColumnsSQL(nil))
	third, err := NewSource(other).Open(t.Context(), false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close(t.Context()) //nolint:errcheck // it was used
	if err := third.Start(t.Context(), w.at); !fault.Misconfigured(err) || !strings.Contains(err.Error(), "strategy cursor reads table public.outbox") {
		t.Errorf("another strategy: %v", err)
	}
}

func TestAFirstStart(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.exec(insert("a", "1"))
	open := testenv.Conn(t, w.dsn)
	testenv.Run(t, open, "BEGIN", insert("b", "2"))
	var bound pg.Bound
	for _, snapshot := range []string{"", "never", "after 1/3"} {
		undecided := w.set
		undecided.Snapshot = snapshot
		_, err := NewSource(undecided).Open(t.Context(), true, false)
		printed := regexp.MustCompile(`snapshot: (after \S+)`).FindStringSubmatch(fault.Hint(err))
		if !fault.Misconfigured(err) || printed == nil {
			t.Fatalf("%q over a table that has rows: %v", snapshot, err)
		}
		var wrong error
		if bound, wrong = pg.ParseBound(printed[1]); wrong != nil {
			t.Fatal(wrong)
		}
	}
	w.set.Snapshot = bound.String()
	w.Source = NewSource(w.set)
	w.begin()
	w.exec(insert("a", "3"))
	testenv.Run(t, open, "COMMIT")
	w.want("( 2 3 )")
}

// A range that a stop left open has the same end at the next start, although more can be delivered by then.
func TestAnOpenRangeHasTheSameEndAfterARestart(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	w.exec(insert("a", "1", "2", "3"))
	for _, want := range []string{"(", "1", "2"} {
		if got := w.event(); got != want {
			t.Fatalf("%q, must be %q", got, want)
		}
	}
	w.session.Close(t.Context())
	w.exec(insert("a", "4"))
	w.begin()
	w.want("( 1 2 3 ) ( 4 )")
}

// After a lost connection the next session goes on behind the newest event, also if rows before it are gone.
func TestALostConnectionGoesOnWithinARange(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	w.exec(insert("a", "1", "2", "3", "4"))
	for _, want := range []string{"(", "1", "2"} {
		if got := w.event(); got != want {
			t.Fatalf("%q, must be %q", got, want)
		}
	}
	w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walpost' AND datname = current_database()",
		"DELETE FROM outbox WHERE id = '1'", insert("a", "5"))
	w.open(false).Continue()
	w.want("3 4 ) ( 5 )")
}

// Rows of transactions that do not wait for the disk are visible before they are durable.
func TestARowThatACrashTakesBackIsNotGiven(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15", testenv.Private(), testenv.Param("wal_writer_delay", "10s")))
	w.begin()
	w.exec("SET synchronous_commit = off; " + insert("a", "1"))
	w.want("( 1 )")
	flushed := w.pg.Value(t, w.dsn, "SELECT pg_current_wal_flush_lsn() >= '"+w.wal.String()+"'")
	if flushed != "true" {
		t.Errorf("the row was given before its WAL was on the disk: %s", flushed)
	}
	if err := w.pg.Stop("immediate", time.Minute); err != nil {
		t.Fatal(err)
	}
	w.pg.Start(t)
	if n := w.pg.Value(t, w.dsn, "SELECT count(*)::text FROM outbox"); n != "1" {
		t.Errorf("%s rows survived the crash", n)
	}
}

// The row that would be overtaken is many rows behind the range.
func TestARowDoesNotOvertakeARowFarBehind(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	const many = 2*horizonRows + rangeRows
	rows := func(from, to int) string {
		return fmt.Sprintf("INSERT INTO outbox (id, key, xid) SELECT i, i, (3 + i / 400)::text::xid8 FROM generate_series(%d, %d) i", from, to)
	}
	w.exec("INSERT INTO outbox (id, key, xid) VALUES ('first', 'a', '400')", rows(1, 2*rangeRows),
		"INSERT INTO outbox (id, key, xid) VALUES ('second', 'a', '10')", rows(2*rangeRows+1, many))
	w.begin()
	ids := strings.Fields(w.read())
	first, second := slices.Index(ids, "first"), slices.Index(ids, "second")
	if rows := len(slices.DeleteFunc(ids, func(id string) bool { return id == "(" || id == ")" })); first < 0 || second < first || rows != many+2 {
		t.Errorf("the first row came at %d, the second one at %d, and there were %d rows", first, second, rows)
	}
	if w.session.strategy.(*cursor).horizon == nil {
		t.Error("nothing bounded the search")
	}
}

// docs/polling.md has this trigger for writers that set the column themselves. Not in parallel: transactions of other tests would delay rows.
func TestATriggerStampsCopiedRows(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "17"))
	const copied = "INSERT INTO outbox (id, key, xid) VALUES ('%s', 'k', '3')"
	w.exec(insert("k", "k1"))
	w.begin()
	w.want("( k1 )")
	w.exec(fmt.Sprintf(copied, "lost"))
	w.want("")
	w.exec("CREATE FUNCTION public.walpost_stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.xid := pg_current_xact_id(); RETURN NEW; END'",
		"CREATE TRIGGER walpost_stamp BEFORE INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.walpost_stamp()", fmt.Sprintf(copied, "k2"))
	w.want("( k2 )")
}

// A page of a large transaction costs as much as the page, and not as much as the rest of the transaction.
func TestAPageOfALargeTransactionReadsNoMoreThanThePage(t *testing.T) {
	for _, version := range []string{"14", "18"} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, testenv.Postgres(t, version))
			const many = 10 * rangeRows
			w.exec(insert("a", "first"), fmt.Sprintf("INSERT INTO outbox (id, key) SELECT i, i FROM generate_series(1, %d) i", many), insert("a", "last"))
			w.begin()
			for _, want := range []string{"(", "first", ")", "(", "1"} {
				if got := w.event(); got != want {
					t.Fatalf("%q, must be %q", got, want)
				}
			}
			for _, restarted := range []bool{false, true} {
				if restarted {
					w.session.Close(t.Context())
					w.begin()
					w.event()
					w.event()
				}
				c := w.session.strategy.(*cursor)
				query := fmt.Sprintf("BEGIN; %s; EXPLAIN (ANALYZE, FORMAT JSON) %s LIMIT %d; COMMIT", inOrder, c.rest(c.src.cursor.end), pageRows)
				results, err := c.conn.Exec(t.Context(), query).ReadAll()
				if err != nil {
					t.Fatal(err)
				}
				most := 0.0
				for _, rows := range regexp.MustCompile(`"Actual Rows": ([0-9.]+)`).FindAllSubmatch(results[2].Rows[0][0], -1) {
					n, err := strconv.ParseFloat(string(rows[1]), 64)
					if err != nil {
						t.Fatal(err)
					}
					most = max(most, n)
				}
				if most > 2*pageRows {
					t.Errorf("restarted %t: the server reads %.0f rows for a page of %d", restarted, most, pageRows)
				}
			}
			rest := strings.Fields(w.read())
			if n := len(rest); n != many-1+1+3 || rest[n-2] != "last" || rest[many-2] != strconv.Itoa(many) {
				t.Errorf("%d words came, and they end with %q", n, rest[max(0, n-5):])
			}
		})
	}
}
