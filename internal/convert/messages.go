package convert

import (
	"slices"

	"github.com/walpost/walpost/internal/javaregex"
)

// emits reports whether walpost writes the connector's records of logical messages. A connector
// without a list of prefixes writes them, too. But most databases have no messages, or only those of a
// heartbeat, so the report names the key instead.
func (c *conversion) emits() bool {
	return c.in.Has("message.prefix.include.list") || c.in.Has(excludedPrefixes) && !c.excludesAll()
}

const excludedPrefixes = "message.prefix.exclude.list"

func (c *conversion) excludesAll() bool {
	return c.in.Has(excludedPrefixes) && slices.Contains(expressions(c.in.ByName[excludedPrefixes].Text()), ".*")
}

// messages converts the lists of prefixes.
func (c *conversion) messages() {
	for _, key := range []string{"include", "exclude"} {
		option := "message.prefix." + key + ".list"
		v, ok := c.literal(option)
		patterns := expressions(v)
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
		c.origin["source.messages"] = c.in.Shown(option)
		c.out.put("messages", "{format: debezium, "+key+": "+list(patterns)+"}", "the records of <topic.prefix>.message")
	}
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
