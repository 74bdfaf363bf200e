package slot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
	ipg "github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/testenv"
)

// What pins a slot is often in another database, of another application: they share the WAL.
func TestTransactionInAnotherDatabaseIsTheBlocker(t *testing.T) {
	for _, v := range testenv.Versions {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, v, testenv.Private())
			pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE shop", "CREATE DATABASE crm")
			w := &world{T: t, pg: pg, dsn: pg.DSN("shop"), db: ipg.Database{DSN: pg.DSN("shop")}, slot: "walpost"}
			w.exec(outboxTable, w.made())
			m := w.reader()
			m.minAge = 0

			dump := testenv.Conn(w.T, pg.DSN("crm")) // an older snapshot that only reads holds no WAL
			testenv.Run(w.T, dump, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM pg_class")
			other, err := pgx.Connect(t.Context(), pg.DSN("crm")+"&application_name=nightly")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = other.Close(t.Context()) }) // the test ends it
			testenv.Run(w.T, other, "CREATE TABLE report (n int)", "BEGIN", "INSERT INTO report VALUES (1)")
			began := w.value("SELECT pg_current_wal_lsn()::text")
			w.exec(insertRow, "SELECT pg_switch_wal()")
			at, err := cdc.ParseLSN(began)
			if err != nil {
				t.Fatal(err)
			}
			// The slot comes to stand at a transaction, or passes it, after a record of the running transactions or two.
			read := func(settled func(Health) bool) Health {
				w.read(m)
				for range 20 {
					w.follow()
					w.exec("SELECT txid_current()")
					if h := w.read(m); settled(h) {
						return h
					}
				}
				return w.read(m)
			}
			h := read(func(h Health) bool { return h.Blocker != nil && h.Confirmed > at })
			b := h.Blocker
			if b == nil || b.Kind != BlockedByTransaction || b.Database != "crm" || b.PID != int32(other.PgConn().PID()) || b.User != "postgres" ||
				b.Application != "nightly" || b.State != "idle in transaction" || !b.Certain || b.Age <= 0 || b.QueryAge <= 0 || b.QueryAge > b.Age {
				t.Fatalf("%+v", b)
			}
			if h.Restart > at || h.Confirmed <= at || h.UnconfirmedBytes > h.RetainedBytes/2 {
				t.Errorf("it began before %s: %+v", at, h)
			}

			// While we are behind ourselves, a transaction that began since is not to blame; this one was before.
			w.exec(b.End)
			if h = read(func(h Health) bool { return h.Blocker == nil && h.Restart > at }); h.Blocker != nil || h.Restart <= at {
				t.Errorf("after %s: %+v, restart %s", b.End, h.Blocker, h.Restart)
			}
			for range 3 {
				w.exec(insertRow, "SELECT pg_switch_wal()")
			}
			late := testenv.Conn(w.T, w.dsn)
			testenv.Run(w.T, late, "BEGIN", insertRow)
			if h = w.read(m); h.Blocker != nil || h.UnconfirmedBytes < h.RetainedBytes/2 {
				t.Errorf("behind ourselves: %+v, %d of %d unconfirmed", h.Blocker, h.UnconfirmedBytes, h.RetainedBytes)
			}
		})
	}
}

// The server keeps the restart_lsn of a slot that it has invalidated for being idle, and no WAL for it.
func TestAnInvalidatedSlotHoldsNoWAL(t *testing.T) {
	pg := testenv.Postgres(t, "18", testenv.Private(), testenv.Param("idle_replication_slot_timeout", "1s"))
	w := newWorld(t, pg, outboxTable)
	w.exec("SELECT pg_create_physical_replication_slot('gone', true)")
	for range 50 {
		if time.Sleep(100 * time.Millisecond); w.value("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'gone'") == "lost" {
			break
		}
		w.exec("CHECKPOINT")
	}
	if at := w.value("SELECT wal_status || restart_lsn FROM pg_replication_slots WHERE slot_name = 'gone'"); !strings.HasPrefix(at, "lost") {
		t.Fatalf("the slot is not invalidated: %s", at)
	}
	w.exec("ALTER SYSTEM SET idle_replication_slot_timeout = 0", "SELECT pg_reload_conf()", insertRow, "SELECT pg_switch_wal()", w.made())
	w.exec(insertRow, "SELECT pg_switch_wal()", insertRow)
	if h := w.read(w.reader()); h.Blocker != nil || h.Oldest != h.Restart {
		t.Errorf("oldest %s, restart %s, blocked by %+v", h.Oldest, h.Restart, h.Blocker)
	}
}

func TestOlderSlotIsTheBlockerWhereItHoldsMore(t *testing.T) {
	pg := testenv.Postgres(t, "17", testenv.Private())
	w := newWorld(t, pg, outboxTable)
	own := testenv.Conn(w.T, w.dsn) // of walpost while it reads ahead, which is never the one
	testenv.Run(w.T, own, "SELECT pg_create_physical_replication_slot('walpost_ahead_1', true, true)")
	w.exec("SELECT pg_create_physical_replication_slot('gone', true)", insertRow, w.made())
	m := w.reader()
	m.minAge = 0
	if b := w.read(m).Blocker; b != nil && b.Kind == BlockedBySlot {
		t.Errorf("a slot that holds little: %+v", b)
	}
	w.exec(fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", w.slot), "SELECT pg_switch_wal()", insertRow, "SELECT pg_switch_wal()", insertRow, w.made())
	writer := testenv.Conn(w.T, w.dsn)
	testenv.Run(w.T, writer, "BEGIN", insertRow)
	h := w.read(m)
	b := h.Blocker
	if b == nil || b.Kind != BlockedBySlot || b.Name != "gone" || b.State != "inactive" || !strings.HasPrefix(b.End, "SELECT pg_drop_replication_slot('gone'); -- only if nobody needs it: its reader loses all events") {
		t.Fatalf("%+v", b)
	}
	if h.Oldest >= h.Restart || h.Oldest == 0 {
		t.Errorf("oldest WAL at %s, ours from %s", h.Oldest, h.Restart)
	}
	w.exec(b.End)
	if b = w.read(m).Blocker; b == nil || b.Kind != BlockedByTransaction {
		t.Errorf("then the transaction: %+v", b)
	}
}

// A role with nothing but REPLICATION sees that a transaction is there, and not what it does: that is said, and its age is ours.
func TestWhatMayNotBeSeenIsSaid(t *testing.T) {
	pg := testenv.Postgres(t, "15", testenv.Private())
	w := newWorld(t, pg, outboxTable, `CREATE ROLE "weak one" LOGIN REPLICATION`)
	w.exec(w.made())
	w.db.DSN = strings.Replace(w.dsn, "postgres@", "weak%20one@", 1)
	m := w.reader()
	w.walDir = true
	conn := testenv.Conn(w.T, w.dsn)
	testenv.Run(w.T, conn, "BEGIN", insertRow)
	m.minAge = 0
	h := w.read(m)
	b := h.Blocker
	if b == nil || b.PID != int32(conn.PgConn().PID()) || b.State != "" || b.QueryAge != 0 || b.Age != 0 || h.WALDirBytes != -1 {
		t.Fatalf("%+v of %+v", b, h)
	}
	if !strings.Contains(h.Hidden, `GRANT pg_monitor TO "weak one";`) {
		t.Errorf("hidden: %q", h.Hidden)
	}
	for key := range m.seen {
		m.seen[key] = sighting{at: time.Now().Add(-time.Hour)}
	}
	if b = w.read(m).Blocker; b == nil || b.Age < time.Hour {
		t.Errorf("seen for an hour: %+v", b)
	}
	w.exec(`GRANT pg_monitor TO "weak one"`)
	if h = w.read(m); h.Hidden != "" || h.Blocker == nil || h.Blocker.State != "idle in transaction" || h.WALDirBytes <= 0 {
		t.Errorf("with pg_monitor: %+v, %+v", h, h.Blocker)
	}
}

// A monitor that kept a transaction open would itself hold back what it watches, on a server where that matters most.
func TestMonitorLeavesNothingOpen(t *testing.T) {
	for _, v := range []string{"14", "18"} {
		pg := testenv.Postgres(t, v, testenv.Private())
		w := newWorld(t, pg, outboxTable)
		w.exec(w.made())
		w.db.ApplicationName = "the monitor"
		m := w.reader()
		w.walDir = true
		before := w.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
		for range 5 {
			w.read(m)
			if got := w.value("SELECT format('%s %s %s %s', state, xact_start, backend_xid, backend_xmin) FROM pg_stat_activity WHERE application_name = 'the monitor'"); got != "idle   " {
				t.Errorf("%s: between two reads: %q", v, got)
			}
			if got := w.value("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'the monitor'"); got != "0" {
				t.Errorf("%s: %s locks", v, got)
			}
		}
		if after := w.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"); after != before {
			t.Errorf("%s: transaction ids went from %s to %s", v, before, after)
		}
		results, err := m.conn.Exec(t.Context(), "SHOW statement_timeout").ReadAll()
		if err != nil || string(results[0].Rows[0][0]) != statementTimeout {
			t.Errorf("%s: statement_timeout is %s, %v", v, results[0].Rows[0], err)
		}
	}
}

// A slot on a standby is held for the primary's transactions, which the standby cannot see.
func TestMonitorReadsASlotOnAStandby(t *testing.T) {
	for _, v := range []string{"16", "18"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			primary := testenv.Postgres(t, v, testenv.Private())
			w := newWorld(t, primary, outboxTable)
			standby := primary.Standby(t, testenv.Param("max_slot_wal_keep_size", "256MB"))
			made := make(chan error, 1)
			go func() {
				conn, err := pgx.Connect(t.Context(), standby.DSN(w.slot))
				if err == nil {
					_, err = conn.Exec(t.Context(), w.made())
					_ = conn.Close(t.Context()) // it has done its work
				}
				made <- err
			}()
			for done := false; !done; { // a standby makes a slot when the primary has logged its running transactions
				w.exec("SELECT pg_log_standby_snapshot()")
				select {
				case err := <-made:
					if err != nil {
						t.Fatal(err)
					}
					done = true
				case <-time.After(50 * time.Millisecond):
				}
			}
			w.db.DSN = standby.DSN(w.slot) + "&target_session_attrs=any"
			m := w.reader()
			w.walDir = true
			first := w.read(m)
			if !first.Exists || !first.Standby || !strings.Contains(first.Hidden, "the primary") || first.RetainedBytes <= 0 || !first.SafeKnown ||
				first.SafeBytes <= 0 || first.SafeBytes > 272<<20 || first.WALDirBytes <= 0 {
				t.Fatalf("%+v", first)
			}
			w.exec("SELECT pg_switch_wal()", insertRow)
			standby.CatchUp(t, primary)
			second := w.read(m)
			grown := int64(second.Server - first.Server)
			if grown <= 0 || first.SafeBytes-second.SafeBytes != grown || second.RetainedBytes-first.RetainedBytes != grown {
				t.Errorf("after %d bytes of WAL: %+v, then %+v", grown, first, second)
			}
		})
	}
}

// What we compute for a standby is what the server computes for itself.
func TestSafeBytesAreTheServers(t *testing.T) {
	testenv.OnEachLimited(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		w.exec(w.made())
		for range 3 {
			got := w.value(`SELECT restart_lsn || ' ' || (safe_wal_size + pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'))::text FROM pg_replication_slots WHERE slot_name = '` + w.slot + `'`)
			text, end, _ := strings.Cut(got, " ")
			restart, err := cdc.ParseLSN(text)
			if err != nil {
				t.Fatal(err)
			}
			if ours := fmt.Sprint(safeBytes(restart, 0, 32<<20, 16<<20)); ours != end {
				t.Errorf("from %s: %s, the server has %s", text, ours, end)
			}
			w.exec(insertRow, "SELECT pg_switch_wal()")
		}
	})
}

func TestHealthNamesWhatHoldsTheWAL(t *testing.T) {
	testenv.OnEachLimited(t, func(t *testing.T, pg *testenv.PG) {
		w := newWorld(t, pg, outboxTable)
		m := w.reader()
		m.minAge = 0

		h := w.read(m)
		if h.Exists || h.Server == 0 || h.RetainedBytes != -1 || h.UnconfirmedBytes != -1 || h.KeepBytes != 32<<20 || h.Database != w.slot || h.Blocker != nil {
			t.Errorf("no slot: %+v", h)
		}
		w.exec(w.made())
		h = w.read(m)
		if !h.Exists || h.RetainedBytes <= 0 || h.UnconfirmedBytes < 0 || h.UnconfirmedBytes > h.RetainedBytes || !h.SafeKnown || h.SafeBytes <= 0 ||
			h.WALStatus != "reserved" || h.Active || h.Restart == 0 || h.Confirmed < h.Restart || h.Server < h.Confirmed || h.CatalogXminAge < 0 || h.Blocker != nil {
			t.Errorf("a fresh slot: %+v", h)
		}
		if since := h.InactiveFor; h.InactiveAtLeast != (pg.Version() < 17) || since < 0 || since > time.Minute {
			t.Errorf("inactive for %s, at least %v", since, h.InactiveAtLeast)
		}
		if h.ServerVersion/10000 != pg.Version() || h.Standby || h.Hidden != "" || h.ClockSkew.Abs() > h.RoundTrip || h.RoundTrip <= 0 || h.Oldest == 0 || h.WALDirBytes != -1 {
			t.Errorf("the server: %+v", h)
		}

		// A transaction that has only read holds nothing; one that has written does.
		conn := testenv.Conn(w.T, w.dsn)
		testenv.Run(w.T, conn, "BEGIN", "SELECT count(*) FROM outbox")
		if h = w.read(m); h.Blocker != nil {
			t.Errorf("a reader: %+v", h.Blocker)
		}
		testenv.Run(w.T, conn, insertRow)
		w.follow() // while we are behind ourselves nobody else is named
		h = w.read(m)
		b := h.Blocker
		if b == nil || b.Kind != BlockedByTransaction || b.PID != int32(conn.PgConn().PID()) || b.Database != w.slot || b.User != "postgres" || b.State != "idle in transaction" ||
			b.End != fmt.Sprintf("SELECT pg_terminate_backend(%d);", b.PID) || b.Age <= 0 {
			t.Errorf("a writer: %+v", b)
		}
		m.minAge = time.Hour
		if h = w.read(m); h.Blocker != nil {
			t.Errorf("a young writer: %+v", h.Blocker)
		}
		m.minAge = 0
		testenv.Run(w.T, conn, `PREPARE TRANSACTION 'it''s mine'`)
		t.Cleanup(func() { // it would hold up the tests after this one
			if w.value("SELECT count(*) FROM pg_prepared_xacts") != "0" {
				w.exec("ROLLBACK PREPARED 'it''s mine'")
			}
		})
		w.follow()
		b = w.read(m).Blocker
		if b == nil || b.Kind != BlockedByPrepared || b.Name != "it's mine" || b.Database != w.slot || b.User != "postgres" {
			t.Fatalf("a prepared one: %+v", b)
		}
		sql, _, _ := strings.Cut(b.End, ";")
		w.exec(sql)
		if h = w.read(m); h.Blocker != nil {
			t.Errorf("after %s: %+v", b.End, h.Blocker)
		}

		// A slot that is further back than ours, once ours has moved.
		w.exec(fmt.Sprintf("SELECT pg_create_physical_replication_slot('%s_old', true)", w.slot))
		t.Cleanup(func() { w.exec(fmt.Sprintf("SELECT pg_drop_replication_slot('%s_old')", w.slot)) })
		w.exec("SELECT pg_switch_wal()", insertRow, "SELECT pg_switch_wal()", insertRow, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", w.slot), w.made())
		if b = w.read(m).Blocker; b == nil || b.Kind != BlockedBySlot || b.Name != w.slot+"_old" || !strings.Contains(b.End, "pg_drop_replication_slot") {
			t.Errorf("an older slot: %+v", b)
		}

		w.pg.LoseSlot(w.T, w.dsn, w.slot)
		h = w.read(m)
		if h.WALStatus != "lost" || h.Invalidation == "" || h.Restart != 0 || h.RetainedBytes != -1 || h.SafeKnown || h.Confirmed == 0 || !h.Exists {
			t.Errorf("lost: %+v", h)
		}
	})
}

func TestMonitorComesBackAfterItsConnectionWasCut(t *testing.T) {
	w := newWorld(t, testenv.Postgres(t, ""), outboxTable)
	w.db.ApplicationName = "monitor of " + w.slot
	m := w.reader()
	w.read(m)
	was := m.conn
	w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'monitor of " + w.slot + "'")
	w.read(m)
	if m.conn == was {
		t.Error("the same connection")
	}
	m.Close()
	m.db.DSN = "postgres://u@127.0.0.1:1/x"
	if _, err := m.Read(t.Context(), false); !fault.Retryable(err) || !strings.Contains(err.Error(), "monitor slot") {
		t.Errorf("unreachable: %v", err)
	}
	m.db.DSN = w.dsn
	w.read(m)
	if state := w.value("SELECT state FROM pg_stat_activity WHERE application_name = 'monitor of " + w.slot + "'"); state != "idle" {
		t.Errorf("between two reads the connection is %q", state)
	}
}
