package logicalmsg

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/conf"
)

func TestWhichMessagesAreEvents(t *testing.T) {
	list := func(patterns ...string) []string { return patterns }
	for _, c := range []struct {
		cfg  Config
		want string // of the prefixes below
	}{
		{Config{Format: Row}, ""},
		{Config{Format: Row, Prefix: "audit"}, "audit"},
		{Config{Format: Debezium}, "audit AUDIT audit.x other "},
		{Config{Format: Debezium, Include: list("audit")}, "audit AUDIT"},
		{Config{Format: Debezium, Include: list(`audit\..`, "oth")}, "audit.x"},
		{Config{Format: Debezium, Exclude: list("audit.*")}, "other "},
		{Config{Format: Debezium, Exclude: list(".*")}, ""},
	} {
		r := NewRelations(c.cfg)
		var got []string
		for range 2 { // the second time they are known
			got = nil
			for _, prefix := range []string{"audit", "AUDIT", "audit.x", "other", ""} {
				rel, err := r.Of([]byte(prefix))
				if err != nil {
					t.Fatal(err)
				}
				if rel != nil {
					if got = append(got, prefix); rel.MessagePrefix() != prefix || (len(rel.Columns) == 3) != c.cfg.Debezium() {
						t.Errorf("%+v: prefix %q has the relation %+v", c.cfg, prefix, rel)
					}
				}
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q, want %q", c.cfg, got, c.want)
		}
	}
}

func TestWhatIsRememberedOfPrefixesIsBounded(t *testing.T) {
	r := NewRelations(Config{Format: Debezium})
	for i := range 3 * maxRelations {
		if rel, err := r.Of(fmt.Append(nil, i)); rel == nil || err != nil {
			t.Fatal(err)
		}
	}
	if len(r.known) > maxRelations {
		t.Errorf("%d prefixes", len(r.known))
	}
}

func TestAPrefixThatNoPatternCanJudgeIsAnError(t *testing.T) {
	r := NewRelations(Config{Format: Debezium, Include: []string{"a.*"}})
	if _, err := r.Of([]byte("a\xff")); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Error(err)
	}
}

func TestWhatIsWrongWithMessages(t *testing.T) {
	for want, c := range map[string]Config{
		"source.messages.format: must be one of row, debezium": {Format: "json"},
		"source.messages.prefix: contradicts":                  {Format: Debezium, Prefix: "a"},
		"source.messages.include: contradicts":                 {Format: Row, Prefix: "a", Include: []string{"a"}},
		"source.messages.exclude: contradicts":                 {Format: Debezium, Include: []string{"a"}, Exclude: []string{"b"}},
		`source.messages.include: "("`:                         {Format: Debezium, Include: []string{"("}},
	} {
		var found conf.Problems
		if c.Validate(&found); len(found) != 1 || !strings.HasPrefix(fmt.Sprint(found), want) {
			t.Errorf("%+v: %v, want %s", c, found, want)
		}
	}
}
