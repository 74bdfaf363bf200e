package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/testenv"
)

// A role and a user with the privileges of the tables in docs/security.md, and no others, are enough for every command.
func TestEveryCommandNeedsNoMoreThanTheDocumentedPrivileges(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "17", testenv.Private(), testenv.Param("track_commit_timestamp", "on"))
	kafka, asked := testenv.KafkaWithACLs(t, map[string]string{"relay": "secret"}, nil)
	s := newSetting(t, pg, pg.Database(t), kafka)
	own := []string{s.prefix + "checkpoints", s.prefix + "dead", s.prefix + "parked"}
	allow := func(acl *kadm.ACLBuilder, operations ...kadm.ACLOperation) {
		t.Helper()
		acl = acl.Allow("User:relay").AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(operations...)
		made, err := kadm.NewClient(kafka.Client(t)).CreateACLs(t.Context(), acl)
		for _, m := range made {
			if err == nil {
				err = m.Err
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	allow(kadm.NewACLs().Topics(s.topics...), kadm.OpDescribe, kadm.OpDescribeConfigs, kadm.OpWrite, kadm.OpRead)
	allow(kadm.NewACLs().Topics(own...), kadm.OpDescribe, kadm.OpDescribeConfigs, kadm.OpRead, kadm.OpWrite, kadm.OpCreate)
	allow(kadm.NewACLs().TransactionalIDs(s.name), kadm.OpDescribe, kadm.OpWrite)
	allow(kadm.NewACLs().Topics(own[2]), kadm.OpDelete)

	pg.Exec(t, s.dsn, "CREATE ROLE relay LOGIN REPLICATION PASSWORD 'secret'", "GRANT pg_monitor TO relay", "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
		"GRANT SELECT, DELETE, UPDATE (created_at) ON outbox TO relay", "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')")
	hba := filepath.Join(pg.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	if err == nil {
		err = os.WriteFile(hba, append([]byte("host all relay all scram-sha-256\n"), rules...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, s.dsn, "SELECT pg_reload_conf()")
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.outbox, slot: %s, time_column: created_at}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s], sasl: {mechanism: PLAIN, username: relay, password: secret}}
checkpoint: {topic: %s}
delivery: {on_poison: {default: park_key, invalid_topic: halt}, dead_letter_topic: %s, parking_topic: %s}
cleanup: {mode: delete, keep: 24h}
halt_linger: 0s
`, s.name, strings.Replace(s.dsn, "postgres@", "relay:secret@", 1), s.slot(), s.prefix, asked, own[0], own[1], own[2])
	does := func(args ...string) string {
		t.Helper()
		code, out := s.command(args...)
		if code != 0 {
			t.Fatalf("%v: code %d\n%s", args, code, out)
		}
		return out
	}
	eventually(t, time.Minute, "the ACLs have taken effect", func() bool { code, _ := s.command("check"); return code == 0 })
	if out := does("check"); strings.Contains(out, "  FAIL  ") {
		t.Errorf("check:\n%s", out)
	}
	does("config", "validate")
	does("config", "print")
	does("setup")
	w := s.follow()
	r := s.startReady()
	s.insert(pg, "a", 1)
	eventually(t, time.Minute, "an event", func() bool { return w.count() == 1 || r.ended() })
	does("status", "--http", strings.TrimPrefix(r.page, "http://"))
	does("health", "--http", strings.TrimPrefix(r.page, "http://"))
	does("explain", "--last=1")
	does("verify", "--wait", "1m")

	kafka.Configure(t, "max.message.bytes", "2000", s.topics[0])
	big := fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'big', 'Changed', '{"n": 1, "pad": "%s"}')`, pad(4000))
	pg.Exec(t, s.dsn, big)
	eventually(t, time.Minute, "a parked key", func() bool { return strings.Contains(does("dead", "list"), "events: 1\n") || r.ended() })
	does("dead", "show", tokenOf(t, does("dead", "list", "--json")))
	kafka.Configure(t, "max.message.bytes", "1000000", s.topics[0])
	does("dead", "retry", "--key", "big", "--wait")
	eventually(t, time.Minute, "the released event", func() bool { return w.count() == 2 || r.ended() })

	pg.Exec(t, s.dsn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('no topic!', 'b', 'Changed', '{"n": 1}')`)
	if code := r.wait(time.Minute); code != 3 {
		t.Fatalf("a halt: code %d", code)
	}
	token := skipToken.FindStringSubmatch(r.log.String())
	if token == nil {
		t.Fatalf("no token in\n%s", r.log)
	}
	does("skip", token[1])
	r = s.startReady()
	eventually(t, time.Minute, "the letter of the skipped event", func() bool { return strings.Contains(does("dead", "list"), "events: 1\n") || r.ended() })
	does("dead", "drop", "--reason", "a test", tokenOf(t, does("dead", "list", "--json")))
	s.insert(pg, "a", 2)
	eventually(t, time.Minute, "the next event", func() bool { return w.count() == 3 || r.ended() })
	r.stopsClean()

	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('"+s.slot()+"')", "DELETE FROM outbox WHERE aggregate_type = 'no topic!'")
	s.insert(pg, "a", 3)
	does("recover", "--yes")
	does("replay", "--all", "--state", filepath.Join(t.TempDir(), "replay"))
	r = s.startReady()
	s.insert(pg, "a", 4)
	eventually(t, time.Minute, "events after recover", func() bool { return w.ledger.Missing() == 0 && w.count() >= 5 || r.ended() })
	if log := r.log.String(); strings.Contains(log, "enied") || strings.Contains(log, "authorized") {
		t.Errorf("the log:\n%s", log)
	}
	r.stopsClean()
}

// pad is a text that does not become smaller when it is compressed.
func pad(n int) string {
	var b strings.Builder
	for x := uint64(88172645463325252); b.Len() < n; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		fmt.Fprintf(&b, "%x", x)
	}
	return b.String()[:n]
}

var listedToken = regexp.MustCompile(`"token": "([^"]+)"`)

// tokenOf is the first token of a list.
func tokenOf(t *testing.T, list string) string {
	t.Helper()
	found := listedToken.FindStringSubmatch(list)
	if found == nil {
		t.Fatalf("no token in %s", list)
	}
	return found[1]
}
