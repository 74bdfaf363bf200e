package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// moreExamples are the commands that the page leaves out: show and a dry run before its retry, and a repetition after it.
const moreExamples = `$ walpost dead show --config walpost.yaml 0-16B3840-1-0c77be12
token      0-16B3840-1-0c77be12
state      dead: the event is not delivered
to retry   fix the cause, then run walpost dead retry 0-16B3840-1-0c77be12 --config walpost.yaml
to drop    walpost dead drop --reason REASON 0-16B3840-1-0c77be12 --config walpost.yaml
event      id 00000000-0000-0000-0000-000000000003 of public.outbox, committed at
           2026-11-22T16:47:49.386446Z (commit 0/16B3840, row 1)
relay      shop.walpost, database shop
reason     unroutable: router.route.by.field: column aggregate_type is NULL, and the topic comes from it
history    partition 0, offset 0: attempt 1 failed, unroutable: router.route.by.field: column
           aggregate_type is NULL, and the topic comes from it
topic      -
key        4712
row …

$ walpost dead retry --config walpost.yaml --all --dry-run
dead events: 2
for topic orders: 1
a retry would refuse: 1
  0-16B3840-1-0c77be12, event 00000000-0000-0000-0000-000000000003, attempt 1, unroutable:
  router.route.by.field: column aggregate_type is NULL, and the topic comes from it

$ walpost dead retry --config walpost.yaml 0-16B3748-1-5f2a9c01
0-16B3748-1-5f2a9c01: nothing to do, the event is retried
dead events: 0
`

// The commands that docs/repair.md shows print what the page shows, in the order of the page. The cleanup keeps the row of a dead
// letter until the event is retried or dropped.
func TestTheExamplesOfDeadLetters(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/repair.md")
	if err != nil {
		t.Fatal(err)
	}
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	dead := s.prefix + "walpost.dead_letter"
	kafka.CreateTopic(t, s.prefix+"orders", 1, map[string]string{"max.message.bytes": "2000"})
	kafka.CreateTopic(t, s.prefix+"invoices", 1, nil)
	s.yaml = fmt.Sprintf(`name: %s
source: {dsn: %q, table: public.outbox, time_column: created_at}
router: {route.topic.replacement: "%s${routedByValue}s"}
kafka: {brokers: [%s]}
cleanup: {mode: delete, keep: 0s}
delivery: {on_poison: dead_letter, dead_letter_topic: %s}
`, s.name, s.dsn, s.prefix, strings.Join(s.brokers, ", "), dead)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER aggregate_type DROP NOT NULL")
	r := s.startReady()
	insert := func(id int, typ, key, payload string) {
		pg.Exec(t, s.dsn, fmt.Sprintf(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('00000000-0000-0000-0000-%012d', %s, '%s', 'Changed', '%s')`, id, typ, key, payload))
	}
	noise := make([]byte, 6000) // it hardly compresses
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[rng.IntN(64)]
	}
	insert(1, "'order'", "4711", `{"n": 1}`)
	insert(2, "'order'", "4711", fmt.Sprintf(`{"n": 2, "note": "%s"}`, noise))
	insert(3, "NULL", "4712", `{"n": 3}`)
	insert(4, "'order'", "4711", `{"n": 4}`)
	rows := func() string {
		return pg.Value(t, s.dsn, "SELECT coalesce(string_agg(right(id::text, 1), ' ' ORDER BY id), '') FROM outbox")
	}
	eventually(t, time.Minute, "the cleanup removes what is delivered, and keeps the rest", func() bool { return rows() == "2 3" })
	eventually(t, time.Minute, "the status says why rows stay", func() bool {
		_, body := r.get("/api/status")
		return strings.Contains(body, "the rows of dead and parked events stay")
	})

	_, out := s.command("dead", "list")
	tokens := regexp.MustCompile(`(?m)^(0-\S+) `).FindAllStringSubmatch(out, -1)
	if len(tokens) != 2 {
		t.Fatalf("dead list:\n%s", out)
	}
	// The page has other tokens, times, prefixes and line breaks.
	names := map[string]string{"0-16B3748-1-5f2a9c01": tokens[0][1], "0-16B3840-1-0c77be12": tokens[1][1]}
	blank := func(text string) string {
		for shown, is := range names {
			text = strings.ReplaceAll(text, is, shown)
		}
		text = strings.ReplaceAll(text, s.prefix, "")
		text = strings.ReplaceAll(text, s.name, "shop.walpost")
		text = strings.ReplaceAll(text, "database "+pg.Value(t, s.dsn, "SELECT current_database()"), "database shop")
		text = regexp.MustCompile(`--config /\S+walpost.yaml`).ReplaceAllString(text, "--config walpost.yaml")
		text = regexp.MustCompile(`\d\d\d\d-\d\d-\d\dT[0-9:.]+Z`).ReplaceAllString(text, "TIME")
		text = regexp.MustCompile(`commit [0-9A-F]+/[0-9A-F]+`).ReplaceAllString(text, "commit LSN")
		text = regexp.MustCompile(`offset \d+`).ReplaceAllString(text, "offset N") // two letters are written at the same time
		text = regexp.MustCompile(`(?m)^row .*$`).ReplaceAllString(text, "row …")  // the JSON is long
		return strings.Join(strings.Fields(text), " ")                             // the page has shorter lines
	}
	mended := false
	var examples, more [][]string
	for _, m := range regexp.MustCompile("(?ms)^```text\n\\$ walpost (dead .*?)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		examples = append(examples, m[1:])
	}
	if len(examples) != 3 {
		t.Fatalf("the page has %d examples", len(examples))
	}
	for _, text := range strings.Split(moreExamples, "$ walpost ")[1:] {
		line, want, _ := strings.Cut(text, "\n")
		more = append(more, []string{line, want})
	}
	examples = [][]string{examples[0], more[0], more[1], examples[1], more[2], examples[2]}
	for _, example := range examples {
		line, want := example[0], example[1]
		if strings.Contains(line, "retry") && !strings.Contains(line, "dry-run") && !mended {
			mended = true
			kafka.Configure(t, "max.message.bytes", "1000000", s.prefix+"orders")
		}
		var args []string
		for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(strings.ReplaceAll(line, " --config walpost.yaml", ""), -1) {
			word = strings.Trim(word, `"`)
			if is, ok := names[word]; ok {
				word = is
			}
			args = append(args, word)
		}
		if _, out := s.command(args...); blank(out) != blank(want) {
			t.Errorf("walpost %s\n%s\nthe page shows\n%s", line, out, blank(want))
		}
	}
	eventually(t, time.Minute, "the rows of events that were retried and dropped are removed", func() bool { return rows() == "" })
	if code, out := s.command("dead", "list", "--json"); code != 0 || !strings.HasSuffix(out, "\"count\": 0,\n  \"events\": []\n}\n") {
		t.Errorf("code %d\n%s", code, out)
	}
	r.stopsClean()
}
