package main

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/doctest"
	"github.com/walpost/walpost/internal/testenv"
)

// Each command and each statement of the page, in its order: the record arrives, and verify finds no difference.
func TestGettingStartedEndsWithAVerifiedRecord(t *testing.T) {
	t.Parallel()
	const name = "docs/getting-started.md"
	pg, broker := testenv.Postgres(t, "18", testenv.Private()), testenv.FakeKafka(t).ListenAddrs()[0]
	pg.Exec(t, pg.DSN("postgres"), "CREATE DATABASE shop")
	dsn, err := pgAddress(pg.DSN("shop"))
	if err != nil {
		t.Fatal(err)
	}
	q := &reader{T: t, dir: t.TempDir(), bin: t.TempDir(), addresses: strings.NewReplacer("127.0.0.1:5432", dsn, "127.0.0.1:9092", broker)}
	last, consumed := "", false
	for _, b := range doctest.Parse(name, read(t, "../../"+name)).Blocks {
		switch b.Language {
		case "sql":
			pg.Exec(t, pg.DSN("shop"), b.Text)
			continue
		case "text":
			q.showsLike(b.Text)
			continue
		}
		for line := range strings.Lines(q.addresses.Replace(b.Text)) {
			line = strings.TrimSpace(line)
			switch program, _, _ := strings.Cut(line, " "); {
			case strings.HasPrefix(line, "walpost run "):
				q.start(line)
			case program == "kafka-console-consumer.sh":
				record := q.consume(line)
				consumed = string(record.Key) == "4711" && string(record.Value) == `{"total": 12.50}`
			default:
				last = q.command(line)
			}
		}
	}
	q.stop()
	if !consumed || !strings.HasSuffix(last, "differences: 0, not judged: 0\n") {
		t.Errorf("the record was consumed: %t; verify prints\n%s", consumed, last)
	}
}

// showsLike fails unless walpost status prints the lines of a sample, with its own values. The relay of the test has no address
// that status could ask: TestStatusPrintsWhatAPersonNeeds compares the values.
func (q *reader) showsLike(sample string) {
	q.Helper()
	got := "\n" + q.command("walpost status --config walpost.yaml")
	for line := range strings.Lines(sample) {
		if label, _, ok := strings.Cut(line, " "); ok && !strings.Contains(got, "\n"+label+" ") {
			q.Errorf("walpost status prints no line %s:%s", label, got)
		}
	}
}
