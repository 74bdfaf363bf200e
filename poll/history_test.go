package poll

import (
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// A role that may not replicate learns where the server was promoted only from the life in which it was promoted.
func TestACrashOfThePromotedServerHidesWhereItWasPromoted(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t, "17", testenv.Private())
	w := newWorld(t, primary)
	w.exec(insert("a", "1"), "CREATE ROLE plain LOGIN", "GRANT SELECT ON outbox TO plain")
	standby := primary.Standby(t)
	standby.CatchUp(t, primary)
	if err := primary.Stop("immediate", time.Minute); err != nil {
		t.Fatal(err)
	}
	standby.Promote(t)
	at, err := url.Parse(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	at.Host = "127.0.0.1:" + strconv.Itoa(standby.Port())
	w.pg, w.dsn = standby, at.String()
	at.User = url.User("plain")
	set := w.set
	set.DB.DSN = at.String()
	forks := func() int {
		t.Helper()
		s, err := NewSource(set).Open(t.Context(), false, false)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context()) //nolint:errcheck // it was used
		for _, f := range s.Identity().History {
			t.Logf("timeline %d ended at %s", f.Timeline, f.End)
		}
		return len(s.Identity().History)
	}
	if n := forks(); n != 1 {
		t.Errorf("after the promotion: %d forks, must be 1", n)
	}
	started := w.pg.Value(t, w.dsn, "SELECT pg_postmaster_start_time()::text")
	w.exec("INSERT INTO outbox (id, key) SELECT i, i FROM generate_series(2, 1000) i")
	victim := testenv.Conn(t, w.dsn)
	if err := syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	recovered := false
	for give := time.Now().Add(time.Minute); !recovered && time.Now().Before(give); time.Sleep(50 * time.Millisecond) {
		if conn, err := pgx.Connect(t.Context(), w.dsn); err == nil {
			_ = conn.QueryRow(t.Context(), "SELECT pg_last_wal_receive_lsn() IS NULL").Scan(&recovered) // the server may just crash
			_ = conn.Close(t.Context())
		}
	}
	t.Logf("after the crash, the server says that it was promoted at %s", w.pg.Value(t, w.dsn, "SELECT pg_last_wal_replay_lsn()::text"))
	if n := forks(); n != 0 || w.pg.Value(t, w.dsn, "SELECT pg_postmaster_start_time()::text") != started {
		t.Errorf("after the crash: %d forks, must be 0; or the server was started again", n)
	}
}
