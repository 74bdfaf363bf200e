package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walpost/walpost/internal/testenv"
)

// No password is in the log (at its most talkative), in what HTTP and the commands answer, in the command line, or in the dump of a
// process: neither while all is well nor while a login is refused.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	const pgSecret, kafkaSecret, wrong = "hunter2-of-postgres", "hunter2-of-kafka", "hunter2-that-is-wrong"
	pg := testenv.Postgres(t, "16", testenv.Private())
	kafka, asked := testenv.KafkaWithACLs(t, map[string]string{"relay": kafkaSecret}, nil)
	acl := kadm.NewACLs().Topics("*").Clusters().Allow("User:relay").AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpAll)
	if made, err := kadm.NewClient(kafka.Client(t)).CreateACLs(t.Context(), acl); err != nil || made[0].Err != nil {
		t.Fatal(made, err)
	}
	s := newSetting(t, pg, pg.Database(t), kafka)
	pg.Exec(t, s.dsn, "CREATE ROLE relay LOGIN REPLICATION PASSWORD '"+pgSecret+"'", "GRANT SELECT ON outbox TO relay", "CREATE PUBLICATION walpost FOR TABLE outbox")
	hba := filepath.Join(pg.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	if err == nil {
		err = os.WriteFile(hba, append([]byte("host all relay all scram-sha-256\n"), rules...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	pg.Exec(t, s.dsn, "SELECT pg_reload_conf()")
	dsn := strings.Replace(s.dsn, "postgres@", "relay@", 1)
	file := filepath.Join(t.TempDir(), "kafka")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(kafkaSecret)
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, password: %s, table: public.outbox, slot: %s}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s], sasl: {mechanism: PLAIN, username: relay, password_file: %q}}
log: {level: debug}
`, s.name, dsn, pgSecret, s.slot(), s.prefix, asked, file)

	shown := map[string]string{}
	look := func(when string, r *relay, more ...[]string) {
		for _, path := range []string{"/", "/livez", "/readyz", "/metrics", "/api/status", "/api/history"} {
			_, shown[path+" "+when] = r.get(path)
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.cmd.Process.Pid))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		shown["ps "+when] = string(cmdline)
		for _, args := range append(more, [][]string{
			{"check"},
			{"check", "--json"},
			{"config", "print"},
			{"config", "validate"},
			{"status", "--json"},
			{"explain", "--last=1"},
			{"verify", "--json", "--wait", "1s"},
			{"dead", "list"},
			{"setup", "--role=relay"},
			{"health", "--http", "off"},
		}...) {
			_, out := s.command(args...)
			shown["walpost "+strings.Join(args, " ")+" "+when] = out
		}
	}
	w := s.follow()
	r := s.startReady()
	s.insert(pg, "k", 1)
	eventually(t, time.Minute, "an event arrives", func() bool { return w.count() > 0 || r.ended() })
	look("while all is well", r, []string{"recover", "--yes"}) // without Kafka it would wait

	cut := func() { // what is open stays open, whatever its password was
		pg.Exec(t, s.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'")
	}
	pg.Exec(t, s.dsn, "ALTER ROLE relay PASSWORD '"+wrong+"'")
	cut()
	r.notReady(time.Minute, "password authentication failed")
	look("while Postgres refuses the login", r, []string{"recover", "--yes"})
	pg.Exec(t, s.dsn, "ALTER ROLE relay PASSWORD '"+pgSecret+"'")
	eventually(t, time.Minute, "ready again", func() bool { return r.ready() || r.ended() })

	write(wrong)
	look("while Kafka refuses new logins", r)
	fresh := s.start() // a standby, which has to log in
	look("of a process that Kafka refuses", fresh)
	write(kafkaSecret)
	for name, r := range map[string]*relay{"one": r, "two": fresh} {
		_ = r.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
		r.wait(time.Minute)
		shown["log and dump of process "+name] = r.log.String()
	}
	if dump := shown["log and dump of process one"]; !strings.Contains(dump, "SIGQUIT") || !strings.Contains(dump, "goroutine ") {
		t.Errorf("there is no dump:\n%s", dump)
	}
	for what, text := range shown {
		for i := strings.Index(text, "hunter2"); i >= 0; i = -1 {
			t.Errorf("%s: …%s…", what, text[max(0, i-200):min(len(text), i+60)])
		}
		if text == "" && !strings.HasPrefix(what, "ps ") {
			t.Errorf("%s: nothing", what)
		}
	}
}
