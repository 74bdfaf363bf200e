package convert

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/conf"
)

// A document is the walpost.yaml that is being written.
type document struct {
	b       bytes.Buffer
	name    string // of the section
	pending string // the first line of a section that has no key yet
}

// section begins a section. A section without keys is not written.
func (d *document) section(name, comment string) {
	d.name, d.pending = name, "\n"+name+":"
	if comment != "" {
		d.pending += " # " + input.Printable(comment)
	}
	d.pending += "\n"
}

// note writes comments before the next key.
func (d *document) note(texts ...string) {
	for _, text := range texts {
		d.head()
		for _, line := range conf.Wrap(input.Printable(text), 110) {
			d.b.WriteString("  # " + line + "\n")
		}
	}
}

func (d *document) head() {
	d.b.WriteString(d.pending)
	d.pending = ""
}

// put writes a key. The value is YAML already.
func (d *document) put(key, value, comment string) {
	d.head()
	d.b.WriteString("  " + key + ": " + value)
	if comment != "" {
		d.b.WriteString(" # " + input.Printable(comment))
	}
	d.b.WriteByte('\n')
}

// plain matches a text that needs no quotes anywhere in YAML.
var (
	plain = regexp.MustCompile(`^[A-Za-z_/$][A-Za-z0-9_./{}$@?&=%+-]*(?::[A-Za-z0-9_./{}$@?&=%+-]+)*(?:://[A-Za-z0-9_./{}$@?&=%+:,-]+)?$`)
	words = regexp.MustCompile(`(?i)^(?:true|false|null|yes|no|on|off|y|n)$`)
)

// scalar is a text in YAML. The configuration reads every value as text, so numbers need no quotes.
func scalar(s string) string {
	if plain.MatchString(s) && !words.MatchString(s) {
		return s
	}
	return strconv.Quote(strings.ToValidUTF8(s, "\uFFFD")) // YAML reads all escapes of Go
}

func list(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = flow(v)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// flow is a text inside braces in YAML.
func flow(s string) string {
	if q := scalar(s); q != s || !strings.ContainsAny(s, ",{}[]?") {
		return q
	}
	return `"` + s + `"`
}

// file is the whole file. It begins with the unsupported options as values that every command
// refuses, so that nobody runs a configuration that is not complete.
func file(found []Finding, sections []byte) []byte {
	var b bytes.Buffer
	b.WriteString("# Made from a Debezium configuration by walpost debezium convert.\n")
	missing := 0
	for _, f := range found {
		if f.Verdict != Unsupported {
			continue
		}
		if missing++; missing == 1 {
			b.WriteString("\n# NOT COMPLETE: no command accepts this file while an entry is below. Decide about each of these\n" +
				"# options of the connector, and then delete its entry.\nunsupported:\n")
		}
		text := conf.Wrap(dollars(f.Option+": "+f.Text), 96)
		b.WriteString("  - >-\n    " + strings.Join(text, "\n    ") + "\n")
	}
	b.Write(sections)
	return b.Bytes()
}
