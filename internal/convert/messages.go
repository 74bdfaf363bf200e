package convert

import (
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/javaregex"
)

// emits reports whether walpost writes the connector's records of logical messages. A connector
// without a list of prefixes writes them, too. But most databases have no messages, or only those of a
// heartbeat, so the report names the key instead.
func (c *conversion) emits() bool {
	return c.in.has("message.prefix.include.list") || c.in.has(excludedPrefixes) && !c.excludesAll()
}

const excludedPrefixes = "message.prefix.exclude.list"

func (c *conversion) excludesAll() bool {
	return c.in.has(excludedPrefixes) && slices.Contains(patternsOf(c.in.byName[excludedPrefixes].text()), ".*")
}

// messages converts the lists of prefixes.
func (c *conversion) messages() {
	for _, key := range []string{"include", "exclude"} {
		option := "message.prefix." + key + ".list"
		v, ok := c.literal(option)
		patterns := patternsOf(v)
		switch {
		case !ok || len(patterns) == 0:
			continue
		case !c.emits():
			c.add(NotNeeded, option, false, "the connector writes no records of pg_logical_emit_message, and walpost writes none")
			continue
		}
		for i := range patterns {
			patterns[i] = dollars(patterns[i])
		}
		c.mapped(option, "source.messages."+key, "%s", v)
		c.origin["source.messages"] = c.in.shown(option)
		c.out.put("messages", "{format: debezium, "+key+": "+list(patterns)+"}", "the records of <topic.prefix>.message")
	}
}

// patternsOf splits a list of regular expressions as Debezium does: a backslash hides a comma.
func patternsOf(text string) (all []string) {
	start := 0
	add := func(end int) {
		if part := strings.TrimSpace(text[start:end]); part != "" {
			all = append(all, strings.ReplaceAll(part, `\,`, ","))
		}
		start = end + 1
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case ',':
			add(i)
		}
	}
	if start < len(text) {
		add(len(text))
	}
	return all
}

// renamesMessages reports whether a RegexRouter with this regex changes the topic of messages.
func (c *conversion) renamesMessages(regex string) bool {
	re, err := javaregex.Compile(regex)
	if err != nil || !c.emits() {
		return false
	}
	matches, err := re.Matches(c.verbatim("topic.prefix") + ".message")
	return matches || err != nil
}
