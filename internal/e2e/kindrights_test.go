package e2e

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A loss is something that somebody takes away from a relay, and gives back later.
type loss struct {
	name         string
	polls        bool   // only a relay that polls misses it
	kinds        string // the kinds that miss it; "" for all
	take, giveIt string
	cut          bool // a new connection misses it, and no other
	// code is the exit code of the relay, 0 if it waits. says is a part of the reason, and mend of what walpost check or the hint says.
	code       int
	says, mend string
}

// What somebody takes away from the role or the table of a relay, while 16 writers go on. The relay waits, or ends with a reason and what
// repairs it. Nothing is lost, and the order is kept.
func TestEachSourceOutlivesWhatIsTakenAway(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("max_connections", "120"), testenv.Param("track_commit_timestamp", "on"))
	hba := filepath.Join(server.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hba, append([]byte("host all /^role_ all scram-sha-256\nhost replication /^role_ all scram-sha-256\n"), rules...), 0o600); err != nil {
		t.Fatal(err)
	}
	server.Exec(t, server.DSN("postgres"), "SELECT pg_reload_conf()")
	eachKind(t, func(t *testing.T, k kind) {
		s, role := k.newSetting(t, server, testenv.Kafka(t)), "role_"+k.name
		s.through = strings.Replace(s.dsn, "postgres@", role+":one@", 1)
		if s.through == s.dsn {
			t.Fatalf("the user is not in %s", s.dsn)
		}
		s.source = strings.Replace(s.source, "lease: 15s", "lease: 5s", 1) // a worker that ends may leave claimed rows
		s.pause = 100 * time.Millisecond
		s.extra = "halt_linger: 0s\nmonitor: {interval: 1s}\n"
		grant := "GRANT SELECT, UPDATE, DELETE ON outbox TO " + role
		server.Exec(t, s.dsn, "CREATE ROLE "+role+" LOGIN REPLICATION PASSWORD 'one'", grant, "GRANT pg_monitor TO "+role)
		w := s.follow()
		r := s.startReady()
		c := s.crowd(16, 21)
		for _, l := range []loss{
			{"SELECT", true, "", "REVOKE SELECT ON outbox FROM " + role, grant, false, 0, "role " + role + " may not read public.outbox", `GRANT SELECT ON "public"."outbox" TO "` + role},
			{"UPDATE", true, "claim delete", "REVOKE UPDATE ON outbox FROM " + role, grant, false, 0, "role " + role + " may not update the columns of workers in public.outbox", `ON "public"."outbox" TO "` + role},
			{"DELETE", true, "delete", "REVOKE DELETE ON outbox FROM " + role, grant, false, 0, "role " + role + " may not delete from public.outbox", "DELETE"},
			{"USAGE of the schema", true, "", "REVOKE USAGE ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA public TO PUBLIC", false, 0, "role " + role + " may not read public.outbox", `GRANT USAGE ON SCHEMA "public" TO "` + role},
			{"the login", false, "", "ALTER ROLE " + role + " NOLOGIN", "ALTER ROLE " + role + " LOGIN", true, 0, "is not permitted to log in", "may log in"},
			{"the password", false, "", "ALTER ROLE " + role + " PASSWORD 'two'", "ALTER ROLE " + role + " PASSWORD 'one'", true, 0, "password authentication failed", "source.password"},
			{"the name of the table", false, "", "ALTER TABLE outbox RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO outbox", false, 3, "table public.outbox does not exist", "source.table"},
			{"the name of a column", true, "", "ALTER TABLE outbox RENAME payload TO body", "ALTER TABLE outbox RENAME body TO payload", false, 3, "payload", "table.field.event"},
		} {
			if l.polls && k.poll == "" || !strings.Contains(cmp.Or(l.kinds, k.name), k.name) {
				continue
			}
			eventually(t, time.Minute, "ready", r.ready)
			began := time.Now()
			server.Exec(t, s.dsn, l.take)
			if l.cut {
				server.Exec(t, s.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+role+"'")
			}
			if l.code == 0 {
				r.notReady(time.Minute, l.says)
				if code, out := s.command("check"); code != 1 || !strings.Contains(strings.Join(strings.Fields(out), " "), l.mend) {
					t.Errorf("%s: check ends with %d and lacks %q:\n%s", l.name, code, l.mend, out)
				}
			} else if code := r.wait(time.Minute); code != l.code || !strings.Contains(r.log.String(), l.says) || !strings.Contains(r.log.String(), l.mend) {
				t.Errorf("%s: code %d, must be %d with %q and %q:\n%s", l.name, code, l.code, l.says, l.mend, r.log)
			}
			server.Exec(t, s.dsn, l.giveIt)
			if r.ended() {
				if k.poll == "" && l.code == 3 { // the rows of the meantime are not in the stream
					if code, out := s.command("recover", "--yes"); code != 0 {
						t.Fatalf("recover: code %d\n%s", code, out)
					}
				}
				r = s.startReady()
			}
			w.more(t, time.Minute, 20)
			t.Logf("%s: events flow after %s", l.name, time.Since(began).Round(time.Millisecond))
		}
		c.stop()
		eventually(t, time.Minute, "ready", r.ready)
		k.holds(s, w, true)
		r.stopsClean()
	})
}
