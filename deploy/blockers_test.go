//go:build linux || darwin

package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/internal/testenv"
)

// listsBlockers matches the statements of the docs that list transactions. A statement with a
// placeholder ends one.
var listsBlockers = regexp.MustCompile(`backend_x|FROM pg_prepared_xacts`)

// TestBlockersInTheDocsAreWhatBlocks opens each kind of transaction, and compares what the server
// does to restart_lsn of a slot with what the statements of the docs list. Whoever ends what they list
// must not end an innocent pg_dump.
func TestBlockersInTheDocsAreWhatBlocks(t *testing.T) {
	type statement struct{ page, sql string }
	var statements []statement
	for _, pattern := range []string{"*.md", "runbooks/*.md"} {
		pages, err := filepath.Glob(filepath.Join("..", "docs", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range sqlBlock.FindAllSubmatch(text, -1) {
				if sql := string(m[1]); listsBlockers.MatchString(sql) && placeholder.FindString(sql) == "" {
					statements = append(statements, statement{filepath.Base(page), sql})
				}
			}
		}
	}
	if len(statements) < 4 {
		t.Fatalf("%d statements", len(statements))
	}
	pg := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("max_prepared_transactions", "5"))
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		return conn
	}
	admin := connect()
	exec := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	text := func(sql string) (s string) {
		t.Helper()
		if err := admin.QueryRow(t.Context(), sql).Scan(&s); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return s
	}
	exec(admin, "CREATE TABLE t (id int)")
	for _, kind := range []struct {
		name       string
		begin, end []string
		blocks     bool
	}{
		{"a snapshot, as pg_dump has it", []string{"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM t"}, []string{"ROLLBACK"}, false},
		{"an idle transaction that wrote nothing", []string{"BEGIN", "SELECT 1"}, []string{"ROLLBACK"}, false},
		{"a transaction that wrote", []string{"BEGIN", "INSERT INTO t VALUES (1)"}, []string{"ROLLBACK"}, true},
		{"a prepared transaction", []string{"BEGIN", "INSERT INTO t VALUES (1)", "PREPARE TRANSACTION 'gid-1'"}, []string{"ROLLBACK PREPARED 'gid-1'"}, true},
	} {
		t.Run(kind.name, func(t *testing.T) {
			exec(admin, "SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
			defer exec(admin, "SELECT pg_drop_replication_slot('s')")
			conn := connect()
			for _, sql := range kind.begin {
				exec(conn, sql)
			}
			begun := text("SELECT pg_current_wal_lsn()::text")
			passed := false
			for round := 0; round < 10 && !passed; round++ {
				exec(admin, "INSERT INTO t VALUES (2)")
				exec(admin, "CHECKPOINT") // writes which transactions run, from which restart_lsn comes
				exec(admin, "SELECT count(*) FROM pg_logical_slot_get_changes('s', NULL, NULL)")
				passed = text("SELECT (restart_lsn > '"+begun+"')::text FROM pg_replication_slots WHERE slot_name = 's'") == "true"
			}
			if passed == kind.blocks {
				t.Errorf("restart_lsn passes it: %t", passed)
			}
			listed := fmt.Sprint(conn.PgConn().PID())
			if kind.name == "a prepared transaction" {
				listed = "gid-1"
			}
			lists := map[string]bool{}
			for _, s := range statements {
				rows, err := admin.Query(t.Context(), s.sql, pgx.QueryExecModeSimpleProtocol)
				if err != nil {
					t.Fatal(err)
				}
				for rows.Next() {
					values, err := rows.Values()
					if err != nil {
						t.Fatal(err)
					}
					lists[s.page] = lists[s.page] || slices.Contains(strings.Fields(fmt.Sprint(values[0])), listed)
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range statements {
				if lists[s.page] != kind.blocks {
					t.Errorf("%s lists it: %t, and it holds restart_lsn: %t", s.page, lists[s.page], kind.blocks)
				}
			}
			for _, sql := range kind.end {
				exec(conn, sql)
			}
		})
	}
}
