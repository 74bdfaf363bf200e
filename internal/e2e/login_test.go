package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A changed password, a role that is made again and a file that is replaced end no relay that has worked, and no hot standby. Both wait,
// say why, and go on. A start ends at once.
func TestARelayThatHasWorkedWaitsForItsLogin(t *testing.T) {
	t.Parallel()
	for _, k := range kinds[:2] {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t, "15", testenv.Private())
			s := k.newSetting(t, pg, testenv.Kafka(t))
			pg.Exec(t, s.dsn, "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'right'", "GRANT SELECT ON outbox TO relay")
			if code, out := s.command("setup", "--apply", "--role=relay"); code != 0 {
				t.Fatalf("setup: code %d\n%s", code, out)
			}
			set := func(sql ...string) func() {
				return func() { pg.Exec(t, s.dsn, append(sql, "SELECT pg_reload_conf()")...) }
			}
			write := func(path, text string) func() {
				return func() {
					if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			hba := filepath.Join(pg.DataDir(), "pg_hba.conf")
			rules, err := os.ReadFile(hba)
			if err != nil {
				t.Fatal(err)
			}
			asked := "host all relay all scram-sha-256\n" + string(bytes.TrimSpace(rules)) + "\n"
			secret := filepath.Join(t.TempDir(), "password")
			write(hba, asked)()
			write(secret, "right\n")()
			set()()
			u, err := url.Parse(s.dsn)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.User("relay")
			s.through = u.String()
			s.source += fmt.Sprintf(", password_file: %q", secret)

			a := s.startReady()
			b := s.start()
			b.notReady(30*time.Second, "waiting for it")
			w := s.follow()
			rejected, allowed := write(hba, "host all relay all reject\n"+asked), write(hba, asked)
			type fault struct {
				name, why  string
				make, mend func()
			}
			faults := []fault{
				{"another password", "password authentication failed", set("ALTER ROLE relay PASSWORD 'other'"), set("ALTER ROLE relay PASSWORD 'right'")},
				{"no login", "not permitted to log in", set("ALTER ROLE relay NOLOGIN"), set("ALTER ROLE relay LOGIN")},
				{"pg_hba", "pg_hba.conf rejects", func() { rejected(); set()() }, func() { allowed(); set()() }},
				{"no file", "no such file", func() { _ = os.Remove(secret) }, write(secret, "right\n")},
				{"an empty file", "must not be empty", write(secret, ""), write(secret, "right\n")},
			}
			if k.poll == "" {
				faults = append(faults, fault{"no replication", "to start walsender", set("ALTER ROLE relay NOREPLICATION"), set("ALTER ROLE relay REPLICATION")})
			} else {
				faults = append(faults, fault{"no right", "may not read", set("REVOKE SELECT ON outbox FROM relay"), set("GRANT SELECT ON outbox TO relay")})
			}
			for i, f := range faults {
				f.make()
				pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'Changed', '{"n": %d}')`, i+1))
				for _, r := range []*relay{a, b} {
					cut := time.Now()
					eventually(t, time.Minute, f.name+": not ready, and why", func() bool {
						code, body := r.get("/readyz")
						// Also one that connected before Postgres read its files again, and one that waits for a slot that was free when it connected.
						if code == http.StatusOK || strings.HasPrefix(body, "standby") || !strings.Contains(body, f.why) && time.Since(cut) > 5*time.Second {
							cut = time.Now()
							pg.Exec(t, s.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'")
						}
						return code == http.StatusServiceUnavailable && strings.Contains(body, f.why) || r.ended()
					})
				}
				if i == 0 {
					if code, out := s.command("run"); code != 1 || !strings.Contains(out, f.why) {
						t.Errorf("a start: code %d\n%s", code, out)
					}
				}
				f.mend()
				eventually(t, time.Minute, "one of the two is ready", func() bool { return a.ready() || b.ready() || a.ended() || b.ended() })
				if a.ended() || b.ended() {
					t.Fatalf("%s: a relay ended", f.name)
				}
			}
			// A standby takes over before the other one has written down what it had just delivered.
			if rep := s.settle(w, time.Minute); rep.Lost+rep.Invented+rep.Disordered+rep.Changed+rep.Moved > 0 {
				t.Errorf("broken promises: %s", &rep)
			}
			a.stopsClean()
			eventually(t, time.Minute, "the standby goes on", b.ready)
			b.stopsClean()
		})
	}
}
