package convert

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// An entry is one option of the input.
type entry struct {
	name  string // as the connector knows it: slot.name
	label string // as the input has it: debezium.source.slot.name
	value string
	line  int
	order int
	parts []part
}

// text is the value without its references; only for entries that have none.
func (e *entry) text() string {
	var b strings.Builder
	for _, p := range e.parts {
		b.WriteString(p.text)
	}
	return b.String()
}

// options are the options of one input, by the connector's names.
type options struct {
	format Format
	list   []*entry
	byName map[string]*entry
}

func newOptions(list []*entry) *options {
	o := &options{format: Connect, byName: map[string]*entry{}}
	for _, e := range list {
		o.put(e)
	}
	return o
}

func (o *options) put(e *entry) {
	if e.label == "" {
		e.label = e.name
	}
	e.order = len(o.list)
	o.list = append(o.list, e)
	o.byName[e.name] = e
	if e.parts == nil {
		e.parts = split(e.value, o.format == Server)
	}
}

// has says whether an option is there with a value: an empty one is as none to Debezium.
func (o *options) has(name string) bool {
	e := o.byName[name]
	return e != nil && strings.TrimSpace(e.value) != ""
}

// shown is an option's name as the user has it, without anything that a terminal would take for a command.
func (o *options) shown(name string) string {
	if e := o.byName[name]; e != nil {
		return salt.ReplaceAllString(printable(e.label), "${1}(secret)")
	}
	switch {
	case o.format != Server, strings.HasPrefix(name, "debezium."), strings.Contains(name, " "):
	case strings.HasPrefix(name, "producer.override."):
		name = "debezium.sink.kafka.producer." + strings.TrimPrefix(name, "producer.override.")
	case strings.HasPrefix(name, "transforms"), strings.HasPrefix(name, "predicates"):
		name = "debezium." + name
	default:
		name = "debezium.source." + name
	}
	return salt.ReplaceAllString(printable(name), "${1}(secret)")
}

// salt is a secret that Debezium has in an option's name: column.mask.hash.SHA-256.with.salt.…
var salt = regexp.MustCompile(`(\.with\.salt\.).+`)

// printable is s without control characters, which could be a terminal's commands or the end of a comment.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "�")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}

// A reference is a ${…} that Kafka Connect's config providers, or Quarkus, replace when the connector starts.
type reference struct {
	provider  string // env, file, dir, secrets, …
	path, key string
	fallback  *string // Quarkus' ${NAME:fallback}
}

// A part of a value is text or a reference.
type part struct {
	text string
	ref  *reference
}

var (
	// providerPattern is that of Kafka's ConfigTransformer: ${provider:[path:]key}.
	providerPattern = regexp.MustCompile(`\$\{([^}:]*):(?:([^}]*):)?([^}]*)\}`)
	quarkusPattern  = regexp.MustCompile(`(\\)?\$\{([A-Za-z_][A-Za-z0-9_.\-]*)(?::([^}]*))?\}`)
)

// split finds the references of a value. Kafka Connect knows only those with a colon, so the ${routedByValue} of a replacement
// is text to it. Quarkus would expand that too, and has \${…} against it; what is the EventRouter's own name stays text.
func split(value string, quarkus bool) []part {
	pattern := providerPattern
	if quarkus {
		pattern = quarkusPattern
	}
	var parts []part
	at := 0
	for _, m := range pattern.FindAllStringSubmatchIndex(value, -1) {
		if m[0] < at { // inside another
			continue
		}
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return value[m[2*i]:m[2*i+1]]
		}
		var ref *reference
		end := m[1]
		if quarkus {
			if m[2] >= 0 || group(2) == "routedByValue" { // \${
				parts = append(parts, part{text: value[at:m[0]] + strings.TrimPrefix(value[m[0]:m[1]], `\`)})
				at = m[1]
				continue
			}
			ref = &reference{provider: "env", key: group(2)}
			if m[6] >= 0 {
				text := group(3)
				ref.fallback = &text
				if strings.Contains(text, "${") { // ${A:${B:c}}, which walpost.yaml has not
					ref, end = &reference{provider: nested}, closing(value, m[0])
				}
			}
		} else {
			ref = &reference{provider: group(1), path: group(2), key: group(3)}
		}
		if at < m[0] {
			parts = append(parts, part{text: value[at:m[0]]})
		}
		parts = append(parts, part{ref: ref})
		at = end
	}
	if at < len(value) {
		parts = append(parts, part{text: value[at:]})
	}
	var joined []part // text beside text is one
	for _, p := range parts {
		if n := len(joined); n > 0 && p.ref == nil && joined[n-1].ref == nil {
			joined[n-1].text += p.text
			continue
		}
		joined = append(joined, p)
	}
	return joined
}

// nested is the provider of a ${…} with another in it.
const nested = "nested"

// closing is behind the brace that closes the ${ at from; the end where there is none.
func closing(value string, from int) int {
	depth := 0
	for i := from; i < len(value); i++ {
		switch {
		case strings.HasPrefix(value[i:], "${"):
			depth++
		case value[i] == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(value)
}

// from says where a reference's value came from.
func (r *reference) from() string {
	switch r.provider {
	case "env", "strimzienv":
		return "the environment variable " + printable(r.key) + " of the connector"
	case "file", "strimzifile":
		return "the key " + printable(r.key) + " of the properties file " + printable(r.path)
	case "dir", "directory", "strimzidir":
		return "the file " + printable(r.file())
	case nested:
		return "an expression inside another expression"
	case "secrets", "configmaps", "vault":
		return "${" + printable(r.provider+":"+r.path+":"+r.key) + "}"
	}
	return "a config provider" // of the user's own; what it is given is not known to be harmless
}

func (r *reference) file() string { return strings.TrimSuffix(r.path, "/") + "/" + r.key }

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variable is the environment variable that stands for the reference: its own, or else the one for the field.
func (r *reference) variable(field string) string {
	if (r.provider == "env" || r.provider == "strimzienv") && variableName.MatchString(r.key) {
		return r.key
	}
	return field
}

// literal is an option's value, trimmed, where it is there and has no references. A value that comes from a provider and would
// have to be known now is reported.
func (c *conversion) literal(name string) (string, bool) {
	e := c.in.byName[name]
	if e == nil || !c.in.has(name) {
		return "", false
	}
	for _, p := range e.parts {
		if p.ref != nil {
			c.bad(name, "the connector gets this value from %s when it starts, and convert needs the value now: write it", p.ref.from())
			return "", false
		}
	}
	return strings.TrimSpace(e.text()), true
}

// or is an option's literal value, or else the default.
func (c *conversion) or(name, fallback string) string {
	if v, ok := c.literal(name); ok {
		return v
	}
	return fallback
}

// number is an option's value as a number; what is none is reported.
func (c *conversion) number(name string) (int, bool) {
	v, ok := c.literal(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		c.bad(name, "must be a whole number")
		return 0, false
	}
	return n, true
}

// boolean is an option's value as Kafka reads booleans; what is none is reported.
func (c *conversion) boolean(name string, fallback bool) (value, ok bool) {
	v, there := c.literal(name)
	switch {
	case !there:
		return fallback, !c.in.has(name)
	case strings.EqualFold(v, "true"):
		return true, true
	case strings.EqualFold(v, "false"):
		return false, true
	}
	c.bad(name, "must be true or false")
	return fallback, false
}

// variables is an option's value for a field of the configuration: references become environment variables, with a note for
// each that is not the same variable as before. escape is applied to what is text.
func (c *conversion) variables(e *entry, field string, escape func(string) string) (value string, notes []string) {
	var b strings.Builder
	for _, p := range e.parts {
		if p.ref == nil {
			b.WriteString(dollars(escape(p.text)))
			continue
		}
		name := p.ref.variable(field)
		b.WriteString("${" + name)
		if p.ref.fallback != nil {
			b.WriteString(":-" + dollars(escape(*p.ref.fallback)))
		}
		b.WriteString("}")
		if name != p.ref.key {
			notes = append(notes, "set "+name+"; it was "+p.ref.from())
		} else {
			notes = append(notes, "set "+name+" for walpost too")
		}
	}
	return strings.TrimSpace(b.String()), notes
}

func same(s string) string { return s }

// dollars writes a dollar sign so that walpost takes it as one.
func dollars(s string) string { return strings.ReplaceAll(s, "$", "$$") }
