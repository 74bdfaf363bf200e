package input

import (
	"regexp"
	"strings"
	"unicode"
)

// An Entry is one option of the input.
type Entry struct {
	Name  string // the connector's name: slot.name
	Label string // the name in the input: debezium.source.slot.name
	Value string
	Line  int
	Order int    // the place in the report
	Parts []Part // of Value
}

// Text is the value of an entry without references.
func (e *Entry) Text() string {
	var b strings.Builder
	for _, p := range e.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Plain is the trimmed value of an entry, or empty for no entry. known is false if a provider gives
// a part of the value.
func (e *Entry) Plain() (value string, known bool) {
	if e == nil {
		return "", true
	}
	known = !strings.HasPrefix(e.Name, wrapped) && (len(e.Parts) == 0 || len(e.Parts) == 1 && e.Parts[0].Ref == nil)
	if known {
		value = strings.TrimSpace(e.Text())
	}
	return value, known
}

// Options are the options of one input, by the connector's names.
type Options struct {
	Format Format
	List   []*Entry // of the connector, in the order of the input
	Worker []*Entry // of its worker; their names begin with Workers
	ByName map[string]*Entry
}

// ClassOption is the option that names the connector.
const ClassOption = "connector.class"

func newOptions(list []*Entry) *Options {
	o := &Options{Format: Connect, ByName: map[string]*Entry{}}
	for _, e := range list {
		o.Put(e)
	}
	return o
}

// Put adds an option behind the others.
func (o *Options) Put(e *Entry) {
	if e.Label == "" {
		e.Label = e.Name
	}
	e.Order = len(o.List)
	o.List = append(o.List, e)
	o.ByName[e.Name] = e
	if e.Parts == nil {
		e.Parts = Split(e.Value, o.Format == Server)
	}
}

// Has reports whether an option has a value. Debezium ignores an empty one.
func (o *Options) Has(name string) bool {
	e := o.ByName[name]
	return e != nil && strings.TrimSpace(e.Value) != ""
}

// Shown is an option's name in the input, without control characters and secrets.
func (o *Options) Shown(name string) string {
	if e := o.ByName[name]; e != nil {
		name = e.Label
	} else if o.Format == Server && !strings.HasPrefix(name, "debezium.") && !strings.Contains(name, " ") {
		prefix := "debezium.source."
		if producer := ProducerName(name); producer != "" {
			prefix, name = "debezium.sink.kafka.producer.", producer
		} else if strings.HasPrefix(name, "transforms") || strings.HasPrefix(name, "predicates") {
			prefix = "debezium."
		}
		name = prefix + name
	}
	return salt.ReplaceAllString(Printable(name), "${1}(secret)")
}

// salt finds a secret in the name of an option: column.mask.hash.SHA-256.with.salt.…
var salt = regexp.MustCompile(`(\.with\.salt\.).+`)

// Printable is s without control characters, which could be commands for a terminal or end a
// comment.
func Printable(s string) string {
	s = strings.ToValidUTF8(s, "�")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, s)
}

// A Reference is a ${…} that a config provider of Kafka Connect, or Quarkus, replaces when the
// connector starts.
type Reference struct {
	Provider  string // env, file, dir, secrets, …
	path, key string
	Fallback  *string // Quarkus' ${NAME:fallback}
}

// A Part of a value is text or a reference.
type Part struct {
	Text string
	Ref  *Reference
}

var (
	// providerPattern is that of Kafka's ConfigTransformer: ${provider:[path:]key}.
	providerPattern = regexp.MustCompile(`\$\{([^}:]*):(?:([^}]*):)?([^}]*)\}`)
	quarkusPattern  = regexp.MustCompile(`([\\$])?\$\{([A-Za-z_][A-Za-z0-9_.\-]*)(?::([^}]*))?\}`)
)

// Split finds the references in a value. For Kafka Connect a reference has a colon, so
// ${routedByValue} is text. For Quarkus, \${…} is text; ${routedByValue} stays text too.
func Split(value string, quarkus bool) []Part {
	pattern := providerPattern
	if quarkus {
		pattern = quarkusPattern
	}
	var parts []Part
	text := func(s string) { // adjacent texts become one part
		if n := len(parts); n > 0 && parts[n-1].Ref == nil {
			parts[n-1].Text += s
		} else if s != "" {
			parts = append(parts, Part{Text: s})
		}
	}
	for m := pattern.FindStringSubmatch(value); m != nil; m = pattern.FindStringSubmatch(value) {
		before, after, _ := strings.Cut(value, m[0])
		text(before)
		var ref *Reference
		switch {
		case !quarkus:
			ref = &Reference{Provider: m[1], path: m[2], key: m[3]}
		case m[1] != "" || m[2] == "routedByValue": // \${ and $${ are a text
			text(strings.TrimPrefix(m[0], m[1]))
		case strings.Contains(m[3], "${"): // ${A:${B:c}} is not possible in walpost.yaml
			ref, after = &Reference{Provider: nested}, ""
		default:
			ref = &Reference{Provider: "env", key: m[2]}
			if strings.Contains(m[0], ":") {
				ref.Fallback = &m[3]
			}
		}
		if ref != nil {
			parts = append(parts, Part{Ref: ref})
		}
		value = after
	}
	text(value)
	return parts
}

// nested is the provider of a ${…} that contains another one, and of what follows it.
const nested = "nested"

// From describes the origin of a reference's value.
func (r *Reference) From() string {
	switch r.Provider {
	case "env", "strimzienv":
		return "the environment variable " + Printable(r.key) + " of the connector"
	case "file", "strimzifile":
		return "the key " + Printable(r.key) + " of the properties file " + Printable(r.path)
	case "dir", "directory", "strimzidir":
		return "the file " + Printable(r.File())
	case nested:
		return "a nested expression and what follows it"
	case "secrets", "configmaps", "vault":
		return "${" + Printable(r.Provider+":"+r.path+":"+r.key) + "}"
	}
	return "a config provider" // an unknown one; its path and key may be secret
}

func (r *Reference) File() string { return strings.TrimSuffix(r.path, "/") + "/" + r.key }

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Variable is the environment variable for the reference: its own one, or the one for the field. The
// note says what the user must set.
func (r *Reference) Variable(field string) (name, note string) {
	if (r.Provider == "env" || r.Provider == "strimzienv") && variableName.MatchString(r.key) {
		return r.key, "also set " + r.key + " for walpost"
	}
	return field, "set " + field + "; it was " + r.From()
}
