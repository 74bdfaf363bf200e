package convert

import (
	"strings"
	"testing"
)

// convertBehind converts a connector with other transforms than the EventRouter alone.
func convertBehind(t *testing.T, options string) *Result {
	t.Helper()
	r, err := Convert([]byte(strings.Replace(connector, `"transforms": "outbox"`, options, 1)+"}"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A RegexRouter behind the EventRouter becomes part of route.topic.replacement only if the topics are the same. That they are is
// shown by the recorded cases of router/testdata/debezium/transforms.txt.
func TestRegexRouterIsFoldedWhereItIsExact(t *testing.T) {
	for _, c := range []struct{ route, regex, to, folded string }{
		{"", `outbox\\.event\\.(.*)`, "$1", "${routedByValue}"},
		{"", "(.*)", "shop.$1", "shop.outbox.event.${routedByValue}"},
		{"", "^(?<all>.*)$", "${all}-$0", "outbox.event.${routedByValue}-outbox.event.${routedByValue}"},
		{"", `(.*)`, `\\$1.$1`, `\$1.outbox.event.${routedByValue}`},
		{"", ".*", "all", "all"},
		{`, "transforms.outbox.route.topic.replacement": "a.$1.b"`, `a\\.(.*)`, "$1", "$1.b"},
		{"", `outbox\\.(event.*)`, "$1", ""},
		{"", `outbox\\.event\\.(.*)-x`, "$1", ""},
		{"", `(?i)outbox\\.event\\.(.*)`, "$1", ""},
		{"", "(.*?)", "x$1", ""},
		{"", "(.+)", "x$1", ""},
		{"", "(.*)", "$2", ""},
		{"", "(.*)", "${x}", ""},
		{"", `outbox.event.order(.*)`, "$1", ""}, // some topics do not begin so
		{`, "transforms.outbox.route.topic.regex": "a(.*)"`, "(.*)", "x.$1", ""},
	} {
		r := convertBehind(t, `"transforms": "outbox,r", "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
 "transforms.r.regex": "`+c.regex+`", "transforms.r.replacement": "`+c.to+`"`+c.route)
		yaml := string(r.YAML)
		if c.folded == "" {
			if !strings.Contains(yaml, "topic.rename.regex: ") {
				t.Errorf("%s → %s is not renamed:\n%s", c.regex, c.to, yaml)
			}
		} else if strings.Contains(yaml, "topic.rename") || !strings.Contains(yaml, "route.topic.replacement: "+scalar(c.folded)+"\n") {
			t.Errorf("%s → %s is not folded to %s:\n%s", c.regex, c.to, c.folded, yaml)
		}
	}
}

// A predicate behind the EventRouter is folded only if every topic, or no topic, matches.
func TestPredicateOfRoutedTopics(t *testing.T) {
	for pattern, want := range map[string]answer{
		`outbox\.event\..*`: always, `outbox\..*`: always, `.*`: always, `^outbox\.(.*)$`: always, `outbox.event.*`: unknown, `outbox\.event\.o.*`: unknown, `outbox\.event\.`: unknown,
		`shop\.public\.outbox`: never, `__debezium.*`: never, `(shop|outbox).*`: unknown, `(?i)outbox\.event\..*`: unknown, `[`: unknown,
	} {
		if got := (topicSet{"outbox.event."}).match(pattern); got != want {
			t.Errorf("%s: %d, want %d", pattern, got, want)
		}
	}
}

// For Java, this class has a colon and the letters of alpha, and the EventRouter gets no row.
func TestPatternOfAPredicateIsJavas(t *testing.T) {
	f := finding(convertBehind(t, `"transforms": "outbox", "transforms.outbox.predicate": "p", "predicates": "p",
 "predicates.p.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches", "predicates.p.pattern": "shop.public.outbo[[:alpha:]]"`), "transforms.outbox.predicate")
	if f == nil || f.Verdict != Unsupported || !strings.Contains(f.Text, `"[["`) {
		t.Errorf("%+v", f)
	}
}

func TestTransformsThatConvertRefusesSayWhy(t *testing.T) {
	const kafka = "org.apache.kafka.connect.transforms."
	for options, want := range map[string]string{
		`"transforms": "outbox,r", "transforms.r.type": "` + kafka + `ReplaceField$Value"`:                                                                                                     "no such transform",
		`"transforms": "outbox,r", "transforms.r.type": "io.debezium.transforms.ByLogicalTableRouter", "transforms.r.topic.regex": "(.*)", "transforms.r.topic.replacement": "x"`:              "first record with a key",
		`"transforms": "outbox,r", "transforms.r.type": "` + kafka + `InsertHeader", "transforms.r.header": "a", "transforms.r.value.literal": "1.50"`:                                         "something other than text",
		`"transforms": "outbox,r", "transforms.r.type": "` + kafka + `InsertHeader", "transforms.r.header": "a", "transforms.r.value.literal": "true : x"`:                                     "something other than text",
		`"transforms": "outbox,r", "transforms.r.type": "` + kafka + `HeaderFrom$Key", "transforms.r.fields": "a", "transforms.r.headers": "a", "transforms.r.operation": "copy"`:              "no such transform",
		`"transforms": "r,outbox", "transforms.r.type": "` + kafka + `HeaderFrom$Value", "transforms.r.fields": "op", "transforms.r.headers": "a", "transforms.r.operation": "copy"`:           "Debezium's own envelope",
		`"transforms": "outbox,r", "transforms.r.type": "` + kafka + `DropHeaders", "transforms.r.headers": "a", "transforms.r.predicate": "p", "predicates": "p", "predicates.p.type": "x.Y"`: "convert can evaluate only",
	} {
		f := finding(convertBehind(t, options), "transforms.r.type")
		if f == nil || f.Verdict != Unsupported || !strings.Contains(f.Text, want) {
			t.Errorf("%s: %+v, want %s", options, f, want)
		}
	}
}
