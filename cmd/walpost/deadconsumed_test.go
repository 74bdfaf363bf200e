package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/testenv"
)

// The dead letters of consumers need the brokers and the name of their topic, and no walpost.yaml.
func TestDeadLettersOfConsumersNeedOnlyTheBrokers(t *testing.T) {
	brokers := testenv.FakeKafka(t, kfake.SeedTopics(1, "payments.dead", "orders", "empty", "events")).ListenAddrs()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	letter := func(offset int, key, group, reason string) {
		t.Helper()
		rec := &kgo.Record{Topic: "payments.dead", Key: []byte(key), Value: []byte("v-" + key)}
		for _, h := range [][2]string{
			{"id", "id-" + key},
			{"walpost.dead.reason", reason},
			{"walpost.dead.error", "no account\nof this number"},
			{"walpost.dead.stack", "main.pay(0x1)\n\t/src/pay.go:17"},
			{"walpost.dead.topic", "orders"},
			{"walpost.dead.partition", "0"},
			{"walpost.dead.offset", fmt.Sprint(offset)},
			{"walpost.dead.timestamp", "1770000000000"},
			{"walpost.dead.attempts", "8"},
			{"walpost.dead.id", "id-" + key},
			{"walpost.dead.group", group},
		} {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
		}
		if err := client.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	letter(4, "b", "payments", "permanent")
	letter(3, "a", "payments", "attempts")
	letter(3, "c", "refunds", "attempts")
	dead := func(args ...string) (code int, out string) {
		t.Helper()
		return command(t, append([]string{"dead", args[0], "--brokers", strings.Join(brokers, ","), "--dead-letter-topic", "payments.dead"}, args[1:]...)...)
	}

	code, out := dead("list")
	lines := strings.Split(out, "\n")
	if code != exitOK || len(lines) < 5 || strings.Join(strings.Fields(lines[0]), " ") != "TOKEN STATE REASON GROUP ID KEY TOPIC ATTEMPTS TIME ERROR" ||
		!strings.Contains(out, "events: 3\n") || strings.Join(strings.Fields(lines[3])[1:], " ") != "dead permanent payments id-b b orders 8 2026-02-02T02:40:00Z no account of this number" {
		t.Fatalf("list: %d\n%s", code, out)
	}
	var list struct{ Events []show.BadEvent }
	if code, out := dead("list", "--group", "payments", "--json"); code != exitOK || json.Unmarshal([]byte(out), &list) != nil || len(list.Events) != 2 ||
		list.Events[0].EventID != "id-a" || *list.Events[0].Consumer != (show.Consumer{Group: "payments", Offset: 3}) {
		t.Fatalf("list --json: %d\n%s", code, out)
	}
	a, b := list.Events[0].Token, list.Events[1].Token

	code, out = dead("show", a)
	for _, line := range []string{
		"to retry   fix the cause, then run walpost dead retry " + a + " --brokers=" + strings.Join(brokers, ",") + " --dead-letter-topic=payments.dead\n",
		"message    id id-a, written at 2026-02-02T02:40:00Z (offset 3)\n", "group      payments\n", "topic      orders, partition 0\n",
		"attempt 8 failed, attempts: no account of this number\n             main.pay(0x1)\n             /src/pay.go:17\n", "header     id: id-a\n", "value      v-a\n",
	} {
		if !strings.Contains(out, line) || code != exitOK {
			t.Errorf("show: %d, without %q\n%s", code, line, out)
		}
	}

	if code, out := dead("drop", "--reason", "INC-17", b); code != exitOK || !strings.HasSuffix(out, "open events: 1\ndropped: 1\n") {
		t.Errorf("drop: %d\n%s", code, out)
	}
	if code, out := dead("retry", "--group", "payments"); code != exitFailed || !strings.Contains(out, "too_old: the message is from 2026-02-02T02:40:00Z") || !strings.Contains(out, "walpost dead drop") {
		t.Errorf("retry of an old message: %d\n%s", code, out)
	}
	if code, out := dead("retry", "--group", "payments", "--max-age", "100000h"); code != exitOK || !strings.Contains(out, "for topic orders: 1\n") || !strings.Contains(out, "delivered and marked: 1\n") {
		t.Errorf("retry: %d\n%s", code, out)
	}
	if rec := client.PollFetches(t.Context()).Records(); len(rec) != 1 || string(rec[0].Value) != "v-a" || string(rec[0].Key) != "a" {
		t.Errorf("topic orders has %v", rec)
	}
	if code, out := dead("retry", a); code != exitOK || !strings.Contains(out, a+": nothing to do, the event is retried\n") {
		t.Errorf("a second retry: %d\n%s", code, out)
	}
	if code, out := dead("list", "--state", "all"); code != exitOK || strings.Count(out, "  dead  ") != 1 || !strings.Contains(out, "events: 3\n") {
		t.Errorf("list after the changes: %d\n%s", code, out)
	}

	for _, wrong := range []struct {
		args []string
		want string
	}{
		{[]string{"list", "--relay", "shop"}, "--relay: dead letters of consumers (--dead-letter-topic) have none"},
		{[]string{"retry", "--table", "public.outbox"}, "--table: dead letters of consumers"},
		{[]string{"list", "--reason", "too_large"}, "--reason: must be one of attempts, permanent, missing_id (got \"too_large\")"},
		{[]string{"show", "3-17-00000000"}, "no event in the topic payments.dead has the token 3-17-00000000\nhint: If it's a token of the relay, leave out --dead-letter-topic."},
		{[]string{"retry", "--all", "--max-age", "0s"}, "--max-age: must be more than 0s (got 0s)"},
		{[]string{"retry", "--all", "--to-topic", "walpost.dead_letter"}, "--to-topic: must be a topic that is not walpost's own"},
		{[]string{"retry", "--all", "--to-topic", "payments.dead"}, "--to-topic: must be a topic other than --dead-letter-topic"},
		{[]string{"retry", "--all", "--dead-letter-topic", ""}, "--dead-letter-topic: "},
		{[]string{"retry", "--all", "--to-topic", "bad name!"}, "--to-topic: "},
	} {
		if code, out := dead(wrong.args...); code != exitUsage || !strings.Contains(out, wrong.want) {
			t.Errorf("%v: %d\n%s", wrong.args, code, out)
		}
	}
	if code, out := command(t, "dead", "list", "--brokers", strings.Join(brokers, ","), "--table", "public.outbox", "--group", "payments"); code != exitUsage || !strings.Contains(out, "pass their topic with --dead-letter-topic") {
		t.Errorf("--group for the relay: %d\n%s", code, out)
	}
	if code, out := command(t, "dead", "retry", "--brokers", strings.Join(brokers, ","), "--table", "public.outbox", "--max-age", "1h"); code != exitUsage || !strings.Contains(out, "--max-age: only dead letters of consumers have one") {
		t.Errorf("--max-age for the relay: %d\n%s", code, out)
	}
	if code, out := dead("list", "--dead-letter-topic", "none"); code != exitOK || !strings.Contains(out, "topic none does not exist") {
		t.Errorf("a missing topic: %d\n%s", code, out)
	}
	if code, out := dead("list", "--dead-letter-topic", "orders"); code != exitUsage || !strings.Contains(out, "topic orders has 1 records, and none of them is a dead letter of a consumer\nhint: Set --dead-letter-topic") {
		t.Errorf("another topic: %d\n%s", code, out)
	}
}
