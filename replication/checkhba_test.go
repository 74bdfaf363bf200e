package replication

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

func TestPgHbaIsReadAsTheServerReadsIt(t *testing.T) {
	rule := func(kind, databases, users, address, netmask, method string) hbaRule {
		return hbaRule{Line: 7, Type: kind, Databases: strings.Fields(databases), Users: strings.Fields(users), Address: address, Netmask: netmask, Method: method}
	}
	const wide = "255.0.0.0"
	for _, c := range []struct {
		name  string
		rules []hbaRule
		from  string
		ssl   bool
		level Level // "" where nothing is said
		want  string
	}{
		{"its database", []hbaRule{rule("host", "x shop", "u", "10.0.0.0", wide, "scram-sha-256")}, "10.1.2.3", false, OK, "line 7 of pg_hba.conf lets role u in to database shop"},
		{"all", []hbaRule{rule("host", "all", "all", "all", "", "md5")}, "10.1.2.3", false, OK, "lets"},
		{"the word replication", []hbaRule{rule("host", "replication", "u", "all", "", "md5")}, "10.1.2.3", false, Warn, "no line lets role u in to database shop"},
		{"another database", []hbaRule{rule("host", "x", "u", "all", "", "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"the role's own database only", []hbaRule{rule("host", "sameuser", "u", "all", "", "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"another role", []hbaRule{rule("host", "shop", "v", "all", "", "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"another network", []hbaRule{rule("host", "shop", "u", "11.0.0.0", wide, "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"within the network's bits", []hbaRule{rule("host", "shop", "u", "10.1.2.0", "255.255.255.252", "md5")}, "10.1.2.3", false, OK, "lets"},
		{"beyond the network's bits", []hbaRule{rule("host", "shop", "u", "10.1.2.0", "255.255.255.252", "md5")}, "10.1.2.4", false, Warn, "no line"},
		{"the other protocol", []hbaRule{rule("host", "shop", "u", "::", "::", "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"the same protocol", []hbaRule{rule("host", "shop", "u", "fd00::", "ff00::", "md5")}, "fd00::1", false, OK, "lets"},
		{"TLS only", []hbaRule{rule("hostssl", "shop", "u", "all", "", "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"TLS", []hbaRule{rule("hostssl", "shop", "u", "all", "", "md5")}, "10.1.2.3", true, OK, "lets"},
		{"no TLS", []hbaRule{rule("hostnossl", "shop", "u", "all", "", "md5")}, "10.1.2.3", true, Warn, "no line"},
		{"GSS only", []hbaRule{rule("hostgssenc", "shop", "u", "all", "", "md5")}, "10.1.2.3", true, Warn, "no line"},
		{"a socket is not a host", []hbaRule{rule("host", "shop", "u", "all", "", "md5")}, "", false, Warn, "no line"},
		{"a host is not a socket", []hbaRule{rule("local", "shop", "u", "", "", "md5")}, "10.1.2.3", false, Warn, "no line"},
		{"a socket", []hbaRule{rule("local", "shop", "u", "", "", "peer")}, "", false, OK, "lets"},
		{"the first that fits counts", []hbaRule{rule("host", "shop", "u", "10.0.0.0", wide, "reject"), rule("host", "all", "all", "all", "", "md5")}, "10.1.2.3", false, Warn, "line 7 of pg_hba.conf refuses role u in database shop"},
		{"one that does not fit does not", []hbaRule{rule("host", "x", "u", "10.0.0.0", wide, "reject"), rule("host", "all", "all", "all", "", "md5")}, "10.1.2.3", false, OK, "lets"},
		{"nobody knows a group", []hbaRule{rule("host", "shop", "+g", "all", "", "reject"), rule("host", "all", "all", "all", "", "md5")}, "10.1.2.3", false, "", ""},
		{"a group does not matter for others", []hbaRule{rule("host", "x", "+g", "all", "", "reject"), rule("host", "all", "all", "all", "", "md5")}, "10.1.2.3", false, OK, "lets"},
		{"nor beside the name", []hbaRule{rule("host", "shop", "+g u", "all", "", "md5")}, "10.1.2.3", false, OK, "lets"},
		{"nobody knows a pattern", []hbaRule{rule("host", "/^sh", "u", "all", "", "md5")}, "10.1.2.3", false, "", ""},
		{"nobody knows a name", []hbaRule{rule("host", "shop", "u", "app.internal", "", "md5")}, "10.1.2.3", false, "", ""},
		{"trust far away", []hbaRule{rule("host", "shop", "u", "10.0.0.0", wide, "trust")}, "10.1.2.3", false, Warn, "lets anybody at 10.0.0.0 in as role u without a password"},
		{"a line that cannot be read", []hbaRule{rule("host", "all", "all", "all", "", "md5"), {File: "/etc/pg/extra.conf", Line: 3, Error: "invalid thing"}}, "10.1.2.3", false, Warn, "line 3 of /etc/pg/extra.conf cannot be read (invalid thing)"},
		{"a file that may not be read", nil, "10.1.2.3", false, "", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			cfg := valid()
			f := &facts{server: serverFacts{Version: 180006, Role: "u", Database: "shop"}}
			j := &judgement{cfg: &cfg, f: f}
			j.reach(&examined{Client: c.from, SSL: c.ssl, rules: c.rules})
			switch {
			case c.level == "" && len(j.found) > 0:
				t.Errorf("got %+v, want nothing", j.found)
			case c.level != "" && (len(j.found) != 1 || j.found[0].Level != c.level || !strings.Contains(j.found[0].Detail, c.want)):
				t.Errorf("got %+v, want %s %q", j.found, c.level, c.want)
			case c.level == Warn && j.found[0].Fix == "":
				t.Errorf("no fix: %+v", j.found)
			}
		})
	}
}

func TestTheLineForPgHbaIsOneThatTheServerTakes(t *testing.T) {
	for want, c := range map[string]hbaClient{
		"host shop u 10.1.2.3/32 scram-sha-256":             {"10.1.2.3", false, "shop", "u"},
		"hostssl shop u fd00::1/128 scram-sha-256":          {"fd00::1", true, "shop", "u"},
		"local shop u scram-sha-256":                        {"", false, "shop", "u"},
		`local "all" "my role" scram-sha-256`:               {"[local]", false, "all", "my role"},
		"host shop u the.client's.address scram-sha-256":    {"the.client's.address", false, "shop", "u"},
		`hostssl "replication" u 10.0.0.1/32 scram-sha-256`: {"::ffff:10.0.0.1", true, "replication", "u"},
	} {
		if got := hbaLine(&c); got != want {
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

// What is in the file now counts from the next reload on, while every connection still works.
func TestAnExaminationSeesWhatPgHbaWillRefuse(t *testing.T) {
	for _, v := range []string{"15", "18"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, v, testenv.Private())
			w := newWorld(t, pg, outboxTable)
			for _, c := range []struct {
				lines []string
				level Level
				want  string
			}{
				{[]string{"host nothing nobody 127.0.0.1/32 nonsense"}, Warn, "line 2 of pg_hba.conf cannot be read"},
				{[]string{"host all all 127.0.0.1/32 trust"}, OK, "line 1 of pg_hba.conf lets role postgres in to database " + w.cfg.Slot},
			} {
				hba(t, pg, c.lines...)
				f := named(w.examine(), "pg_hba.conf")
				if f == nil || f.Level != c.level || !strings.Contains(f.Detail, c.want) {
					t.Errorf("with %q: %+v", c.lines, f)
				}
			}
			for line, want := range map[string]string{
				"host all all 127.0.0.1/32 reject":      "line 1 of pg_hba.conf refuses role postgres",
				"host replication all 127.0.0.1/32 md5": "no line lets role postgres in",
			} {
				if err := os.WriteFile(filepath.Join(pg.DataDir(), "pg_hba.conf"), []byte(line+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				f := named(w.examine(), "pg_hba.conf")
				if f == nil || f.Level != Warn || !strings.Contains(f.Detail, want) || !strings.Contains(f.Fix, fmt.Sprintf("host %s postgres 127.0.0.1/32 scram-sha-256", w.cfg.Slot)) {
					t.Errorf("with %q: %+v", line, f)
				}
			}
			// A role of no rank may not read the file, which is no finding.
			hba(t, pg, "host all all 127.0.0.1/32 trust")
			w.exec("CREATE ROLE app LOGIN REPLICATION", "SELECT pg_reload_conf()")
			w.cfg.DSN = strings.Replace(w.dsn, "postgres@", "app@", 1)
			found := w.examine()
			if f := named(found, "pg_hba.conf"); f != nil {
				t.Errorf("found %+v", f)
			}
			if f := named(found, "settings"); f != nil {
				t.Errorf("found %+v", f)
			}
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
