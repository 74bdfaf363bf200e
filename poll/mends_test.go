package poll

import (
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

// An ALTER TABLE that rewrites the table gives its rows another transaction. To a snapshot from before it, the table is empty.
func TestAnAlterTableWithinARangeLosesNothing(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	w.exec("INSERT INTO outbox (id, key) SELECT i, i FROM generate_series(1, 2500) i")
	for range 1 + pageRows { // the next event needs a look at the table
		w.event()
	}
	alter, watch := testenv.Conn(t, w.dsn), testenv.Conn(t, w.dsn)
	testenv.Run(t, alter, "BEGIN", "ALTER TABLE outbox ALTER COLUMN payload TYPE varchar(100)")
	done := make(chan error, 1)
	go func() {
		for waits := false; !waits && t.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			if err := watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
 AND datname = current_database() AND application_name = 'walpost')`).Scan(&waits); err != nil {
				done <- err
				return
			}
		}
		_, err := alter.Exec(t.Context(), "COMMIT")
		done <- err
	}()
	rest := strings.Fields(w.read())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := len(rest); n != 2500-pageRows+1 || rest[n-1] != ")" {
		t.Errorf("%d rows and the end came after the ALTER TABLE, must be %d", n, 2500-pageRows+1)
	}
}

// Rows that were copied from another server can have ids that this server has not assigned yet.
func TestAnIDThatTheServerHasNotAssignedHalts(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	w.exec(insert("a", "1"))
	w.want("( 1 )")
	w.exec("INSERT INTO outbox (id, key, xid) VALUES ('2', 'a', '99999999')")
	for give := time.Now().Add(time.Minute); ; {
		ev, err := w.session.Next(t.Context(), 50*time.Millisecond)
		switch {
		case err != nil && fault.NeedsPerson(err) && strings.Contains(err.Error(), "this server has not assigned yet"):
			return
		case err != nil || ev.Kind != cdc.Idle || time.Now().After(give):
			t.Fatalf("%+v, %v", ev, err)
		}
	}
}
