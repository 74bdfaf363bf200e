package convert

import (
	"cmp"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/javaregex"
)

const smt = "org.apache.kafka.connect.transforms."

// others is what the transforms beside the EventRouter come to.
type others struct {
	renamed     bool      // a transform in front of the EventRouter changes the topics of the tables
	topics      topicSet  // behind the EventRouter
	replacement string    // route.topic.replacement, if a transform changes it
	rename      [2]string // topic.rename: regex and replacement
	placement   string    // table.fields.additional.placement
	steps       []headerStep
}

// A headerStep is one step of records.headers, which a transform becomes.
type headerStep struct {
	option string
	insert string
	value  string
	number bool // value is no text for Connect
	before bool
	drop   []string
}

// handlers convert the transforms that outbox rows go through. prefix begins their options, and before means in front of the
// EventRouter.
var handlers = map[string]func(c *chain, prefix string, before bool) (Verdict, string){
	smt + "RegexRouter":                           (*chain).regexRouter,
	"io.debezium.transforms.ByLogicalTableRouter": (*chain).logicalRouter,
	smt + "InsertHeader":                          (*chain).insertHeader,
	smt + "DropHeaders":                           (*chain).dropHeaders,
	smt + "HeaderFrom$Value":                      (*chain).headerFrom,
}

// route returns route.topic.regex and route.topic.replacement, behind the transforms so far.
func (c *chain) route() (regex, replacement string) {
	return c.or(c.router+"route.topic.regex", "(?<routedByValue>.*)"),
		cmp.Or(c.replacement, c.or(c.router+"route.topic.replacement", ""), "outbox.event.${routedByValue}")
}

// routedTopics is the topics that the EventRouter gives.
func (c *chain) routedTopics() topicSet {
	regex, replacement := c.route()
	if literal, _, ok := anything(regex); !ok || literal != "" {
		return topicSet{}
	}
	return topicSet{replacement[:len(replacement)-len(strings.TrimLeftFunc(replacement, func(r rune) bool { return r != '$' && r != '\\' }))]}
}

// sequence parses a pattern. It returns the parts that follow each other, without the anchors at the two ends.
func sequence(pattern string) (parts []*syntax.Regexp, ok bool) {
	if _, err := javaregex.Compile(pattern); err != nil {
		return nil, false
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, false
	}
	parts = []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	if parts[0].Op == syntax.OpBeginText {
		parts = parts[1:]
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		parts = parts[:n-1]
	}
	return parts, true
}

// anything reads a pattern that matches a text with everything behind it, as in orders\.(.*), and returns the text and the name of
// the group: "1" without a name, and "" without a group.
func anything(pattern string) (literal, group string, ok bool) {
	parts, _ := sequence(pattern)
	if len(parts) == 2 && parts[0].Op == syntax.OpLiteral && parts[0].Flags&syntax.FoldCase == 0 {
		literal, parts = string(parts[0].Rune), parts[1:]
	}
	if len(parts) != 1 {
		return "", "", false
	}
	if parts[0].Op == syntax.OpCapture {
		if group = parts[0].Name; group == "" {
			group = "1"
		}
		parts = parts[0].Sub
	}
	all := parts[0]
	return literal, group, all.Op == syntax.OpStar && all.Flags&syntax.NonGreedy == 0 && all.Sub[0].Op == syntax.OpAnyCharNotNL
}

var groupReference = regexp.MustCompile(`\\.|\$(?:(\d)|\{([A-Za-z0-9]*)\})|\$`)

// fold returns the route.topic.replacement that gives what a RegexRouter makes of its topics. ok is false if there is none.
func (c *chain) fold(regex, to string) (folded string, ok bool) {
	routed, replacement := c.route()
	whole, _, all := anything(routed)
	literal, group, simple := anything(regex)
	if !all || whole != "" || !simple || !strings.HasPrefix(c.routedTopics().prefix, literal) {
		return "", false
	}
	rest, ok := replacement[len(literal):], true
	folded = groupReference.ReplaceAllStringFunc(to, func(ref string) string {
		m := groupReference.FindStringSubmatch(ref)
		switch {
		case ref[0] == '\\':
			return ref
		case m[1] == "0":
			return replacement
		case m[1] == "1" && group != "", m[2] != "" && m[2] == group:
			return rest
		}
		ok = false
		return ""
	})
	return folded, ok && folded != ""
}

func (c *chain) regexRouter(prefix string, before bool) (Verdict, string) {
	regex, to := c.or(prefix+"regex", ""), c.or(prefix+"replacement", "")
	ofMessages := c.renamesMessages(regex)
	switch {
	case before && ofMessages:
		return Unsupported, "this transform also renames the topic of messages, and walpost renames topics only after the EventRouter: put the transform after the EventRouter, or leave out message.prefix.…"
	case before:
		return NotNeeded, "the EventRouter replaces the topic"
	case c.topics.match(regex) == never && !ofMessages:
		return NotNeeded, "no topic of the EventRouter matches its regex"
	case c.rename[0] != "":
		return Unsupported, "walpost renames a topic only once after the EventRouter: write one RegexRouter instead of two"
	}
	if folded, ok := c.fold(regex, to); ok && !ofMessages {
		c.replacement = folded
		c.topics = c.routedTopics()
		return Mapped, "router.route.topic.replacement: " + folded
	}
	c.rename, c.topics = [2]string{regex, to}, topicSet{}
	c.mapped(prefix+"regex", "router.topic.rename.regex", "%s", regex)
	c.mapped(prefix+"replacement", "router.topic.rename.replacement", "%s", to)
	return Mapped, "router.topic.rename"
}

func (c *chain) logicalRouter(prefix string, before bool) (Verdict, string) {
	switch {
	case before && strings.Contains(strings.ToLower(c.placement), ":envelope"):
		return Unsupported, "ByLogicalTableRouter changes the name of the envelope's schema, which walpost builds from the table's name: remove the transform"
	case before:
		return NotNeeded, "the EventRouter replaces the topic and the key"
	case c.topics.match(c.or(prefix+"topic.regex", "")) == never:
		return NotNeeded, "no topic of the EventRouter matches its topic.regex"
	}
	return Unsupported, "after the EventRouter, ByLogicalTableRouter fails at the first record with a key: replace it with a RegexRouter, which convert supports"
}

// number matches a literal that Connect reads as an integer or a boolean, and writes as it is.
var number = regexp.MustCompile(`^(?:0|-?[1-9][0-9]{0,17}|true|false)$`)

// notText matches the start of a literal that Connect may read as something else than text.
var notText = regexp.MustCompile(`(?i)^(?:true|false|null)\s*(?:[\[\]{},:"\\]|$)`)

func (c *chain) insertHeader(prefix string, before bool) (Verdict, string) {
	name, _ := c.literal(prefix + "header")
	value, ok := c.literal(prefix + "value.literal")
	s := headerStep{option: prefix + "value.literal", insert: name, value: value, number: number.MatchString(value), before: before}
	switch first := []rune(value + " ")[0]; {
	case name == "" || !ok:
		return Unsupported, "InsertHeader needs header and value.literal"
	case !s.number && (notText.MatchString(value) || !unicode.IsLetter(first) && !strings.ContainsRune("_/", first)):
		return Unsupported, "Connect reads value.literal as something other than text, and convert does not know how Connect writes it: put the header that the consumers see into records.headers"
	}
	c.steps = append(c.steps, s)
	return Mapped, "records.headers: insert " + name
}

func (c *chain) dropHeaders(prefix string, before bool) (Verdict, string) {
	list, _ := c.literal(prefix + "headers")
	drop := conf.SplitList(list)
	if before { // the headers of the EventRouter are not there yet
		drop = slices.DeleteFunc(drop, func(name string) bool {
			return name == "id" || c.placesHeader(name)
		})
	}
	if len(drop) > 0 {
		c.steps = append(c.steps, headerStep{option: prefix + "headers", drop: drop})
	}
	return Mapped, "records.headers: drop " + strings.Join(drop, ", ")
}

// A placement is one item of table.fields.additional.placement.
type placement struct{ column, target, alias string }

func (c *chain) placements() []placement {
	var all []placement
	for _, item := range conf.SplitList(c.placement) {
		parts := strings.Split(item, ":")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		if len(parts) == 2 || len(parts) == 3 && parts[2] == "" {
			parts = append(parts[:2:2], parts[0])
		}
		if len(parts) == 3 {
			all = append(all, placement{parts[0], strings.ToLower(parts[1]), parts[2]})
		}
	}
	return all
}

func (c *chain) placesHeader(name string) bool {
	return slices.ContainsFunc(c.placements(), func(p placement) bool { return p.target == "header" && p.alias == name })
}

// hasHeader says whether the records have a header behind the transforms so far.
func (c *chain) hasHeader(name string) answer {
	has := answerOf(name == "id" || c.placesHeader(name))
	missing := c.or(c.router+"table.field.additional.missing", "error")
	if strings.HasPrefix(name, "__debezium.") || name != "id" && has == always && !strings.EqualFold(missing, "error") {
		has = unknown
	}
	for _, s := range c.steps {
		if s.insert == name {
			has = always
		} else if slices.Contains(s.drop, name) {
			has = never
		}
	}
	return has
}

// headerFrom makes placements of the fields of the envelope.
func (c *chain) headerFrom(prefix string, before bool) (Verdict, string) {
	get := func(name string) []string {
		v, _ := c.literal(prefix + name)
		return conf.SplitList(v)
	}
	fields, headers, operation := get("fields"), get("headers"), c.or(prefix+"operation", "")
	all := c.placements()
	inEnvelope := func(p placement) bool { return p.target == "envelope" }
	tombstone, _ := c.boolean(c.router+"route.tombstone.on.empty.payload", false)
	expand, _ := c.boolean(c.router+"table.expand.json.payload", false)
	switch {
	case before:
		return Unsupported, "before the EventRouter, HeaderFrom$Value reads Debezium's own envelope, which walpost does not build: use table.fields.additional.placement: column:header"
	case !slices.ContainsFunc(all, inEnvelope) || tombstone:
		return Unsupported, "HeaderFrom$Value: walpost reads the fields of an envelope (table.fields.additional.placement) that is never a tombstone; use table.fields.additional.placement: column:header"
	case len(c.steps) > 0:
		return Unsupported, "HeaderFrom$Value: put this transform before InsertHeader and DropHeaders"
	case len(fields) == 0 || len(fields) != len(headers) || operation != "copy" && operation != "move":
		return Unsupported, "HeaderFrom$Value needs as many fields as headers, and the operation copy or move"
	}
	for i, field := range fields {
		column := ""
		if at := slices.IndexFunc(all, func(p placement) bool { return inEnvelope(p) && p.alias == field }); at >= 0 {
			column = all[at].column
		} else if field == "payload" && operation == "copy" && !expand {
			column = c.or(c.router+"table.field.event.payload", "payload")
		}
		if column == "" || strings.Contains(headers[i], ":") {
			return Unsupported, "HeaderFrom$Value: the envelope has no field " + field + " that table.fields.additional.placement names"
		}
		all = append(all, placement{column, "header", headers[i]})
	}
	if operation == "move" {
		all = slices.DeleteFunc(all, func(p placement) bool { return inEnvelope(p) && slices.Contains(fields, p.alias) })
		if !slices.ContainsFunc(all, inEnvelope) {
			return Unsupported, "HeaderFrom$Value: this moves every column out of the envelope, and then walpost builds no envelope: write operation=copy, or use table.fields.additional.placement: column:header"
		}
	}
	items := make([]string, len(all))
	for i, p := range all {
		items[i] = p.column + ":" + p.target + ":" + p.alias
	}
	c.placement = strings.Join(items, ",")
	return Mapped, "router.table.fields.additional.placement: " + c.placement
}

// writeHeaders writes records.headers, when the header converter is known.
func writeHeaders(w *writer) {
	for i, s := range w.chain.steps {
		if i == 0 {
			w.put("headers", "", "")
		}
		if s.number && w.headers == "json" {
			w.bad(s.option, "Connect's JsonConverter writes this literal as a number or a boolean, and walpost writes text")
		}
		step := "drop: " + list(s.drop)
		if s.insert != "" {
			step = "insert: " + scalar(dollars(s.insert)) + "\n      value: " + scalar(dollars(s.value))
		}
		if s.before {
			step += "\n      before_id: true"
		}
		w.b.WriteString("    - " + step + "\n")
	}
}
