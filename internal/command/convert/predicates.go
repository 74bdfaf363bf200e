package convert

import (
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/javaregex"
)

const (
	predicates       = "org.apache.kafka.connect.transforms.predicates."
	topicNameMatches = predicates + "TopicNameMatches"
	hasHeaderKey     = predicates + "HasHeaderKey"
	recordIsTomb     = predicates + "RecordIsTombstone"
)

// An answer is what a predicate says of the rows of the outbox.
type answer uint8

const (
	unknown answer = iota // the predicate says yes of some of the rows, or convert does not know
	always
	never
)

// answerOf is the answer to a question that is known to have the same answer for every row.
func answerOf(yes bool) answer {
	if yes {
		return always
	}
	return never
}

func (a answer) negate(negate bool) answer {
	if negate && a != unknown {
		return always + never - a
	}
	return a
}

// A predicate is that of a transform.
type predicate struct {
	kind   string
	text   string            // the pattern, or the name of the header
	topics *javaregex.Regexp // of a TopicNameMatches
	negate bool
	why    string // the reason if the predicate cannot be read
}

// predicateKinds are the predicates that convert can evaluate, with the option that each needs.
var predicateKinds = map[string]string{topicNameMatches: "pattern", hasHeaderKey: "name", recordIsTomb: ""}

// predicate returns the predicate of a transform, and whether the transform has one.
func (c *chain) predicate(transform string) (p predicate, there bool) {
	option := "transforms." + transform + ".predicate"
	name, ok := c.literal(option)
	if !ok {
		return predicate{why: "its predicate cannot be read"}, c.in.Has(option)
	}
	if !slices.Contains(conf.SplitList(c.or("predicates", "")), name) {
		return predicate{why: "the predicate " + name + " is not in predicates"}, true
	}
	prefix := "predicates." + name + "."
	p.kind = c.or(prefix+"type", "")
	needs, known := predicateKinds[p.kind]
	if needs != "" {
		p.text = c.or(prefix+needs, "")
	}
	var err error
	if p.kind == topicNameMatches {
		p.topics, err = javaregex.Compile(p.text)
	}
	p.negate, ok = c.boolean("transforms."+transform+".negate", false)
	switch {
	case !known:
		p.why = "convert can evaluate only TopicNameMatches, HasHeaderKey and RecordIsTombstone (got " + p.kind + ")"
	case needs != "" && p.text == "":
		p.why = "the predicate " + name + " has no " + needs
	case err != nil:
		p.why = "the pattern of " + name + ": " + err.Error()
	case !ok:
		p.why = "negate cannot be read"
	}
	return p, true
}

// unclear is the reason why a predicate that was read is not folded.
const unclear = "convert cannot tell whether its predicate is true for every row of the outbox, or false for every row"

// before is the answer of a predicate for a table's rows in front of the EventRouter.
func (c *chain) before(p *predicate, t table) answer {
	switch {
	case p.kind == recordIsTomb: // the EventRouter drops tombstones, which come from deletes
		return never.negate(p.negate)
	case p.kind != topicNameMatches || c.renamed:
		return unknown
	}
	matches, err := p.topics.Matches(c.or("topic.prefix", "") + c.or("topic.delimiter", ".") + t.schema + "." + t.name)
	if err != nil {
		return unknown
	}
	return answerOf(matches).negate(p.negate)
}

// applies says whether a transform sees the rows of the outbox. why is the reason if that is unknown.
func (c *chain) applies(transform string, before bool) (a answer, why string) {
	p, there := c.predicate(transform)
	switch {
	case !there:
		return always, ""
	case p.why != "":
		return unknown, p.why
	case before:
		for i, t := range c.tables {
			if answer := c.before(&p, t); i == 0 || answer == a {
				a = answer
			} else {
				a = unknown
			}
		}
	case p.kind == topicNameMatches:
		a = c.topics.match(p.text).negate(p.negate)
	case p.kind == hasHeaderKey:
		a = c.hasHeader(p.text).negate(p.negate)
	}
	return a, unclear
}

// topicSet is the topics that records can have: every one begins with prefix.
type topicSet struct{ prefix string }

// match says whether a pattern matches all of the topics, or none.
func (s topicSet) match(pattern string) answer {
	parts, ok := sequence(pattern)
	if !ok {
		return unknown
	}
	begins := ""
	if len(parts) > 0 && parts[0].Op == syntax.OpLiteral && parts[0].Flags&syntax.FoldCase == 0 {
		begins = string(parts[0].Rune)
	}
	literal, _, all := anything(pattern)
	switch {
	case !strings.HasPrefix(begins, s.prefix) && !strings.HasPrefix(s.prefix, begins):
		return never
	case all && strings.HasPrefix(s.prefix, literal):
		return always
	}
	return unknown
}
