package e2e

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// messages has the shop's tables, and a relay that reads messages with the prefix outbox. tables are the other keys of its source.
func messages(t *testing.T, pg *testenv.PG, kafka *testenv.KafkaCluster, tables string) *setting {
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, messages: {prefix: outbox}%s}
router: {route.topic.replacement: "%s${routedByValue}"}
kafka: {brokers: [%s]}
`, s.name, s.dsn, tables, s.prefix, strings.Join(s.brokers, ", "))
	return s
}

// TestMessagesAndRowsOverKills: half of the keys have messages, which a trigger writes in place of the rows that the publication leaves
// out. The table tells the truth about both.
func TestMessagesAndRowsOverKills(t *testing.T) {
	t.Parallel()
	rows, kills := 4_000, 4
	numbers(t, map[string]*int{"WALPOST_MESSAGES": &rows, "WALPOST_MESSAGE_KILLS": &kills})
	pg, kafka := testenv.Postgres(t, "18", testenv.Private()), testenv.Kafka(t)
	s := messages(t, pg, kafka, ", table: public.outbox, snapshot: never")
	pg.Exec(t, s.dsn,
		`CREATE FUNCTION emit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_logical_emit_message(true, 'outbox', row_to_json(NEW)::text); RETURN NULL; END $$`,
		"CREATE TRIGGER emit AFTER INSERT ON outbox FOR EACH ROW WHEN (hashtext(NEW.aggregate_id) % 2 = 0) EXECUTE FUNCTION emit()",
		"CREATE PUBLICATION walpost FOR TABLE outbox WHERE (hashtext(aggregate_id) % 2 <> 0) WITH (publish = 'insert', publish_via_partition_root = true)")
	w, r := s.follow(), s.startReady()
	work := s.load(&shop.Shop{Writers: 4, Rows: int64(rows), Seed: 3, Tag: "m", Pause: 5 * time.Millisecond})
	for i := range kills {
		work.reach(t, int64((i+1)*rows/(kills+1)))
		r.kill()
		r = s.start()
	}
	<-work.done
	t.Logf("%d kills: %d duplicates", kills, s.noLoss(w, time.Minute))
	if code, out := s.verify(); code != 0 {
		t.Errorf("verify: %d\n%s", code, out)
	} else {
		t.Log(out)
	}
	r.stopsClean()
	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('walpost')")
	if code, out := s.command("recover", "--yes", "--unordered"); code != 0 || !strings.Contains(out, "logical messages in this gap are lost") {
		t.Errorf("recover: %d\n%s", code, out)
	}
}

// TestMessagesWithoutATable: there is no outbox, and only the WAL has the events.
func TestMessagesWithoutATable(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "14", testenv.Private()), testenv.Kafka(t)
	s := messages(t, pg, kafka, "")
	s.extra = fmt.Sprintf("delivery: {dead_letter_topic: %sdead}\nhalt_linger: forever\n", s.prefix)
	pg.Exec(t, s.dsn, "DROP TABLE outbox")
	ran := map[string]bool{"run": true} // the commands; docs/write-events.md says of each what it does
	says := func(code int, want string, args ...string) string {
		t.Helper()
		ran[args[0]] = true
		got, out := s.command(args...)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("walpost %q: code %d, want %d and %q\n%s", args, got, code, want, out)
		}
		return out
	}
	emit := func(transactional bool, content string) {
		t.Helper()
		pg.Exec(t, s.dsn, fmt.Sprintf("SELECT pg_logical_emit_message(%t, 'outbox', %s)", transactional, content))
	}
	event := func(id int) string {
		return fmt.Sprintf(`json_build_object('id', '%[1]d', 'aggregate_type', 'order', 'aggregate_id', 'k', 'payload', json_build_object('n', %[1]d))::text`, id)
	}
	w := s.follow()
	arrived := func(n int) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("%d records", n), func() bool { return w.count() == n })
	}
	halted := func(r *relay) {
		t.Helper()
		eventually(t, time.Minute, "halted", func() bool { _, body := r.get("/readyz"); return strings.Contains(body, "halted") || r.ended() })
	}

	says(0, "every role of database", "check")
	says(0, `CREATE PUBLICATION "walpost" WITH (publish = 'insert', publish_via_partition_root = true);`, "setup")
	r := s.startReady()
	emit(false, event(1))
	emit(true, event(2))
	arrived(1)
	says(0, "relay        streaming", "status", "--http", strings.TrimPrefix(r.page, "http://"))
	emit(true, "convert_to('{\"id\": \"3\", ', 'UTF8') || '\\xff'::bytea")
	emit(true, event(4))
	halted(r)
	if code, body := r.get("/api/status"); !strings.Contains(body, `"message that is not transactional ignored": 1`) {
		t.Errorf("status: %d\n%s", code, body)
	}
	log := r.log.String()
	if strings.Count(log, "message that is not transactional ignored") != 1 || !strings.Contains(log, "messages:outbox") || !strings.Contains(log, "the content of the message is not UTF-8") || strings.Contains(log, "UPDATE or DELETE") {
		t.Error("the log does not say it")
	}
	token := regexp.MustCompile(`walpost skip (\S+)`).FindStringSubmatch(log)
	if token == nil {
		t.Fatal("no token")
	}
	r.stop()
	says(0, "", "skip", token[1])
	r = s.startReady()
	arrived(2)
	eventually(t, time.Minute, "the letter is in the topic", func() bool { _, out := s.command("dead", "list"); return strings.Contains(out, "messages:outbox") })
	says(0, `{"base64":"`, "dead", "show", token[1])
	says(1, "is not UTF-8", "dead", "retry", token[1])

	const none = "reads rows of a table, and source.table is not set: logical messages are only in the WAL"
	says(2, none, "verify")
	says(2, none, "replay", "--id", "1")
	says(2, none, "explain", "--id", "1")
	says(2, none, "recover", "--yes")
	r.stopsClean()

	pg.Exec(t, s.dsn, "SELECT pg_drop_replication_slot('walpost')")
	emit(true, event(5))
	if out := says(3, "if it existed before, run walpost run", "status"); strings.Contains(out, "walpost recover") {
		t.Errorf("the advice names a command that refuses:\n%s", out)
	}
	r = s.start()
	halted(r)
	if log := r.log.String(); strings.Contains(log, "walpost recover") || !strings.Contains(log, "only in the WAL") {
		t.Errorf("the advice names a command that refuses:\n%s", log)
	}
	accept := regexp.MustCompile(`--accept-gap=([^\s<"\\]+)`).FindStringSubmatch(r.log.String())
	if accept == nil {
		t.Fatal("no token of the gap")
	}
	r.stop()
	says(2, "--accept-gap=<token>", "recover", "--yes")
	r = s.startReady("--accept-gap=" + accept[1])
	emit(true, event(6))
	arrived(3)
	r.stopsClean()
	yaml := s.yaml
	s.yaml = strings.Replace(yaml, "{prefix: outbox}", "{prefix: outbox}, snapshot: initial", 1)
	says(2, "source.snapshot: must be never without source.table", "run")
	s.yaml = yaml + "cleanup: {mode: delete}\n"
	says(2, "cleanup.mode: must be none without source.table", "run")
	page, err := os.ReadFile("../../docs/write-events.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sentence, _ := strings.Cut(string(page), "\n### The commands\n\nIf `source.table` isn't set, ")
	sentence, _, _ = strings.Cut(sentence, "(exit code 2)")
	documented := map[string]bool{}
	for _, command := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(sentence, -1) {
		documented[command[1]] = true
	}
	if !maps.Equal(ran, documented) {
		t.Errorf("commands %v ran, and docs/write-events.md has %v", ran, documented)
	}
	if n := w.ledger.Seen("2", "4", "6"); n != 3 {
		t.Errorf("%d of the three good messages arrived", n)
	}
}
