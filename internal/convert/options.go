package convert

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// An entry is one option of the input.
type entry struct {
	name  string // the connector's name: slot.name
	label string // the name in the input: debezium.source.slot.name
	value string
	line  int
	order int
	parts []part
}

// text is the value of an entry without references.
func (e *entry) text() string {
	var b strings.Builder
	for _, p := range e.parts {
		b.WriteString(p.text)
	}
	return b.String()
}

// plain is the trimmed value of an entry, or empty for no entry. known is false if a provider gives
// a part of the value.
func (e *entry) plain() (value string, known bool) {
	if e == nil {
		return "", true
	}
	known = !strings.HasPrefix(e.name, wrapped) && (len(e.parts) == 0 || len(e.parts) == 1 && e.parts[0].ref == nil)
	if known {
		value = strings.TrimSpace(e.text())
	}
	return value, known
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

// has reports whether an option has a value. Debezium ignores an empty one.
func (o *options) has(name string) bool {
	e := o.byName[name]
	return e != nil && strings.TrimSpace(e.value) != ""
}

// shown is an option's name in the input, without control characters and secrets.
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

// salt finds a secret in the name of an option: column.mask.hash.SHA-256.with.salt.…
var salt = regexp.MustCompile(`(\.with\.salt\.).+`)

// printable is s without control characters, which could be commands for a terminal or end a
// comment.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "�")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}

// A reference is a ${…} that a config provider of Kafka Connect, or Quarkus, replaces when the
// connector starts.
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
	quarkusPattern  = regexp.MustCompile(`([\\$])?\$\{([A-Za-z_][A-Za-z0-9_.\-]*)(?::([^}]*))?\}`)
)

// split finds the references in a value. For Kafka Connect a reference has a colon, so
// ${routedByValue} is text. For Quarkus, \${…} is text; ${routedByValue} stays text too.
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
			if m[2] >= 0 || group(2) == "routedByValue" { // \${ and $${ are a text
				parts = append(parts, part{text: value[at:m[0]] + strings.TrimPrefix(value[m[0]:m[1]], group(1))})
				at = m[1]
				continue
			}
			ref = &reference{provider: "env", key: group(2)}
			if m[6] >= 0 {
				text := group(3)
				ref.fallback = &text
				if strings.Contains(text, "${") { // ${A:${B:c}} is not possible in walpost.yaml
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
	var joined []part // adjacent texts become one part
	for _, p := range parts {
		if n := len(joined); n > 0 && p.ref == nil && joined[n-1].ref == nil {
			joined[n-1].text += p.text
			continue
		}
		joined = append(joined, p)
	}
	return joined
}

// nested is the provider of a ${…} that contains another one.
const nested = "nested"

// closing is the offset after the brace that closes the ${ at from, or the end if there is none.
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

// from describes the origin of a reference's value.
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
	return "a config provider" // an unknown one; its path and key may be secret
}

func (r *reference) file() string { return strings.TrimSuffix(r.path, "/") + "/" + r.key }

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variable is the environment variable for the reference: its own one, or the one for the field.
func (r *reference) variable(field string) string {
	if (r.provider == "env" || r.provider == "strimzienv") && variableName.MatchString(r.key) {
		return r.key
	}
	return field
}

// literal is the trimmed value of an option that has a value. It reports a value that comes from a
// provider.
func (c *conversion) literal(name string) (string, bool) {
	if !c.in.has(name) {
		return "", false
	}
	e := c.in.byName[name]
	for _, p := range e.parts {
		if p.ref != nil {
			c.bad(name, "the connector gets this value from %s when it starts, and convert needs the value now: write it", p.ref.from())
			return "", false
		}
	}
	return strings.TrimSpace(e.text()), true
}

// or is an option's literal value, or the default.
func (c *conversion) or(name, fallback string) string {
	if v, ok := c.literal(name); ok {
		return v
	}
	return fallback
}

// number is an option's value as a number. It reports any other value.
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

// boolean is an option's value as Kafka reads booleans. It reports any other value.
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

// variables is an option's value for a field of the configuration. References become environment
// variables, with a note for each. escape is applied to the text between them.
func (c *conversion) variables(parts []part, field string, escape func(string) string) (value string, notes []string) {
	var b strings.Builder
	for _, p := range parts {
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

// dollars escapes dollar signs for walpost.yaml.
func dollars(s string) string { return strings.ReplaceAll(s, "$", "$$") }
