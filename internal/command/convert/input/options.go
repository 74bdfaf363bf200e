package input

import (
	"regexp"
	"strings"
	"unicode"
)

// An Entry is one option of the input.
type Entry struct {
	Name  string // the connector's name: slot.name
	Label string // the name in the input: spec.config.slot.name
	Value string
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
	List   []*Entry // of the connector, in the order of the input
	Worker []*Entry // of its worker; their names begin with Workers
	ByName map[string]*Entry
}

// ClassOption is the option that names the connector.
const ClassOption = "connector.class"

func newOptions(list []*Entry) *Options {
	o := &Options{ByName: map[string]*Entry{}}
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
		e.Parts = Split(e.Value)
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

// A Reference is a ${…} that a config provider of Kafka Connect replaces when the connector starts.
type Reference struct {
	Provider  string // env, file, dir, secrets, …
	path, key string
}

// A Part of a value is text or a reference.
type Part struct {
	Text string
	Ref  *Reference
}

// provider is the pattern of Kafka's ConfigTransformer: ${provider:[path:]key}.
var provider = regexp.MustCompile(`\$\{([^}:]*):(?:([^}]*):)?([^}]*)\}`)

// Split finds the references in a value. A reference has a colon, so ${routedByValue} is text.
func Split(value string) []Part {
	var parts []Part
	end := 0
	for _, m := range provider.FindAllStringSubmatchIndex(value, -1) {
		if m[0] > end {
			parts = append(parts, Part{Text: value[end:m[0]]})
		}
		ref := &Reference{Provider: value[m[2]:m[3]], key: value[m[6]:m[7]]}
		if m[4] >= 0 {
			ref.path = value[m[4]:m[5]]
		}
		parts, end = append(parts, Part{Ref: ref}), m[1]
	}
	if end < len(value) {
		parts = append(parts, Part{Text: value[end:]})
	}
	return parts
}

// From describes the origin of a reference's value.
func (r *Reference) From() string {
	if file, ok := r.File(); ok {
		return "the file " + Printable(file)
	}
	switch r.Provider {
	case "env", "strimzienv":
		return "the environment variable " + Printable(r.key) + " of the connector"
	case "file", "strimzifile":
		return "the key " + Printable(r.key) + " of the properties file " + Printable(r.path)
	case "secrets", "configmaps", "vault":
		return "${" + Printable(r.Provider+":"+r.path+":"+r.key) + "}"
	}
	return "a config provider" // an unknown one; its path and key may be secret
}

// File is the file whose content is the value, if there is one.
func (r *Reference) File() (name string, ok bool) {
	return strings.TrimSuffix(r.path, "/") + "/" + r.key, r.Provider == "dir" || r.Provider == "directory" || r.Provider == "strimzidir"
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Variable is the environment variable for the reference: its own one, or the one for the field. The
// note says what the user must set.
func (r *Reference) Variable(field string) (name, note string) {
	if (r.Provider == "env" || r.Provider == "strimzienv") && variableName.MatchString(r.key) {
		return r.key, "also set " + r.key + " for walpost"
	}
	return field, "set " + field + "; the connector gets it from " + r.From()
}
