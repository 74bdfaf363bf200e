package configkeys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/walpost/walpost/internal/conf"
)

type object map[string]any

// variable is a text with a variable, which may be in the place of any value.
const variable = `\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}`

// Schema is the JSON Schema of walpost.yaml (draft 2020-12), whose place is url. It refuses nothing that walpost accepts.
//
// A schema cannot see what depends on two keys, on a file or on the environment, nor the bounds of a duration or size.
func (k *Key) Schema(url string) []byte {
	schema := k.section()
	schema["$schema"], schema["$id"], schema["title"] = "https://json-schema.org/draft/2020-12/schema", url, "walpost.yaml"
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		panic(err) // an example has something that JSON has not
	}
	return text.Bytes()
}

func (k *Key) section() object {
	keys := object{}
	for _, below := range k.Keys {
		keys[below.Name] = below.schema()
	}
	types := []string{"object", "null"}
	if k.Kind == Sections || k.off() { // only a section that is there by default may be without a value
		types = types[:1]
	}
	return object{"description": k.description(), "type": types, "properties": keys, "additionalProperties": false}
}

var link = regexp.MustCompile(`\[([^]]*)\]\(([^)]*)\)`)

// description is for the editor, which shows no links to other pages.
func (k *Key) description() string {
	text := link.ReplaceAllStringFunc(k.Meaning, func(l string) string {
		m := link.FindStringSubmatch(l)
		if m[1] == m[2] {
			return "docs/" + m[2]
		}
		return m[1]
	})
	return text + " (" + k.facts() + ")"
}

// The forms of a duration and a size, of any value.
const (
	durationForm = `\+?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+|[+-]?0+`
	sizeForm     = `\+?[0-9]+\s*(?:[kK]B|MB|GB|TB|KiB|MiB|GiB|TiB|B)?`
)

func (k *Key) schema() object {
	scalar := []string{"string", "number", "boolean"} // YAML reads 7 and true as a text, too
	var s object
	switch k.Kind {
	case Section:
		return k.section()
	case Sections:
		s = object{"type": "array", "items": k.section()}
	case Bool:
		s = object{"type": []string{"boolean", "string"}, "pattern": "^(true|false)$|" + variable}
	case Int:
		s = k.number(`[+-]?[0-9]+`)
	case Duration:
		s = k.number(durationForm)
		s["minimum"], s["maximum"] = 0, 0 // only 0 needs no unit
	case Size:
		s = k.number(sizeForm)
	case List:
		s = object{"type": append([]string{"array"}, scalar...), "items": k.word(scalar)}
	case Policies:
		policies := object{}
		for _, key := range k.Field.Keys() {
			policies[key] = k.word(scalar)
		}
		s = object{"anyOf": []object{k.word(scalar), {"type": "object", "properties": policies, "additionalProperties": false}}}
	case Mapping:
		s = object{"type": "object", "additionalProperties": object{"type": scalar}}
	default:
		s = k.word(scalar)
	}
	s["description"] = k.description()
	if !k.Value.IsZero() || k.Kind == Bool || k.Kind == Duration || k.Kind == Size {
		s["default"] = conf.Plain(k.Value)
	}
	if k.Example != nil {
		s["examples"] = []any{k.Example}
	}
	return s
}

// number is the schema of a number, with a unit in its form if it has one.
func (k *Key) number(form string) object {
	for _, w := range k.Words() {
		form += "|" + regexp.QuoteMeta(w)
	}
	s := object{"type": []string{"integer", "string"}, "pattern": "^(?:" + form + ")$|" + variable, "patternErrorMessage": "must be a " + k.kind()}
	for bound, text := range map[string]string{"minimum": k.Min(), "maximum": k.Max()} {
		if n, err := strconv.Atoi(text); err == nil {
			s[bound] = n
		}
	}
	return s
}

// word is the schema of one text.
func (k *Key) word(scalar []string) object {
	switch {
	case k.Has("pattern"):
		return object{"type": scalar, "pattern": "(?:" + k.Tag.Get("pattern") + ")|" + variable}
	case !k.Closed():
		return object{"type": scalar}
	}
	other := variable
	if k.Has("fold") {
		other += "|^(?:" + anyCase(strings.Join(k.Words(), "|")) + ")$"
	}
	return object{"anyOf": []object{{"enum": k.Words()}, {"type": "string", "pattern": other}}}
}

// anyCase is a regular expression for a text in upper and lower case. Not every dialect of JSON Schema can fold cases.
func anyCase(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsLetter(r) {
			fmt.Fprintf(&b, "[%c%c]", unicode.ToUpper(r), unicode.ToLower(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
