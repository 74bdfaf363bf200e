package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/internal/testenv"
)

// A diagnosis is what check --json prints.
type diagnosis struct {
	Verdict  string
	Counts   map[string]int
	Findings []struct{ Side, Name, Verdict, Why, Fix string }
	code     int
	text     string
}

// doctor runs check --json.
func (s *setting) doctor(args ...string) *diagnosis {
	s.t.Helper()
	cmd := exec.Command(program, append([]string{"check", "--json", "--config", s.config()}, args...)...)
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	d := &diagnosis{code: cmd.ProcessState.ExitCode(), text: string(out)}
	if err := json.Unmarshal(out, d); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	if (d.Verdict == "FAIL") != (d.code == 1) || d.code > 1 {
		s.t.Errorf("verdict %s, exit code %d", d.Verdict, d.code)
	}
	return d
}

// of returns the finding of that side whose name begins so; nil for none.
func (d *diagnosis) of(side, name string) *struct{ Side, Name, Verdict, Why, Fix string } {
	for i := range d.Findings {
		if f := &d.Findings[i]; f.Side == side && strings.HasPrefix(f.Name, name) {
			return f
		}
	}
	return nil
}

// want wants a finding with that verdict, and why and fix with those words.
func (d *diagnosis) want(t *testing.T, side, name, verdict, words string) {
	t.Helper()
	if f := d.of(side, name); f == nil || f.Verdict != verdict || !strings.Contains(f.Why+"\n"+f.Fix, words) {
		t.Errorf("no %s %s %s %q in\n%s", verdict, side, name, words, d.text)
	}
}

// silent takes connections and says nothing.
func silent(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open = append(open, c) // or the collector would close it
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // nothing was written
		<-done
		for _, c := range open {
			_ = c.Close() // likewise
		}
	})
	return l.Addr().String()
}

// Whatever one side does, or both, the other is reported wholly and in time.
func TestDoctorReportsOneSideWhileTheOtherIsDown(t *testing.T) {
	t.Parallel()
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "15")
	topic, cp := kafka.Topic(t, 2, nil), kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})
	dsn := pg.Database(t)
	pg.Exec(t, dsn, "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, payload text)")
	brokers := strings.Join(kafka.Brokers(), ", ")
	const nobody = "127.0.0.1:1"
	well := map[string]func(*testing.T, *diagnosis){
		"postgres": func(t *testing.T, d *diagnosis) {
			t.Helper()
			d.want(t, "postgres", "connection", "ok", "")
			d.want(t, "postgres", "wal_level", "ok", "logical")
			d.want(t, "postgres", "clock", "ok", "the database's clock is ")
		},
		"kafka": func(t *testing.T, d *diagnosis) {
			t.Helper()
			d.want(t, "kafka", "brokers", "ok", "1 of 1 reachable")
			d.want(t, "kafka", "topic "+topic, "ok", "2 partitions")
			d.want(t, "kafka", "checkpoint topic "+cp, "ok", "can be read")
		},
	}
	for _, c := range []struct {
		story          string
		dsn, at        string // "" is the one that is well
		postgres, want string // what is said of Postgres, and of Kafka
	}{
		{story: "both are well"},
		{story: "Kafka refuses", at: nobody, want: "refused"},
		{story: "Kafka is silent", at: silent(t), want: "no answer in 10s"},
		{story: "Postgres refuses", dsn: nobody, postgres: "refused"},
		{story: "Postgres is silent", dsn: silent(t), postgres: "timeout"},
		{story: "both are silent", dsn: silent(t), at: silent(t), postgres: "timeout", want: "no answer in 10s"},
	} {
		t.Run(c.story, func(t *testing.T) {
			t.Parallel()
			s := &setting{t: t, yaml: fmt.Sprintf("name: %s\nsource: {dsn: %q, table: public.outbox, slot: %s}\nrouter: {route.topic.replacement: %s}\nkafka: {brokers: [%s]}\ncheckpoint: {topic: %s}\n",
				unique("doctor"), map[bool]string{true: dsn, false: "postgres://walpost@" + c.dsn + "/shop?sslmode=disable"}[c.dsn == ""], strings.ReplaceAll(unique("doctor"), "-", "_"), topic,
				map[bool]string{true: brokers, false: c.at}[c.at == ""], cp)}
			began := time.Now()
			d := s.doctor()
			if took := time.Since(began); took > 80*time.Second {
				t.Errorf("it took %s", took)
			}
			if c.dsn == "" {
				well["postgres"](t, d)
			} else {
				d.want(t, "postgres", "connection", "FAIL", c.postgres)
			}
			if c.at == "" {
				well["kafka"](t, d)
			} else {
				d.want(t, "kafka", "broker "+c.at, "FAIL", c.want)
				if d.of("kafka", "topic") != nil || d.of("kafka", "checkpoint") != nil {
					t.Errorf("brokers that cannot be reached tell of topics:\n%s", d.text)
				}
			}
			if c.dsn != "" || c.at != "" {
				d.want(t, "postgres", "checkpoint", "warn", "not checked: ")
			}
			if fails := d.Counts["FAIL"]; fails != map[bool]int{true: 0, false: 1}[c.dsn == ""]+map[bool]int{true: 0, false: 1}[c.at == ""] {
				t.Errorf("%d fail:\n%s", fails, d.text)
			}
		})
	}
}

// What the doctor says of rights is what run meets: it fails where run waits, and is content where run delivers, which needs no more than
// Write on the topic, and Read and Write on the checkpoint topic.
func TestDoctorAndRunAgreeOnRights(t *testing.T) {
	t.Parallel()
	const topic, cp = "orders", "cp"
	kafka, asked := testenv.KafkaWithACLs(t, map[string]string{"relay": "relay_secret"}, nil)
	kafka.CreateTopic(t, topic, 1, nil)
	kafka.CreateTopic(t, cp, 1, map[string]string{"cleanup.policy": "compact"})
	pg := testenv.Postgres(t, "15")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, "CREATE TABLE outbox (id int PRIMARY KEY, aggregate_type text, aggregate_id text, payload text)")
	slot := strings.ReplaceAll(unique("rights"), "-", "_")
	s := &setting{t: t, yaml: fmt.Sprintf(`name: %[1]s
source: {dsn: %[2]q, table: public.outbox, slot: %[1]s, snapshot: never}
router: {route.topic.replacement: %[3]s}
kafka: {brokers: [%[4]s], sasl: {mechanism: PLAIN, username: relay, password: relay_secret}}
checkpoint: {topic: %[5]s}
`, slot, dsn, topic, asked, cp)}
	cl := kafka.Client(t)
	adm := kadm.NewClient(cl)
	allow := func(topic string, ops ...kadm.ACLOperation) {
		t.Helper()
		b := kadm.NewACLs().Topics(topic).Allow("User:relay").AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral).Operations(ops...)
		made, err := adm.CreateACLs(t.Context(), b)
		if err != nil || made[0].Err != nil {
			t.Fatal(err, made)
		}
	}
	allow(cp, kadm.OpRead, kadm.OpWrite)
	allow(topic, kadm.OpDescribe)
	var d *diagnosis
	eventually(t, 30*time.Second, "the rights to the checkpoint topic are seen", func() bool {
		d = s.doctor()
		f := d.of("kafka", "checkpoint topic cp")
		return f != nil && f.Verdict == "ok"
	})
	d.want(t, "kafka", "topic orders", "FAIL", "may not write to the topic")
	d.want(t, "kafka", "topic orders", "FAIL", "--allow-principal User:relay --operation Write --topic orders")
	if d.Counts["FAIL"] != 1 || strings.Contains(d.text, "relay_secret") {
		t.Errorf("got %s", d.text)
	}
	r := s.start()
	eventually(t, 60*time.Second, "the slot is there", func() bool {
		return pg.Value(t, dsn, "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = $1", slot) == "1"
	})
	pg.Exec(t, dsn, "INSERT INTO outbox VALUES (1, 'order', 'k', 'v')")
	eventually(t, 60*time.Second, "run waits for the right", func() bool {
		code, body := r.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "not authorized")
	})
	allow(topic, kadm.OpWrite)
	consumer := kafka.Client(t, kgo.ConsumeTopics(topic))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got := consumer.PollFetches(ctx).Records(); len(got) != 1 || string(got[0].Value) != "v" {
		t.Errorf("with the right: %v", got)
	}
	d = s.doctor()
	if d.Verdict != "warn" || d.code != 0 { // what it may not see of settings
		t.Errorf("the doctor is not content: %s", d.text)
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	pg.Exec(t, dsn, "SELECT pg_drop_replication_slot('"+slot+"')")
}
