package poll

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/testenv"
)

func (w *world) backlog() *Backlog {
	w.Helper()
	b, err := w.Backlog(w.Context(), max(w.at, cdc.Numbered(1)))
	if err != nil {
		w.Fatal(err)
	}
	return b
}

func TestTheBacklogIsWhatIsNotDelivered(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.exec(insert("a", "1", "2"))
	if b := w.backlog(); b.Rows != 2 || b.More || !b.Notify || b.Blocker != nil {
		t.Errorf("two rows: %+v", b)
	}
	w.begin()
	w.want("( 1 2 )")
	if b := w.backlog(); b.Rows != 0 || b.Position != w.at || !b.Oldest.IsZero() {
		t.Errorf("no row: %+v", b)
	}
	w.exec("INSERT INTO outbox (id, key) SELECT i, i FROM generate_series(1, 10001) i")
	if b := w.backlog(); b.Rows != countedRows || !b.More {
		t.Errorf("10001 rows: %+v", b)
	}
}

func TestTheBacklogSaysHowOldItsOldestRowIs(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.exec("ALTER TABLE outbox ADD COLUMN at timestamptz DEFAULT now()",
		"INSERT INTO outbox (id, key, at) VALUES ('1', 'a', now() - interval '1 hour')", insert("a", "2"))
	w.set.TimeColumn = "at"
	w.Source = NewSource(w.set)
	if age := time.Since(w.backlog().Oldest).Round(time.Minute); age != time.Hour {
		t.Errorf("the oldest row is %s old", age)
	}
}

// Also a role that sees no more than its own statistics names the transaction.
func TestTheBacklogNamesTheTransactionThatDelaysIt(t *testing.T) {
	pg := testenv.Postgres(t, "15", testenv.Private(), testenv.Param("max_prepared_transactions", "2"))
	w := newWorld(t, pg)
	w.exec("CREATE TABLE other (id int)", insert("a", "0")) // which waits for nothing
	open := testenv.Conn(t, w.dsn)
	testenv.Run(t, open, "SET application_name = 'importer'", "BEGIN", "INSERT INTO other VALUES (1)")
	if b := w.backlog(); b.Blocker != nil {
		t.Errorf("no row waits: %s", b.Blocker)
	}
	w.exec(insert("a", "1"), "SELECT pg_sleep(1.1)")
	b := w.backlog()
	if b.Blocker == nil || !strings.Contains(b.Blocker.String(), "(importer) in ") || time.Since(b.Blocker.Since.Time) < delayAfter {
		t.Fatalf("blocked by %+v", b.Blocker)
	}
	w.exec("COMMIT; " + b.Blocker.End())
	for until := time.Now().Add(time.Minute); b.Blocker != nil && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		b = w.backlog() // the backend only gets a signal, and ends later
	}
	if b.Blocker != nil || b.Rows != 2 {
		t.Errorf("the transaction is ended: %+v", b)
	}
	elsewhere := pg.Database(t)
	prepare := testenv.Conn(t, elsewhere)
	testenv.Run(t, prepare, "BEGIN", "CREATE TABLE other (id int)", "PREPARE TRANSACTION 'lost'")
	w.begin()
	w.want("( 0 1 )")
	if b, err := w.session.blocker(t.Context(), w.at.Number()-1); b != nil || err != nil {
		t.Errorf("a transaction that has ended is blamed: %v, %v", b, err)
	}
	w.exec(insert("a", "2"), "SELECT pg_sleep(1.1)")
	if b = w.backlog(); b.Blocker == nil || b.Blocker.Prepared != "lost" {
		t.Fatalf("blocked by %+v", b.Blocker)
	}
	// Its end works in its database only. Whoever coordinates it may have decided to commit it.
	if end := b.Blocker.End(); !strings.Contains(end, fmt.Sprintf(`in database "%s", or COMMIT PREPARED`, pg.Value(t, elsewhere, "SELECT current_database()"))) {
		t.Errorf("to end it: %s", end)
	}
	pg.Exec(t, elsewhere, b.Blocker.End())
	w.want("( 2 )")
}

// Watch has what is not delivered, and nothing while another process delivers.
func TestWatchFollowsTheBacklog(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, "15"))
	w.exec(insert("a", "1"))
	at := make(chan cdc.Position, 1)
	at <- cdc.Numbered(1)
	done := make(chan struct{})
	watched := w.Source
	go func() {
		defer close(done)
		watched.Watch(t.Context(), 5*time.Millisecond, func() cdc.Position { p := <-at; at <- p; return p })
	}()
	until := func(what string, ok func(Status) bool) {
		t.Helper()
		for give := time.Now().Add(time.Minute); !ok(watched.Status()); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(give) {
				t.Fatalf("not in a minute: %s: %+v", what, watched.Status())
			}
		}
	}
	until("one row", func(s Status) bool { return s.Backlog != nil && s.Backlog.Rows == 1 })
	w.exec("ALTER TABLE outbox RENAME TO gone")
	until("an error", func(s Status) bool {
		return s.Backlog == nil && strings.Contains(s.BacklogErr, "does not exist") && !s.BacklogAt.IsZero() // from before
	})
	w.exec("ALTER TABLE gone RENAME TO outbox")
	until("one row again", func(s Status) bool { return s.Backlog != nil && s.BacklogErr == "" })
	<-at
	at <- 0
	until("nothing", func(s Status) bool { return s.Backlog == nil })
}
