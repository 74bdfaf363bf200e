//go:build linux || darwin

package testenv

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestADatabaseGoesWithItsSlotsAtTheEndOfTheTest(t *testing.T) {
	pg := Postgres(t, "")
	t.Run("", func(t *testing.T) {
		var conn *pgconn.PgConn
		t.Cleanup(func() {
			if conn != nil {
				_ = conn.Close(context.Background())
			}
		}) // after the database is dropped
		dsn := pg.Database(t)
		pg.Exec(t, dsn, "CREATE PUBLICATION p", "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')",
			"SELECT pg_create_logical_replication_slot('in_use', 'pgoutput')")
		var err error
		conn, err = pgconn.Connect(t.Context(), dsn+"&replication=database")
		if err != nil {
			t.Fatal(err)
		}
		if err := pglogrepl.StartReplication(t.Context(), conn, "in_use", 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names 'p'"},
		}); err != nil {
			t.Fatal(err)
		}
	})
	if got := pg.Value(t, pg.DSN("postgres"), "SELECT (SELECT count(*) FROM pg_replication_slots) || ' ' || (SELECT count(*) FROM pg_database WHERE datname LIKE 'wp%')"); got != "0 0" {
		t.Errorf("slots and databases left: %s, want 0 0", got)
	}
}

func TestASlotIsDroppedWhenItsWalsenderHasEnded(t *testing.T) {
	pg := Postgres(t, "")
	dsn := pg.Database(t)
	slot := unique("slot")
	pg.Exec(t, dsn, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')", "CREATE PUBLICATION p FOR ALL TABLES")
	conn, err := pgconn.Connect(t.Context(), dsn+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}
	if err := pglogrepl.StartReplication(t.Context(), conn, slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'p'"}}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = conn.Conn().Close() }) // as if the client was killed
	pg.Exec(t, dsn, "SELECT pg_drop_replication_slot('"+slot+"')")
}

func TestAServerIsSharedByThoseWhoAskForTheSame(t *testing.T) {
	a, b := Postgres(t, "15"), Postgres(t, "15")
	c := Postgres(t, "15", Param("wal_sender_timeout", "7s"))
	p := Postgres(t, "15", Private())
	if a != b {
		t.Error("two servers for the same wish")
	}
	if a == c || a == p {
		t.Error("one server for different wishes")
	}
	if got := c.Value(t, c.DSN("postgres"), "SHOW wal_sender_timeout"); got != "7s" {
		t.Errorf("wal_sender_timeout %s, want 7s", got)
	}
	id := "SELECT system_identifier FROM pg_control_system()"
	own := Postgres(t, "15", OwnIdentity())
	if x, y := a.Value(t, a.DSN("postgres"), id), own.Value(t, own.DSN("postgres"), id); x == y {
		t.Errorf("two servers with the system identifier %s", x)
	}
}

func TestAKilledServerComesBackWithItsDataOnItsPort(t *testing.T) {
	pg := Postgres(t, "", Private())
	dsn := pg.DSN("postgres")
	pg.Exec(t, dsn, "CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
	for _, end := range []func() error{
		pg.Kill,
		func() error { return pg.Stop("immediate", time.Minute) },
		func() error { return pg.Stop("fast", time.Minute) },
		func() error { return pg.Stop("smart", time.Minute) },
	} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if pg.Running() {
			t.Fatal("still running")
		}
		pg.Start(t)
		if got := pg.Value(t, dsn, "SELECT count(*) FROM kept"); got != "1" {
			t.Fatalf("%s rows, want 1", got)
		}
	}
}
