package poll

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/pgname"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var outbox = pgname.Table{Schema: "public", Name: "outbox"}

// A world is a fresh database with an outbox, and a source that polls it.
type world struct {
	testing.TB
	pg  *testenv.PG
	dsn string
	set Settings
	*Source

	session *Session
	at      cdc.Position // end of the newest range
	openAt  cdc.Position // begin of the open range
	border  string
	wal     cdc.LSN
}

func newWorld(t testing.TB, pg *testenv.PG) *world {
	t.Helper()
	w := strategyWorld(t, pg, Cursor)
	w.Source = NewSource(w.set)
	return w
}

// strategyWorld is a world without a source.
func strategyWorld(t testing.TB, pg *testenv.PG, strategy string) *world {
	t.Helper()
	w := &world{TB: t, pg: pg, dsn: pg.Database(t)}
	column := func(name string) func(*cdc.Relation) string { return func(*cdc.Relation) string { return name } }
	w.set = Settings{
		Config: DefaultConfig(), Name: "relay", DB: ipg.Database{DSN: w.dsn}, Table: outbox, OrderColumn: "seq",
		Snapshot: "initial", ID: column("id"), Key: column("key"),
	}
	w.set.Interval, w.set.Strategy = 5*time.Millisecond, strategy
	if strategy == Cursor {
		w.set.XIDColumn = "xid"
	}
	w.exec("CREATE TABLE outbox (id text, key text, payload text, seq bigint GENERATED ALWAYS AS IDENTITY)", w.set.SetupSQL(nil))
	return w
}

func (w *world) exec(sql ...string) { w.Helper(); w.pg.Exec(w.TB, w.dsn, sql...) }

// insert is an INSERT of events of a key.
func insert(key string, ids ...string) string {
	rows := make([]string, len(ids))
	for i, id := range ids {
		rows[i] = fmt.Sprintf("('%s', '%s', 'p')", id, key)
	}
	return "INSERT INTO outbox (id, key, payload) VALUES " + strings.Join(rows, ", ")
}

// begin opens a session that begins at the world's position, as a relay that was restarted does.
func (w *world) begin() {
	w.Helper()
	s := w.open(w.at == 0)
	if w.at == 0 {
		w.at = s.Identity().SlotFound.Confirmed
	}
	s.Seek(w.at, w.openAt, w.border)
	w.openAt = 0
}

func (w *world) open(create bool) *Session {
	w.Helper()
	s, err := w.Open(w.Context(), create, false)
	if err != nil {
		w.Fatalf("open: %v (hint: %s)", err, fault.Hint(err))
	}
	w.Cleanup(func() { s.Close(context.Background()) })
	if err := s.Start(w.Context(), w.at); err != nil {
		w.Fatalf("start: %v (hint: %s)", err, fault.Hint(err))
	}
	w.session = s
	return s
}

// event returns the next event as text, or "idle" if there is none after a whole look.
func (w *world) event() string {
	w.Helper()
	looks := w.Status().Looks
	for {
		ev, err := w.session.Next(w.Context(), 50*time.Millisecond)
		if err != nil {
			w.Fatalf("next: %v", err)
		}
		switch ev.Kind {
		case cdc.Idle:
			if w.Status().Looks > looks+1 {
				return "idle"
			}
		case cdc.Begin:
			if ev.Pos < w.at {
				w.Fatalf("the range begins at %s, below %s", ev.Pos, w.at)
			}
			w.openAt, w.wal = ev.Pos, ev.WAL
			return "("
		case cdc.Commit:
			if ev.Pos != w.openAt+1 {
				w.Fatalf("the range of %s ends at %s", w.openAt, ev.Pos)
			}
			w.at, w.openAt = ev.Pos, 0
			return ")"
		default:
			return string(ev.Row.Values[ev.Row.Relation.Index("id")].Bytes)
		}
	}
}

// read returns all events that can be read now.
func (w *world) read() string {
	w.Helper()
	var all []string
	for {
		ev := w.event()
		if ev == "idle" {
			return strings.Join(all, " ")
		}
		all = append(all, ev)
	}
}

func (w *world) want(what string) {
	w.Helper()
	if got := w.read(); got != what {
		w.Fatalf("read %q, must be %q", got, what)
	}
}
