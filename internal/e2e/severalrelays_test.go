package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/doctest"
	"github.com/walpost/walpost/internal/shop"
	"github.com/walpost/walpost/internal/testenv"
)

// The SQL and the commands of docs/several-relays.md: two relays, each with a partition, a slot and a publication. Each goes on while the
// other one is away, and together they deliver each row once, in the order of its key.
func TestEachOfSeveralRelaysHasAPartition(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/several-relays.md")
	if err != nil {
		t.Fatal(err)
	}
	var table string
	var commands []string
	for _, b := range doctest.Parse("several-relays.md", string(text)).Blocks {
		switch b.Language {
		case "sql":
			table = b.Text
		case "sh":
			commands = strings.Split(strings.TrimSpace(b.Text), "\n")
		}
	}
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	s.yaml = fmt.Sprintf("source: {dsn: %q}\nrouter: {route.topic.replacement: \"%s${routedByValue}\"}\nkafka: {brokers: [%s]}", s.dsn, s.prefix, strings.Join(s.brokers, ", "))
	pg.Exec(t, s.dsn, "DROP TABLE outbox", table)
	var runs [][]string
	for _, command := range commands {
		switch words := strings.Fields(command); {
		case !slices.Equal(slices.Delete(slices.Clone(words), 1, 2)[:3], []string{"walpost", "--config", "walpost.yaml"}):
			t.Fatalf("another command: %s", command)
		case words[1] == "run":
			runs = append(runs, words[4:])
		default:
			if code, out := s.command(append(words[1:2], words[4:]...)...); code != 0 {
				t.Fatalf("%s: code %d\n%s", command, code, out)
			}
		}
	}
	if len(runs) != 2 {
		t.Fatalf("%d relays in %q", len(runs), commands)
	}
	one, other := s.startReady(runs[0]...), s.startReady(runs[1]...)
	w := s.follow()
	work := s.load(&shop.Shop{Writers: 4, Seed: 1, Pause: 20 * time.Millisecond})
	eventually(t, time.Minute, "both deliver", func() bool { return one.metric("walpost_events_total") > 0 && other.metric("walpost_events_total") > 0 })
	if code := one.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	before := other.metric("walpost_events_total")
	eventually(t, time.Minute, "the other one goes on", func() bool { return other.metric("walpost_events_total") > before })
	one = s.startReady(runs[0]...)
	work.stop()
	if rep := s.settle(w, time.Minute); !rep.OK() || rep.Duplicates > 0 {
		t.Error("broken promises")
	}
	for _, r := range []*relay{one, other} {
		if code := r.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
