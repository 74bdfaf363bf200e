package poll

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/backoff"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

// A worker is a process that claims rows of a world's table. The test acts as its relay.
type worker struct {
	testing.TB
	*Source
	session *Session
	numbers map[string]uint32 // by id, of the rows that were given
}

// worker starts a process. change changes its settings.
func (w *world) worker(change func(*Settings)) *worker {
	w.Helper()
	set := w.set
	if change != nil {
		change(&set)
	}
	k := &worker{TB: w.TB, Source: NewSource(set), numbers: map[string]uint32{}}
	k.claims.pause = backoff.Backoff{Min: time.Hour, Max: time.Hour} // until due
	k.connect(true)
	k.session.Seek(cdc.Numbered(1), 0, "")
	return k
}

// refuses wants each change of the settings to end the start of another worker, with a text that has its key.
func (w *world) refuses(changes map[string]func(*Settings)) {
	w.Helper()
	for what, change := range changes {
		set := w.set
		change(&set)
		s, err := NewSource(set).Open(w.Context(), true, false)
		if err != nil {
			w.Fatal(err)
		}
		if err := s.Start(w.Context(), 1); !fault.Misconfigured(err) || !strings.Contains(err.Error(), what) {
			w.Errorf("%s: %v", what, err)
		}
		_ = s.conn.Close(w.Context())
	}
}

// connect opens a session, the first one or one after a lost connection.
func (k *worker) connect(first bool) {
	k.Helper()
	s, err := k.Open(k.Context(), first, false)
	if err == nil {
		k.Cleanup(func() { _ = s.conn.Close(context.Background()) })
		err = s.Start(k.Context(), 1)
	}
	if err != nil {
		k.Fatalf("%v (hint: %s)", err, fault.Hint(err))
	}
	k.session = s
}

// take returns the ids of the rows that can be claimed now.
func (k *worker) take() string {
	k.Helper()
	var ids []string
	for looks := k.Status().Looks; ; {
		ev, err := k.session.Next(k.Context(), 30*time.Millisecond)
		if err != nil {
			k.Fatalf("next: %v", err)
		}
		switch ev.Kind {
		case cdc.Insert:
			id := string(ev.Row.Values[0].Bytes)
			k.numbers[id] = ev.Claim
			ids = append(ids, id)
		case cdc.Idle:
			if k.Status().Looks > looks+1 {
				return strings.Join(ids, " ")
			}
		default:
		}
	}
}

func (k *worker) want(ids string) {
	k.Helper()
	if got := k.take(); got != ids {
		k.Fatalf("claimed %q, must be %q", got, ids)
	}
}

// ack acknowledges rows, and waits until the table says so.
func (k *worker) ack(ids ...string) {
	k.Helper()
	for _, id := range ids {
		k.claims.Delivered(k.numbers[id])
	}
	k.confirm()
}

func (k *worker) confirm() {
	k.Helper()
	if err := k.session.Confirm(k.Context(), 0); err != nil {
		k.Fatal(err)
	}
}

// due ends the pauses of all rows that were refused.
func (w *world) due() {
	w.Helper()
	w.exec("UPDATE outbox SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL")
}

// endLease ends the leases of the worker's rows, as if the time had passed.
func (k *worker) endLease(w *world) {
	k.Helper()
	k.claims.until = time.Now()
	w.exec("UPDATE outbox SET claimed_until = now() WHERE claimed_by LIKE '" + k.claims.worker + "#%'")
}

func (k *worker) refuse(id string) bool {
	again := k.claims.Refused(k.numbers[id], "too large: "+id)
	k.confirm()
	return again
}

// kill ends the process as kill -9 does.
func (k *worker) kill() { _ = k.session.conn.Close(context.Background()) }

func (k *worker) close() {
	k.Helper()
	if err := k.session.Close(k.Context()); err != nil {
		k.Fatal(err)
	}
}

// state is the rows of the table in order: id, then + for finished, * for claimed, - for open.
func (w *world) state() string {
	w.Helper()
	return w.pg.Value(w.TB, w.dsn, "SELECT coalesce(string_agg(id || CASE WHEN finished_at IS NOT NULL THEN '+' WHEN claimed_until >= now() THEN '*' ELSE '-' END, ' ' ORDER BY seq), '') FROM outbox")
}

func (w *world) wantState(state string) {
	w.Helper()
	if got := w.state(); got != state {
		w.Fatalf("the table has %q, must have %q", got, state)
	}
}

func TestWorkersShareATableAndKeepTheOrderOfEachKey(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17")
	for _, strategy := range []string{Claim, Delete} {
		t.Run(strategy, func(t *testing.T) {
			w := strategyWorld(t, pg, strategy)
			a, b := w.worker(nil), w.worker(nil)
			w.exec(insert("k", "k1", "k2"), insert("j", "j1"))
			a.want("k1 k2 j1")
			w.exec(insert("k", "k3"), insert("l", "l1"))
			b.want("l1") // k3 waits: the older rows of its key are claimed by another worker
			w.wantState("k1* k2* j1* k3- l1*")
			a.want("k3")
			a.ack("k1", "k2", "j1")
			b.ack("l1")
			w.exec(insert("k", "k4"), insert("j", "j2"))
			b.want("j2")
			a.ack("k3")
			b.want("k4")
			b.ack("k4", "j2")
			if left := "k1+ k2+ j1+ k3+ l1+ k4+ j2+"; strategy == Claim {
				w.wantState(left)
			} else {
				w.wantState("")
			}
		})
	}
}

func TestRowsWithoutAKeyWaitForNobody(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	a, b := w.worker(nil), w.worker(nil)
	w.exec("INSERT INTO outbox (id) VALUES ('1'), ('2')")
	a.want("1 2")
	w.exec("INSERT INTO outbox (id) VALUES ('3')")
	b.want("3")
	a.refuse("1")
	w.exec("INSERT INTO outbox (id) VALUES ('4')")
	b.want("4")
}

// A row that another transaction has locked may be claimed by it: its key waits, and no other key.
func TestALockedRowHoldsBackItsKey(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1", "k2"), insert("j", "j1"))
	conn := testenv.Conn(t, w.dsn)
	testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = 'k1' FOR UPDATE")
	a := w.worker(nil)
	a.want("j1")
	testenv.Run(t, conn, "COMMIT")
	time.Sleep(avoidFor)
	a.want("k1 k2")
}

func TestARefusedRowIsTriedAgainWhileOthersFlow(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	a := w.worker(func(s *Settings) { s.Attempts = 3 })
	w.exec(insert("k", "k1", "k2"), insert("j", "j1"))
	a.want("k1 k2 j1")
	if !a.refuse("k1") {
		t.Fatal("the first refusal is the last one")
	}
	a.claims.Returned(a.numbers["k2"]) // the sink took it back
	a.ack("j1")
	w.exec(insert("k", "k3"), insert("j", "j2"))
	a.want("j2")
	a.ack("j2")
	if got := w.pg.Value(t, w.dsn, "SELECT attempts || ' ' || last_error FROM outbox WHERE id = 'k1' AND next_attempt_at > now()"); got != "1 too large: k1" {
		t.Fatalf("the table says %q", got)
	}
	b, err := a.Backlog(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if b.Rows != 3 || b.Claims.Waiting != 1 || b.Claims.Workers != 1 || len(b.Claims.Refused) != 1 || b.Claims.Refused[0].Error != "too large: k1" {
		t.Fatalf("backlog %+v, claims %+v", b, b.Claims)
	}
	w.due()
	a.want("k1 k2 k3")
	if !a.refuse("k1") {
		t.Fatal("the second refusal is the last one")
	}
	a.claims.Returned(a.numbers["k2"])
	a.claims.Returned(a.numbers["k3"])
	a.confirm()
	w.due()
	a.want("k1 k2 k3")
	if a.refuse("k1") {
		t.Fatal("there is a fourth attempt")
	}
	w.wantState("k1* k2* j1+ k3* j2+") // the policy decides, and k1 stays claimed meanwhile
	a.ack("k1", "k2", "k3")            // its dead letter
	if got := w.pg.Value(t, w.dsn, "SELECT attempts || ' ' || last_error FROM outbox WHERE id = 'k1' AND finished_at IS NOT NULL"); got != "3 too large: k1" {
		t.Fatalf("the table says %q", got)
	}
}

// An event that cannot be routed is refused before the younger rows of its key are given.
func TestYoungerRowsOfARefusedKeyAreNotGiven(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1"), insert("j", "j1"), insert("k", "k2"))
	a := w.worker(nil)
	var ids []string
	for len(ids) < 2 {
		ev, err := a.session.Next(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == cdc.Insert {
			id := string(ev.Row.Values[0].Bytes)
			if ids = append(ids, id); id == "k1" {
				a.claims.Refused(ev.Claim, "no route")
			}
		}
	}
	if got := strings.Join(ids, " "); got != "k1 j1" {
		t.Fatalf("given: %s", got)
	}
	a.want("")
	w.wantState("k1- j1* k2-")
}

func TestAnEndedLeaseIsTakenOver(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	a, b := w.worker(nil), w.worker(nil)
	w.exec(insert("k", "k1", "k2"))
	a.want("k1 k2")
	a.kill()
	w.exec(insert("k", "k3"))
	b.want("")
	a.endLease(w)
	time.Sleep(avoidFor)
	b.want("")
	b.claims.clock.since = time.Now().Add(-w.set.Lease) // b has seen for so long that it may trust the server's clock
	b.want("k1 k2 k3")
	if a.claims.Overdue() == nil {
		t.Error("the former worker may go on to send its rows")
	}
	a.connect(false)
	if _, err := a.session.Next(t.Context(), 0); !fault.Retryable(err) || !errors.Is(a.claims.Overdue(), errGone) {
		t.Errorf("the former worker goes on: %v", err)
	}
	a.claims.Delivered(a.numbers["k1"])
	a.claims.Delivered(a.numbers["k2"])
	if err := a.claims.Overdue(); errors.Is(err, errGone) {
		t.Errorf("nothing is in flight any more: %v", err)
	}
	b.ack("k1", "k2", "k3")
	w.wantState("k1+ k2+ k3+")
}

func TestALeaseIsRenewedWhileRecordsAreInFlight(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	a, b := w.worker(nil), w.worker(nil)
	w.exec(insert("k", "k1"))
	a.want("k1")
	half := w.set.Lease / 2
	for range 3 { // leases, of which half has passed
		a.claims.until = time.Now().Add(half)
		w.exec(fmt.Sprintf("UPDATE outbox SET claimed_until = now() + interval '%d milliseconds'", half.Milliseconds()))
		a.want("")
		b.want("")
		if renewed := w.pg.Value(t, w.dsn, fmt.Sprintf("SELECT claimed_until > now() + interval '%d milliseconds' FROM outbox", half.Milliseconds())); renewed != "true" || time.Until(a.claims.until) <= half {
			t.Fatalf("renewed in the table: %s; the worker stops in %s", renewed, time.Until(a.claims.until))
		}
	}
	if err := a.claims.Overdue(); err != nil {
		t.Fatal(err)
	}
	a.ack("k1")
	w.wantState("k1+")
}

// Rows that were claimed and not sent near the end of the lease are not sent at all.
func TestNothingIsGivenNearTheEndOfALease(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	a := w.worker(nil)
	w.exec(insert("k", "k1", "k2"))
	for range 2 { // Begin and k1
		if _, err := a.session.Next(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	a.kill()
	a.claims.until = time.Now().Add(a.claims.margin() - time.Millisecond)
	w.exec("UPDATE outbox SET claimed_by = NULL, claimed_until = NULL WHERE id = 'k2'")
	a.connect(false)
	a.want("k2") // claimed once more, and not the one of before
	if w.wantState("k1* k2*"); len(a.claims.rows) != 2 {
		t.Errorf("%d rows are held", len(a.claims.rows))
	}
}

func TestALostConnectionKeepsTheClaims(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	a := w.worker(nil)
	w.exec(insert("k", "k1", "k2"))
	a.want("k1 k2")
	a.kill()
	a.claims.Delivered(a.numbers["k1"])
	a.connect(false)
	a.session.Continue()
	w.exec(insert("k", "k3"))
	a.want("k3")
	w.wantState("k1+ k2* k3*")
	// A claim of which the answer was lost is not taken for the process's own.
	w.exec(insert("j", "j1"), fmt.Sprintf("UPDATE outbox SET claimed_by = '%s#1', claimed_until = now() + interval '1 hour' WHERE id = 'j1'", a.claims.worker), insert("j", "j2"))
	a.want("")
}

func TestAStopGivesBackWhatIsNotInFlight(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(insert("k", "k1"), insert("j", "j1"), insert("l", "l1"))
	a := w.worker(nil)
	for range 3 { // Begin, k1 and j1
		ev, err := a.session.Next(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == cdc.Insert {
			a.numbers[string(ev.Row.Values[0].Bytes)] = ev.Claim
		}
	}
	a.claims.Delivered(a.numbers["k1"])
	a.close()
	w.wantState("k1+ j1* l1-")
	w.worker(nil).want("l1")
}

func TestStrategiesAndNamesThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	w := strategyWorld(t, testenv.Postgres(t, "17"), Claim)
	w.exec(xidColumnSQL(outbox, "xid"))
	w.worker(nil)
	w.refuses(map[string]func(*Settings){
		"source.poll.strategy claim": func(s *Settings) { s.Strategy, s.Name = Delete, "other" },
		"strategy claim reads":       func(s *Settings) { s.Strategy, s.XIDColumn, s.Name = Cursor, "xid", "other" },
		"whose name is not":          func(s *Settings) { s.Name = "other" },
	})
}

func TestLostRightsAreWaitedOutAndCountNoAttempt(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{Claim, Delete} {
		w := strategyWorld(t, testenv.Postgres(t, "17"), strategy)
		role := "w" + strings.ReplaceAll(w.pg.Value(t, w.dsn, "SELECT current_database()"), "-", "_")
		w.exec(fmt.Sprintf("CREATE ROLE %[1]s LOGIN PASSWORD 'x'; GRANT SELECT ON outbox TO %[1]s", role))
		t.Cleanup(func() { w.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
		dsn, err := url.Parse(w.dsn)
		if err != nil {
			t.Fatal(err)
		}
		dsn.User = url.UserPassword(role, "x")
		as := func(s *Settings) { s.DB = ipg.Database{DSN: dsn.String()} }
		set := w.set
		as(&set)
		if _, err := NewSource(set).Open(t.Context(), true, false); err == nil || fault.Retryable(err) || !strings.Contains(fault.Hint(err), w.set.claimingRights(role)) {
			t.Fatalf("without the right: %v (hint: %s)", err, fault.Hint(err))
		}
		w.exec(w.set.claimingRights(role))
		a := w.worker(as)
		w.exec(insert("k", "k1"))
		a.want("k1")
		w.exec("REVOKE ALL ON outbox FROM "+role, "GRANT SELECT ON outbox TO "+role)
		a.claims.Delivered(a.numbers["k1"])
		err = a.session.Confirm(t.Context(), 0)
		if !fault.Retryable(err) || !strings.Contains(err.Error(), "role "+role+" has lost a privilege on public.outbox") {
			t.Fatalf("with the right revoked: %v", err)
		}
		if _, err := a.Open(t.Context(), false, false); !fault.Retryable(err) || !strings.Contains(fault.Hint(err), "GRANT UPDATE") {
			t.Fatalf("opened again: %v (hint: %s)", err, fault.Hint(err))
		}
		if _, err := a.Check(t.Context()); !fault.Retryable(err) {
			t.Fatalf("checked: %v", err)
		}
		w.exec(w.set.claimingRights(role))
		a.connect(false)
		a.want("")
		if got, want := w.state(), map[string]string{Claim: "k1+", Delete: ""}[strategy]; got != want {
			t.Fatalf("the table has %q", got)
		}
	}
}

// With many finished rows, a look reads only rows that are not finished, whatever the statistics say: before ANALYZE they know of no row, and
// after it of hardly any that is not finished.
func TestALookReadsOnlyUnfinishedRows(t *testing.T) {
	t.Parallel()
	rows := 50_000
	if text := os.Getenv("WALPOST_CLAIM_ROWS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		rows = n
	}
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		w := strategyWorld(t, pg, Claim)
		w.exec(fmt.Sprintf("INSERT INTO outbox (id, key, finished_at) SELECT i, 'k' || i %% 100, now() FROM generate_series(1, %d) i", rows))
		a := w.worker(nil)
		for _, statistics := range []string{"SELECT 1", "ANALYZE outbox"} {
			w.exec(statistics, insert("k1", "new1 "+statistics, "new2 "+statistics))
			s := a.session.strategy.(*claimer)
			if n := w.blocks(s.conn, s.survey(true, math.MinInt64)) + w.blocks(s.conn, s.candidates(true, []int64{1, 2})); n > 150 {
				t.Errorf("after %s, a look reads %d blocks", statistics, n)
			}
			a.take()
			for _, n := range a.numbers {
				a.claims.Delivered(n)
			}
			a.confirm()
		}
	})
}

// A key whose oldest row another worker has, with many rows behind it, costs a look little more than these rows would if they were finished:
// it does not look at the head of the key for each of them.
func TestRowsOfABlockedKeyAreLeftOutOfALook(t *testing.T) {
	t.Parallel()
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		w := strategyWorld(t, pg, Claim)
		const many = 20_000
		w.exec(insert("hot", "h0"))
		a, b := w.worker(nil), w.worker(nil)
		a.want("h0")
		w.exec(fmt.Sprintf("INSERT INTO outbox (id, key) SELECT 'h' || i, 'hot' FROM generate_series(1, %d) i", many), insert("j", "j1", "j2"), "VACUUM ANALYZE outbox")
		b.want("j1 j2")
		s := b.session.strategy.(*claimer)
		blocks := 0
		for _, query := range []string{s.survey(true, math.MinInt64), s.candidates(true, nil)} {
			blocks += w.blocks(s.conn, query)
		}
		if blocks > many/10 {
			t.Errorf("a look at %d rows behind a blocked key reads %d blocks", many, blocks)
		}
		a.ack("h0")
		w.exec(insert("j", "j3"))
		for looks, id := b.Status().Looks, ""; id != "h1"; { // a look finds out that the key is free, and the next one claims
			ev, err := b.session.Next(t.Context(), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == cdc.Insert {
				id = string(ev.Row.Values[0].Bytes)
			}
			if id != "" && id != "j3" && id != "h1" || b.Status().Looks > looks+3 {
				t.Fatalf("the key is free, and after %d looks %q was claimed", b.Status().Looks-looks, id)
			}
		}
	})
}

// blocks is how many blocks a query reads.
func (w *world) blocks(conn *pgconn.PgConn, query string) int {
	w.Helper()
	results, err := conn.Exec(w.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) "+query).ReadAll()
	if err != nil {
		w.Fatal(err)
	}
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(results[0].Rows[0][0], &plan); err != nil {
		w.Fatal(err)
	}
	return plan[0].Plan.Hit + plan[0].Plan.Read
}

// Two spellings of a key are one key to the database: a row that is locked holds back both.
func TestSpellingsOfAKeyDoNotPassEachOther(t *testing.T) {
	t.Parallel()
	testenv.OnEach(t, func(t *testing.T, pg *testenv.PG) {
		t.Parallel()
		for name, column := range map[string]string{
			"citext":                       "CREATE EXTENSION citext; ALTER TABLE outbox ALTER key TYPE citext",
			"a nondeterministic collation": "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); ALTER TABLE outbox ALTER key TYPE text COLLATE nocase",
		} {
			for _, keys := range [][]string{{"k", "K", "k"}, {"K", "k", "k"}, {"k", "k", "K"}} {
				w := strategyWorld(t, pg, Claim)
				w.exec(column)
				for i, key := range keys {
					w.exec(insert(key, fmt.Sprint(i+1)))
				}
				w.exec(insert("j", "j1"))
				conn := testenv.Conn(t, w.dsn)
				testenv.Run(t, conn, "BEGIN", "SELECT FROM outbox WHERE id = '1' FOR UPDATE")
				a, b := w.worker(nil), w.worker(nil)
				if got := a.take(); got != "j1" {
					t.Errorf("%s: row 1 of %q is locked, and %q was claimed", name, keys, got)
				}
				testenv.Run(t, conn, "COMMIT")
				time.Sleep(avoidFor)
				a.want("1 2 3")
				w.exec(insert(keys[0], "4"), insert(keys[1], "5"))
				b.want("")
			}
		}
	})
}
