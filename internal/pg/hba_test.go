package pg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/testenv"
)

// hba replaces pg_hba.conf by lines, behind one for the superuser.
func hba(t *testing.T, pg *testenv.PG, lines ...string) {
	t.Helper()
	text := "host all postgres 127.0.0.1/32 trust\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(pg.DataDir(), "pg_hba.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The manual: "the value replication specifies that the record matches if a physical replication connection is requested, however, it
// does not match with logical replication connections" (auth-pg-hba-conf.html). Here it is seen.
func TestTheWordReplicationInPgHbaIsNotForALogicalConnection(t *testing.T) {
	for _, v := range []string{"14", "18"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, v, testenv.Private())
			dsn := pg.Database(t)
			pg.Exec(t, dsn, "CREATE ROLE app LOGIN REPLICATION")
			db := Database{DSN: strings.Replace(dsn, "postgres@", "app@", 1)}
			name, err := db.Name()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				line              string
				logical, physical bool
			}{
				{"host replication app 127.0.0.1/32 trust", false, true},
				{"host " + name + " app 127.0.0.1/32 trust", true, false},
				{"host all app 127.0.0.1/32 trust", true, false},
				{"", false, false},
			} {
				hba(t, pg, c.line)
				pg.Restart(t)
				refused := func(what string, got, want error) {
					t.Helper()
					if (got == nil) != (want == nil) || got != nil && (SQLState(got) != "28000" || !strings.Contains(got.Error(), "no pg_hba.conf entry for")) {
						t.Errorf("with %q, %s: %v", c.line, what, got)
					}
				}
				wanted := func(b bool) error {
					if b {
						return nil
					}
					return errors.New("refused")
				}
				sql, err := db.ConnectSQL(t.Context())
				refused("sql", err, wanted(c.logical))
				Close(sql)
				stream, err := db.ConnectReplication(t.Context())
				refused("replication=database", err, wanted(c.logical))
				Close(stream)
				conn, err := pgconn.Connect(t.Context(), db.DSN+"&replication=true")
				refused("replication=true", err, wanted(c.physical))
				Close(conn)
			}
		})
	}
}
