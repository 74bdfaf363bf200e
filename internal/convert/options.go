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
		name = e.label
	} else if o.format == Server && !strings.HasPrefix(name, "debezium.") && !strings.Contains(name, " ") {
		prefix := "debezium.source."
		if producer := producerName(name); producer != "" {
			prefix, name = "debezium.sink.kafka.producer.", producer
		} else if strings.HasPrefix(name, "transforms") || strings.HasPrefix(name, "predicates") {
			prefix = "debezium."
		}
		name = prefix + name
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
	text := func(s string) { // adjacent texts become one part
		if n := len(parts); n > 0 && parts[n-1].ref == nil {
			parts[n-1].text += s
		} else if s != "" {
			parts = append(parts, part{text: s})
		}
	}
	for m := pattern.FindStringSubmatch(value); m != nil; m = pattern.FindStringSubmatch(value) {
		before, after, _ := strings.Cut(value, m[0])
		text(before)
		var ref *reference
		switch {
		case !quarkus:
			ref = &reference{provider: m[1], path: m[2], key: m[3]}
		case m[1] != "" || m[2] == "routedByValue": // \${ and $${ are a text
			text(strings.TrimPrefix(m[0], m[1]))
		case strings.Contains(m[3], "${"): // ${A:${B:c}} is not possible in walpost.yaml
			ref, after = &reference{provider: nested}, behind(value[len(before):])
		default:
			ref = &reference{provider: "env", key: m[2]}
			if strings.Contains(m[0], ":") {
				ref.fallback = &m[3]
			}
		}
		if ref != nil {
			parts = append(parts, part{ref: ref})
		}
		value = after
	}
	text(value)
	return parts
}

// nested is the provider of a ${…} that contains another one.
const nested = "nested"

// behind is the text behind the ${…} that value begins with, or nothing if that has no end.
func behind(value string) string {
	depth := 0
	for i := range len(value) {
		if strings.HasPrefix(value[i:], "${") {
			depth++
		} else if value[i] == '}' {
			if depth--; depth == 0 {
				return value[i+1:]
			}
		}
	}
	return ""
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

// variable is the environment variable for the reference: its own one, or the one for the field. The
// note says what the user must set.
func (r *reference) variable(field string) (name, note string) {
	if (r.provider == "env" || r.provider == "strimzienv") && variableName.MatchString(r.key) {
		return r.key, "also set " + r.key + " for walpost"
	}
	return field, "set " + field + "; it was " + r.from()
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
		name, note := p.ref.variable(field)
		notes = append(notes, note)
		b.WriteString("${" + name)
		if p.ref.fallback != nil {
			b.WriteString(":-" + dollars(escape(*p.ref.fallback)))
		}
		b.WriteString("}")
	}
	return strings.TrimSpace(b.String()), notes
}

func same(s string) string { return s }

// dollars escapes dollar signs for walpost.yaml.
func dollars(s string) string { return strings.ReplaceAll(s, "$", "$$") }
