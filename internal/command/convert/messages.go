package convert

import (
	"slices"

	"github.com/walpost/walpost/internal/javaregex"
)

// emits reports whether walpost writes the connector's records of logical messages. A connector
// without a list of prefixes writes them, too. But most databases have no messages, or only those of a
// heartbeat, so the report names the key instead.
func emits(r *report) bool {
	return r.in.Has("message.prefix.include.list") || r.in.Has(excludedPrefixes) && !excludesAll(r)
}

const excludedPrefixes = "message.prefix.exclude.list"

func excludesAll(r *report) bool {
	return r.in.Has(excludedPrefixes) && slices.Contains(expressions(r.in.ByName[excludedPrefixes].Text()), ".*")
}

// writeMessages converts the lists of prefixes.
func writeMessages(w *writer) {
	for _, key := range []string{"include", "exclude"} {
		option := "message.prefix." + key + ".list"
		v, ok := w.literal(option)
		patterns := expressions(v)
		switch {
		case !ok || len(patterns) == 0:
			continue
		case !emits(w.report):
			w.add(NotNeeded, option, false, "the connector writes no records of pg_logical_emit_message, and walpost writes none")
			continue
		}
		for i := range patterns {
			patterns[i] = dollars(patterns[i])
		}
		w.mapped(option, "source.messages."+key, "%s", v)
		w.put("messages", "{format: debezium, "+key+": "+list(patterns)+"}", "the records of <topic.prefix>.message")
		return // Debezium refuses both lists together
	}
}

// renamesMessages reports whether a RegexRouter with this regex changes the topic of messages.
func (c *chain) renamesMessages(regex string) bool {
	re, err := javaregex.Compile(regex)
	if err != nil || !emits(c.report) {
		return false
	}
	matches, err := re.Matches(c.or("topic.prefix", "") + ".message")
	return matches || err != nil
}
