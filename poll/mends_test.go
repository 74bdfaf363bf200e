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
	testenv.Run(t, alter, "BEGIN", "ALTER TABLE outbox ALTER COLUMN payload TYPE text USING payload || ''")
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

// A look that failed leaves nothing behind: the transaction that it would have read by itself may have others in its range now.
func TestAFailedLookLeavesOutNoTransaction(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.begin()
	w.session.src.cursor.only = 3
	w.exec(insert("a", "1"), insert("b", "2"))
	w.want("( 1 2 )")
}

// A page is read from the table that the session has examined, or not at all.
func TestATableThatIsReplacedOrAlteredWithinARangeLosesNothing(t *testing.T) {
	for name, c := range map[string]struct{ change, back []string }{
		"replaced": {
			[]string{"BEGIN", "ALTER TABLE outbox RENAME TO former", "CREATE TABLE outbox (LIKE former INCLUDING ALL)", "COMMIT"},
			[]string{"BEGIN", "DROP TABLE outbox", "ALTER TABLE former RENAME TO outbox", "COMMIT"},
		},
		"altered": {[]string{"ALTER TABLE outbox ADD COLUMN tenant text DEFAULT 'a'"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testenv.Postgres(t, "15"))
			w.begin()
			w.exec("INSERT INTO outbox (id, key) SELECT i, i FROM generate_series(1, 2500) i")
			w.event() // (
			conn := testenv.Conn(t, w.dsn)
			testenv.Run(t, conn, c.change...)
			rows := 0
			ev, err := w.session.Next(t.Context(), time.Second)
			for ; err == nil && ev.Kind == cdc.Insert; ev, err = w.session.Next(t.Context(), time.Second) {
				rows++ // of the page that is read
			}
			if rows == 0 || !fault.Retryable(err) || !strings.Contains(err.Error(), "was replaced or altered") {
				t.Fatalf("%+v, %v", ev, err)
			}
			w.session.Close(t.Context())
			testenv.Run(t, conn, c.back...)
			w.open(false).Continue()
			rest := strings.Fields(w.read())
			if n := len(rest); n != 2500-rows+1 || rest[n-1] != ")" {
				t.Errorf("%d rows and the end came, must be %d", n, 2500-rows+1)
			}
			if c.back == nil {
				w.exec(insert("a", "new"))
				for ev, err = w.session.Next(t.Context(), time.Second); err == nil && ev.Row.Relation == nil; {
					ev, err = w.session.Next(t.Context(), time.Second)
				}
				if err != nil || ev.Row.Relation.Index("tenant") < 0 {
					t.Errorf("%+v, %v", ev, err)
				}
			}
		})
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
