package convert

import (
	"strconv"
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
)

// literal is the trimmed value of an option that has a value. A blank may belong to a regular expression, so that is not
// trimmed. literal reports a value that comes from a provider.
func (r *report) literal(name string) (string, bool) {
	if !r.in.Has(name) {
		return "", false
	}
	e := r.in.ByName[name]
	for _, p := range e.Parts {
		if p.Ref != nil {
			r.bad(name, "the connector gets this value from %s when it starts, and convert needs the value now: write the value itself into the option", p.Ref.From())
			return "", false
		}
	}
	if strings.HasSuffix(name, ".regex") || strings.HasSuffix(name, ".replacement") {
		return e.Text(), true
	}
	return strings.TrimSpace(e.Text()), true
}

// or is an option's literal value, or the default.
func (r *report) or(name, fallback string) string {
	if v, ok := r.literal(name); ok {
		return v
	}
	return fallback
}

// number is an option's value as a number. It reports any other value.
func (r *report) number(name string) (int, bool) {
	v, ok := r.literal(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		r.bad(name, "must be a whole number")
		return 0, false
	}
	return n, true
}

// boolean is an option's value as Kafka reads booleans. It reports any other value.
func (r *report) boolean(name string, fallback bool) (value, ok bool) {
	v, there := r.literal(name)
	switch {
	case !there:
		return fallback, !r.in.Has(name)
	case strings.EqualFold(v, "true"):
		return true, true
	case strings.EqualFold(v, "false"):
		return false, true
	}
	r.bad(name, "must be true or false")
	return fallback, false
}

// variables is an option's value for a field of the configuration. References become environment
// variables, with a note for each. escape is applied to the text between them.
func variables(parts []input.Part, field string, escape func(string) string) (value string, notes []string) {
	var b strings.Builder
	for _, p := range parts {
		if p.Ref == nil {
			b.WriteString(dollars(escape(p.Text)))
			continue
		}
		name, note := p.Ref.Variable(field)
		notes = append(notes, note)
		b.WriteString("${" + name + "}")
	}
	return strings.TrimSpace(b.String()), notes
}

func same(s string) string { return s }

// dollars escapes dollar signs for walpost.yaml.
func dollars(s string) string { return strings.ReplaceAll(s, "$", "$$") }
