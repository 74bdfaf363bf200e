//go:build linux || darwin

package localpg

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func start(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func value(t *testing.T, s *Server, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var v string
	if err := conn.QueryRow(ctx, sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestEachVersionStartsWithLogicalWALAndLeavesNothing(t *testing.T) {
	for _, version := range Versions() {
		t.Run(version, func(t *testing.T) {
			s := start(t, Config{Version: version})
			if got := value(t, s, "SELECT current_setting('server_version_num')::int / 10000 || ''"); got != version {
				t.Errorf("server version %s, want %s", got, version)
			}
			if got := value(t, s, "SHOW wal_level"); got != "logical" {
				t.Errorf("wal_level %s, want logical", got)
			}
			folder := s.Folder()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(folder); !os.IsNotExist(err) {
				t.Errorf("the folder %s is still there (%v)", folder, err)
			}
			if n := processesIn(t, folder); n != 0 {
				t.Errorf("%d processes still run in %s", n, folder)
			}
		})
	}
}
