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
	w.total(t, time.Minute, 1)
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

// A relay gets another name while keys are parked. The keys stay parked under the former name, and run and check tell that.
func TestAnotherNameLeavesKeysParked(t *testing.T) {
	t.Parallel()
	pg, kafka := testenv.Postgres(t, "16", testenv.Private()), testenv.Kafka(t)
	s := newSetting(t, pg, pg.Database(t), kafka)
	pg.Exec(t, s.dsn, "ALTER TABLE outbox ALTER COLUMN aggregate_type DROP NOT NULL")
	s.extra = fmt.Sprintf("halt_linger: 0s\ndelivery: {on_poison: park_key, parking_topic: %sparked}\n", s.prefix)
	insert := func(typ string) {
		pg.Exec(t, s.dsn, fmt.Sprintf("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (%s, 'k', 'Changed', '{}')", typ))
	}
	r := s.startReady()
	insert("NULL")
	eventually(t, time.Minute, "the key is parked", func() bool { return r.metric("walpost_parked_keys") == 1 })
	former := s.name
	finding := "1 events of 1 keys of the same tables are parked under the name " + former
	if code, out := s.command("check"); code != 0 || strings.Contains(out, finding) {
		t.Errorf("check under the former name: code %d\n%s", code, out)
	}
	r.stopsClean()
	if strings.Contains(r.log.String(), finding) {
		t.Errorf("the relay warns of its own keys:\n%s", r.log)
	}

	s.name = unique("renamed")
	r = s.startReady()
	eventually(t, time.Minute, "run tells it", func() bool {
		return strings.Contains(r.log.String(), finding) && strings.Contains(r.log.String(), `"relay":"`+former+`"`)
	})
	if code, out := s.command("check"); !strings.Contains(out, finding) || !strings.Contains(out, "set name: "+former) {
		t.Errorf("check: code %d\n%s", code, out)
	}
	if code, out := s.command("dead", "retry", "--all"); code != 0 || !strings.Contains(out, "1 events of relay "+former) || strings.Contains(out, "parked keys") {
		t.Errorf("retry: code %d\n%s", code, out)
	}
	r.stopsClean()

	// The way back that the hint names. The relay with the other name has confirmed more than the former one knows.
	s.name = former
	r = s.start()
	eventually(t, time.Minute, "the start ends, or the relay is ready", func() bool { return r.ended() || r.ready() })
	if r.ended() {
		token := tokenInHint.FindStringSubmatch(r.log.String())
		if token == nil {
			t.Fatalf("no token:\n%s", r.log)
		}
		r = s.startReady("--accept-gap=" + token[1])
	}
	if code, out := s.command("dead", "drop", "--relay="+former, "--reason", "a test"); code != 0 || !strings.Contains(out, "dropped by the relay: 1\n") {
		t.Errorf("drop: code %d\n%s", code, out)
	}
	eventually(t, time.Minute, "nothing is parked", func() bool { return r.metric("walpost_parked_keys") == 0 })
	r.stopsClean()
}
