package logicalmsg

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/lib/pgname"
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
				if rel := r.Of([]byte(prefix)); rel != nil {
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
		if rel := r.Of(fmt.Append(nil, i)); rel == nil {
			t.Fatal(i)
		}
	}
	if len(r.known) > maxRelations {
		t.Errorf("%d prefixes", len(r.known))
	}
}

// Every role can write any prefix. An error would end each attempt to read the WAL.
func TestAPrefixThatNoPatternCanJudgeIsSelected(t *testing.T) {
	for _, c := range []Config{{Format: Debezium, Include: []string{"a.*"}}, {Format: Debezium, Exclude: []string{"a.*", "b$"}}, {Format: Debezium, Include: []string{"a$"}}} {
		for _, prefix := range []string{"x\xff", "x\n"} {
			decidable := prefix == "x\n" && c.Include != nil && c.Include[0] == "a.*"
			if rel := NewRelations(c).Of([]byte(prefix)); (rel == nil) != decidable {
				t.Errorf("%+v: %q has the relation %v", c, prefix, rel)
			}
		}
	}
}

func TestALongPrefixIsNotRemembered(t *testing.T) {
	r := NewRelations(Config{Format: Debezium, Exclude: []string{"a"}})
	if rel := r.Of([]byte(strings.Repeat("x", pgname.MaxPrefix+1))); rel == nil || len(r.known) != 0 {
		t.Errorf("%v, %d prefixes", rel, len(r.known))
	}
}

func TestWhatIsWrongWithMessages(t *testing.T) {
	for want, c := range map[string]Config{
		"source.messages.prefix: contradicts":  {Format: Debezium, Prefix: "a"},
		"source.messages.include: contradicts": {Format: Row, Prefix: "a", Include: []string{"a"}},
		"source.messages.exclude: contradicts": {Format: Debezium, Include: []string{"a"}, Exclude: []string{"b"}},
		`source.messages.include: "("`:         {Format: Debezium, Include: []string{"("}},
	} {
		var found conf.Problems
		if c.Validate(&found); len(found) != 1 || !strings.HasPrefix(fmt.Sprint(found), want) {
			t.Errorf("%+v: %v, want %s", c, found, want)
		}
	}
}
