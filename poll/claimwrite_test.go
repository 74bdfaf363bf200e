package poll

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// A look can take long. The lease of the rows that it claims runs since its begin.
func TestTheServerNeverEndsALeaseBeforeTheWorker(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1"))
	a := w.worker(nil)
	conn := testenv.Conn(t, w.dsn)
	testenv.Run(t, conn, "BEGIN", "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
	done := make(chan error, 1)
	go func() {
		time.Sleep(time.Second)
		_, err := conn.Exec(t.Context(), "COMMIT")
		done <- err
	}()
	a.want("k1")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ends, err := time.Parse(time.RFC3339Nano, w.pg.Value(t, w.dsn, `SELECT to_char(claimed_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM outbox`))
	if err != nil {
		t.Fatal(err)
	}
	if a.claims.until.After(ends) {
		t.Errorf("the server ends the lease %v before the worker does", a.claims.until.Sub(ends))
	}
}

// A row that a trigger or a rule keeps as it was would be delivered again and again.
func TestASuppressedChangeIsAnError(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17")
	guard := func(event, with string) string {
		return "CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN " + with + " RETURN NULL; END'; CREATE TRIGGER guard BEFORE " + event + " ON outbox FOR EACH ROW EXECUTE FUNCTION guard()"
	}
	for name, c := range map[string]struct {
		strategy, sql string
		claims        bool // rows can be claimed
	}{
		"append-only":      {Claim, guard("UPDATE", ""), false},
		"finish":           {Claim, guard("UPDATE", "IF NEW.finished_at IS NULL THEN RETURN NEW; END IF;"), true},
		"soft delete":      {Delete, guard("DELETE", "UPDATE outbox SET payload = NULL WHERE id = OLD.id;"), true},
		"rule for deletes": {Delete, "CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := strategyWorld(t, pg, c.strategy)
			w.exec(c.sql, insert("k", "k1"))
			a := w.worker(nil)
			var err error
			if c.claims {
				a.want("k1")
				a.claims.Delivered(a.numbers["k1"])
				err = a.session.Confirm(t.Context(), 0)
			} else {
				var ev *cdc.Event
				if ev, err = a.session.Next(t.Context(), time.Second); err == nil {
					t.Fatalf("a row that is not claimed is given: %+v", ev)
				}
			}
			if !fault.NeedsPerson(err) || !strings.Contains(fault.Hint(err), "trigger") {
				t.Errorf("error %v (hint: %s)", err, fault.Hint(err))
			}
		})
	}
}

// A trigger can name a table that is missing. The relay goes on by itself when the trigger is mended.
func TestATriggerThatLacksItsTableIsWaitedOut(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec("CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit VALUES (1); RETURN NEW; END'",
		"CREATE TRIGGER audit BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION audit()", insert("k", "k1"))
	a := w.worker(nil)
	for range 2 {
		if _, err := a.session.Next(t.Context(), time.Second); !fault.Retryable(err) || !strings.Contains(fault.Hint(err), "trigger") {
			t.Fatalf("%v (hint: %s)", err, fault.Hint(err))
		}
		a.kill()
		a.connect(false)
		a.session.Continue()
	}
	w.exec("DROP TRIGGER audit ON outbox")
	a.want("k1")
}

// Somebody may finish or remove a row that is in flight.
func TestAnOutcomeThatIsAlreadyThereIsNoError(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{Claim, Delete} {
		w := strategyWorld(t, testenv.Postgres(t, "17"), strategy)
		w.exec(insert("k", "k1"), insert("j", "j1"))
		a := w.worker(nil)
		a.want("k1 j1")
		w.exec("UPDATE outbox SET finished_at = now() WHERE id = 'k1'", "DELETE FROM outbox WHERE id = 'j1'")
		a.ack("k1", "j1")
		w.wantState("k1+")
	}
}

func TestARowWithoutAnEventIDIsFinished(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec("INSERT INTO outbox (key) VALUES ('k')")
	a := w.worker(nil)
	a.want("")
	a.ack("")
	if got := w.pg.Value(t, w.dsn, "SELECT finished_at IS NOT NULL FROM outbox"); got != "true" {
		t.Errorf("finished: %s", got)
	}
}

// Partitions with sequences of their own repeat order numbers.
func TestARowWithTheSameOrderNumberDoesNotHideAnOlderRow(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("a", "a1"))
	w.worker(nil).want("a1")
	w.exec("INSERT INTO outbox (id, key, seq) OVERRIDING SYSTEM VALUE VALUES ('b1', 'b', 1), ('a2', 'a', 2), ('a1x', 'a', 1)")
	s := w.worker(nil).session.strategy.(*claimer)
	row := func(number uint32, id, key string, order int64) *claimed {
		return &claimed{row: row{id: id, order: order}, number: number, key: key, keyed: true}
	}
	rows, err := s.withoutBlocked(t.Context(), []*claimed{row(1, "b1", "b", 1), row(2, "a1x", "a", 1), row(3, "a2", "a", 2)})
	if err != nil || len(rows) != 1 || rows[0].id != "b1" {
		t.Errorf("%d rows are left, %v", len(rows), err)
	}
}

// The statistics know few keys, all of them old. New keys must not read the rows of other keys.
func TestALookAtNewKeysReadsNoRowsOfOtherKeys(t *testing.T) {
	t.Parallel()
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		w := strategyWorld(t, pg, Claim)
		a := w.worker(nil)
		w.exec("INSERT INTO outbox (id, key, next_attempt_at) SELECT i, 'hot', now() + interval '1 hour' FROM generate_series(1, 4000) i",
			"INSERT INTO outbox (id, key, next_attempt_at) SELECT i, 'k' || i % 5, now() + interval '1 hour' FROM generate_series(1, 200) i", "ANALYZE outbox",
			"INSERT INTO outbox (id, key) SELECT i, 'new' || i FROM generate_series(1, 500) i")
		s := a.session.strategy.(*claimer)
		if err := s.exec(t.Context(), "begin", "BEGIN"); err != nil {
			t.Fatal(err)
		}
		at, _, err := s.look(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		found, _, err := s.Session.rows.page(t.Context(), s.conn, s.candidates(true, at), func(*row) bool { return true })
		if err != nil || len(found) != 500 {
			t.Fatalf("%d rows, %v", len(found), err)
		}
		var rows []*claimed
		for _, f := range found {
			rows = append(rows, &claimed{row: f})
		}
		for _, query := range []string{s.survey(true, math.MinInt64), s.candidates(true, at), s.blocked(rows)} {
			results, err := s.conn.Exec(t.Context(), "EXPLAIN (ANALYZE, FORMAT json) "+query).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			var plan any
			if err := json.Unmarshal(results[0].Rows[0][0], &plan); err != nil {
				t.Fatal(err)
			}
			if n := removed(plan); n > 10_000 {
				t.Errorf("a look at 500 rows reads %.0f others in vain:\n%s", n, results[0].Rows[0][0])
			}
		}
	})
}

// removed is how many rows the nodes of a plan have read and left out.
func removed(plan any) (n float64) {
	switch p := plan.(type) {
	case []any:
		for _, part := range p {
			n += removed(part)
		}
	case map[string]any:
		if each, is := p["Rows Removed by Filter"].(float64); is {
			n = each * p["Actual Loops"].(float64)
		}
		for _, part := range p {
			n += removed(part)
		}
	}
	return n
}

// A table keeps its finished rows. A statement that changes claimed rows reads none of them.
func TestAChangeReadsNoFinishedRows(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{Claim, Delete} {
		w := strategyWorld(t, testenv.Postgres(t, "17"), strategy)
		w.exec("ALTER TABLE outbox SET (autovacuum_enabled = false)",
			"INSERT INTO outbox (id, key, finished_at) SELECT 'f' || i, 'k' || i, now() FROM generate_series(1, 5000) i",
			"INSERT INTO outbox (id, key) SELECT 'o' || i, 'o' || i FROM generate_series(1, 500) i")
		a := w.worker(nil)
		ids := strings.Fields(a.take())
		s := a.session.strategy.(*claimer)
		read := func() int {
			for range 2 { // the second one begins behind what the first one has written
				if _, err := s.conn.Exec(t.Context(), "SELECT pg_stat_force_next_flush()").ReadAll(); err != nil {
					t.Fatal(err)
				}
			}
			n, err := strconv.Atoi(w.pg.Value(t, w.dsn, "SELECT seq_tup_read::text FROM pg_stat_user_tables WHERE relname = 'outbox'"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := read()
		if err := s.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.ack(ids...)
		if n := read() - before; n > 0 || len(ids) != 500 {
			t.Errorf("%s: the changes of %d rows read %d rows by scans of the table", strategy, len(ids), n)
		}
	}
}
