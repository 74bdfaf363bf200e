package replication

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

func TestTheLineForPgHbaIsOneThatTheServerTakes(t *testing.T) {
	for want, c := range map[string]hbaClient{
		"host shop u 10.1.2.3/32 scram-sha-256":             {"10.1.2.3", false, "shop", "u"},
		"hostssl shop u fd00::1/128 scram-sha-256":          {"fd00::1", true, "shop", "u"},
		"local shop u scram-sha-256":                        {"", false, "shop", "u"},
		`local "all" "my role" scram-sha-256`:               {"[local]", false, "all", "my role"},
		"host shop u the.client's.address scram-sha-256":    {"the.client's.address", false, "shop", "u"},
		`hostssl "replication" u 10.0.0.1/32 scram-sha-256`: {"::ffff:10.0.0.1", true, "replication", "u"},
	} {
		if got := hbaLine(c); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

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
			w := newWorld(t, pg, "CREATE ROLE app LOGIN REPLICATION")
			w.cfg.DSN = strings.Replace(w.dsn, "postgres@", "app@", 1)
			for _, c := range []struct {
				line              string
				logical, physical bool
			}{
				{"host replication app 127.0.0.1/32 trust", false, true},
				{"host " + w.cfg.Slot + " app 127.0.0.1/32 trust", true, false},
				{"host all app 127.0.0.1/32 trust", true, false},
				{"", false, false},
			} {
				hba(t, pg, c.line)
				pg.Restart(t)
				refused := func(what string, got, want error) {
					t.Helper()
					if (got == nil) != (want == nil) || got != nil && (sqlState(got) != "28000" || !strings.Contains(got.Error(), "no pg_hba.conf entry for")) {
						t.Errorf("with %q, %s: %v", c.line, what, got)
					}
				}
				wanted := func(b bool) error {
					if b {
						return nil
					}
					return errors.New("refused")
				}
				sql, err := w.cfg.connectSQL(t.Context())
				refused("sql", err, wanted(c.logical))
				closeConn(sql)
				stream, err := w.cfg.connectReplication(t.Context())
				refused("replication=database", err, wanted(c.logical))
				closeConn(stream)
				if line := "host " + w.cfg.Slot + " app 127.0.0.1/32 scram-sha-256"; err != nil && !strings.Contains(fault.Hint(err), "Add this line to pg_hba.conf: "+line+" and reload") {
					t.Errorf("the hint is %q, want the line %q", fault.Hint(err), line)
				}
				conn, err := pgconn.Connect(t.Context(), w.cfg.DSN+"&replication=true")
				refused("replication=true", err, wanted(c.physical))
				closeConn(conn)
			}
			// The line of the hint is one that lets us in.
			_, err := w.cfg.connectSQL(t.Context())
			_, line, _ := strings.Cut(fault.Hint(err), "pg_hba.conf: ")
			line, _, _ = strings.Cut(line, " and reload")
			hba(t, pg, strings.Replace(line, "scram-sha-256", "trust", 1))
			pg.Restart(t)
			conn, err := w.cfg.connectReplication(t.Context())
			if err != nil {
				t.Errorf("with %q: %v", line, err)
			}
			closeConn(conn)
		})
	}
}

// named is the first finding of that name.
func named(found []Finding, name string) *Finding {
	for i := range found {
		if found[i].Name == name {
			return &found[i]
		}
	}
	return nil
}

func TestTheHintOfARefusalIsForTheAddressThatTheServerSees(t *testing.T) {
	for message, want := range map[string][2]string{
		`no pg_hba.conf entry for host "10.1.2.3", user "u", database "shop", no encryption`:          {"conf: host shop u 10.1.2.3/32 scram-sha-256 and", "only. Where the server wants TLS"},
		`no pg_hba.conf entry for host "10.1.2.3", user "u", database "shop", SSL encryption`:         {"conf: hostssl shop u 10.1.2.3/32 scram-sha-256 and", "only."},
		`pg_hba.conf rejects connection for host "fd00::1", user "u", database "shop", no encryption`: {"conf: host shop u fd00::1/128 scram-sha-256 and", "only. Where the server wants TLS"},
		`no pg_hba.conf entry for host "[local]", user "u", database "shop", no encryption`:           {"conf: local shop u scram-sha-256 and", "only."},
		`kein pg_hba.conf-Eintrag`: {"conf: host shop u the.client's.address scram-sha-256 and", "only."},
	} {
		got := hbaHint(message, "shop", "u")
		if !strings.Contains(got, want[0]) || !strings.Contains(got, want[1]) || strings.HasSuffix(want[1], "only.") != strings.HasSuffix(got, "only.") {
			t.Errorf("%s: %s", message, got)
		}
	}
}
