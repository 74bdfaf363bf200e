package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// Two databases have outboxes of the same name, and their relays share the dead letter topic. Neither delivers, drops or counts the
// letters of the other one.
func TestTheDeadLettersOfAnotherRelay(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16"), testenv.Kafka(t)
	a, b := newSetting(t, pg, pg.Database(t), kafka), newSetting(t, pg, pg.Database(t), kafka)
	const id = "00000000-0000-0000-0000-000000000007"
	for _, s := range []*setting{a, b} {
		s.source = ", slot: " + strings.ReplaceAll(s.name, "-", "_")
		s.extra = fmt.Sprintf("delivery: {on_poison: dead_letter, dead_letter_topic: %sdead}\n", a.prefix)
		pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL")
	}
	insert := func(s *setting, typ string) {
		pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('%s', %s, '1', 'Changed', '{}')", id, typ))
	}
	w := a.follow()
	first, second := a.startReady(), b.startReady()
	insert(b, "NULL")
	var letter []string // the line of dead list, and its token
	eventually(t, time.Minute, "the letter", func() bool {
		code, out := b.command("dead", "list")
		letter = regexp.MustCompile(`(?m)^(\S+) +dead .*$`).FindStringSubmatch(out)
		return code == 0 && strings.Contains(out, "events: 1\n") && letter != nil
	})
	token := letter[1]
	if !strings.Contains(letter[0], b.name) {
		t.Errorf("list must name relay %s:\n%s", b.name, letter[0])
	}
	insert(a, "'"+a.topics[0][len(a.prefix):]+"'")
	w.more(t, time.Minute, 1)
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"dead", "list"}, 0, []string{"events: 0\n", "1 events of relay " + b.name + ", database ", "--relay selects them"}},
		{[]string{"dead", "list", "--relay", b.name}, 0, []string{"events: 1\n"}},
		{[]string{"dead", "show", token}, 0, []string{"relay      " + b.name + ", database "}},
		{[]string{"dead", "retry", "--all"}, 0, []string{"dead events: 0\n"}},
		{[]string{"dead", "retry", token}, 2, []string{"belongs to relay " + b.name, "the configuration is for relay " + a.name, "--relay=" + b.name}},
		{[]string{"dead", "drop", "--reason", "a test", "--table", "public.outbox"}, 0, []string{"open events: 0\n"}},
		{[]string{"verify", "--strict"}, 0, nil}, // a row of a has the id of the letter
	} {
		code, out := a.command(c.args...)
		for _, says := range c.says {
			if !strings.Contains(out, says) {
				code = -1
			}
		}
		if code != c.code {
			t.Errorf("%v must end with %d and say %q:\n%s", c.args, c.code, c.says, out)
		}
	}
	if code, out := b.command("dead", "drop", "--reason", "a test", token); code != 0 || !strings.Contains(out, "dropped: 1\n") {
		t.Errorf("code %d\n%s", code, out)
	}
	first.stopsClean()
	second.stopsClean()
}
