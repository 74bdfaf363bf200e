package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A kind is a way to read the outbox: from the WAL, or by a strategy of polling. Tests of faults run for each kind, and one judge, holds, says
// whether a kind has kept its promise.
type kind struct {
	name string
	poll string // the keys of source.poll; "" for the WAL
	// byKey says that a crash repeats the events of each key in their order, and the keys in any order.
	byKey bool
	// claims says that the table itself says which rows are delivered: workers claim rows, and the checkpoint has no position. So an older
	// checkpoint repeats nothing, walpost verify and walpost skip have no position to compare or to pass and are refused, and no key is parked,
	// because a refused row waits in the table. Instead of walpost verify, the judge counts the rows that are not finished.
	claims bool
	// removes says that a finished row leaves the table. So walpost explain finds no row behind a dead letter.
	removes bool
	// fewer leaves out the faults that only keep a worker from the table. The strategies claim and delete differ in the statement that
	// finishes a row, so delete has only the faults around that statement, and one kill instead of two, to save the time of CI.
	fewer bool
}

// The lease is longer than each fault that is no crash, because a lease that ends may repeat events. After a crash it delays the next worker.
const claimKeys = ", interval: 50ms, lease: 15s, attempts: 2"

var kinds = []kind{
	{name: "wal"},
	{name: "cursor", poll: "strategy: cursor, xid_column: xid, interval: 50ms", byKey: true},
	{name: "claim", poll: "strategy: claim" + claimKeys, byKey: true, claims: true},
	{name: "delete", poll: "strategy: delete" + claimKeys, byKey: true, claims: true, removes: true, fewer: true},
}

// eachKind runs a test for each kind of source, with an outbox and topics of its own.
func eachKind(t *testing.T, test func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// newSetting is newSetting for a kind. The outbox has what walpost setup makes. Another table keeps every row.
func (k kind) newSetting(t *testing.T, pg *testenv.PG, kafka *testenv.KafkaCluster) *setting {
	t.Helper()
	s := newSetting(t, pg, pg.Database(t), kafka)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY")
	s.source = ", order_column: n, time_column: created_at"
	if k.poll != "" {
		s.source += ", kind: poll, poll: {" + k.poll + "}"
	} else {
		s.source += ", slot: " + strings.ReplaceAll(s.name, "-", "_")
	}
	s.setUp(pg)
	s.counters(pg)
	s.keepRows(pg)
	return s
}

// holds is the judge. It waits until everything that was committed has arrived, and wants the promise of the kind: nothing is lost, the order of
// each key is kept, and nothing comes twice unless something crashed. The relay runs, so that walpost verify can agree.
func (k kind) holds(s *setting, w *watch, crashed bool) {
	s.t.Helper()
	if !crashed {
		s.onceEach(w, 2*time.Minute)
	} else {
		rep := s.settle(w, 2*time.Minute)
		if k.byKey {
			rep.Scattered = 0
		}
		if !rep.OK() {
			s.t.Errorf("broken promises: %s", &rep)
		}
	}
	if k.claims {
		k.finished(s)
		return
	}
	args := []string{"verify"}
	if !crashed {
		args = append(args, "--strict")
	}
	switch code, out := s.command(args...); {
	case code != 0:
		s.t.Errorf("verify: code %d\n%s", code, out)
	case strings.Contains(out, "rows with their record: 0\n"):
		s.t.Errorf("verify compared nothing\n%s", out)
	}
}

// finished waits until the table has no row that is not finished, and wants walpost verify to be refused.
func (k kind) finished(s *setting) {
	s.t.Helper()
	query := "SELECT count(*) FROM outbox WHERE finished_at IS NULL"
	if k.removes {
		query = "SELECT count(*) FROM outbox"
	}
	conn := testenv.Conn(s.t, s.dsn)
	eventually(s.t, time.Minute, "every row is finished", func() bool {
		var left int
		if err := conn.QueryRow(s.t.Context(), query).Scan(&left); err != nil {
			s.t.Fatal(err)
		}
		return left == 0
	})
	if code, out := s.command("verify"); code != 2 || !strings.Contains(out, "finished_at") {
		s.t.Errorf("verify: code %d\n%s", code, out)
	}
}

// insert writes one event of a key, and returns its id. n numbers the events of the key.
func (s *setting) insert(pg *testenv.PG, key string, n int) (id string) {
	s.t.Helper()
	return pg.Value(s.t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '%s', 'Changed', '{\"n\": %d}') RETURNING id::text", key, n))
}
