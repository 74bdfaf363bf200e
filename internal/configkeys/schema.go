package configkeys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// SchemaURL is where the JSON Schema of the newest version is. The example and the output of init name it.
const SchemaURL = "https://raw.githubusercontent.com/walpost/walpost/main/walpost.schema.json"

type object map[string]any

// variable is a text with a variable, which may be in the place of any value.
const variable = `\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}`

// Schema is the JSON Schema of walpost.yaml (draft 2020-12). It refuses nothing that walpost accepts.
//
// A schema cannot see what depends on two keys, on a file or on the environment. Of durations and sizes it sees the bounds
// if the value has one unit and no fraction.
func (k *Key) Schema() []byte {
	schema := k.section()
	schema["$schema"], schema["$id"], schema["title"] = "https://json-schema.org/draft/2020-12/schema", SchemaURL, "walpost.yaml"
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		panic(err) // keys.yaml has something that JSON has not
	}
	return text.Bytes()
}

func (k *Key) section() object {
	keys := object{}
	for _, below := range k.Keys {
		keys[below.Name] = below.schema()
	}
	types := []string{"object", "null"}
	if k.Off || k.Kind == Sections { // only a section that is there by default may be without a value
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
	if facts := k.facts(); facts != "" {
		text += " (" + facts + ")"
	}
	return text
}

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
		s = object{"type": []string{"integer", "string"}, "pattern": "^[+-]?[0-9]+$|" + variable}
		k.limit(s)
	case Duration, Size:
		s = object{"type": []string{"integer", "string"}, "pattern": "^(?:" + k.measures() + ")$|" + variable, "patternErrorMessage": "must be a " + k.kind() + k.bound()}
		k.limit(s)
		if words := k.enum(); len(words) > 0 {
			s = object{"anyOf": []object{{"enum": words}, s}}
		}
	case List:
		s = object{"type": append([]string{"array"}, scalar...), "items": k.word(scalar)}
	case Policies:
		policies := object{}
		for _, key := range k.About.Keys {
			policies[key] = k.word(scalar)
		}
		s = object{"anyOf": []object{k.word(scalar), {"type": "object", "properties": policies, "additionalProperties": false}}}
	case Mapping:
		s = object{"type": "object", "additionalProperties": object{"type": scalar}}
	default:
		s = k.word(scalar)
	}
	s["description"] = k.description()
	if v := plain(k.Default); k.Default.Kind() == 0 || !k.Default.IsZero() || k.Kind == Bool || k.Kind == Duration || k.Kind == Size {
		s["default"] = v
	}
	if k.Example != nil {
		s["examples"] = []any{k.Example}
	}
	return s
}

// word is the schema of one text.
func (k *Key) word(scalar []string) object {
	switch {
	case k.Pattern != "":
		return object{"type": scalar, "pattern": "(?:" + k.Pattern + ")|" + variable}
	case !k.Closed():
		return object{"type": scalar}
	}
	other := variable
	if k.Fold {
		other += "|^(?:" + anyCase(strings.Join(k.Words, "|")) + ")$"
	}
	return object{"anyOf": []object{{"enum": k.Words}, {"type": "string", "pattern": other}}}
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

// enum has the words beside other values, and those that are numbers as numbers, too.
func (k *Key) enum() (words []any) {
	for _, w := range k.Words {
		words = append(words, w)
		if n, err := strconv.Atoi(w); err == nil {
			words = append(words, n)
		}
	}
	return words
}

// limit sets the bounds of values that are written as a number. Of the durations only 0 needs no unit.
func (k *Key) limit(s object) {
	within, _ := k.bounds() // Of has reported the error
	if k.Kind == Duration {
		within = span{max(within.least, 0), 0}
	}
	if within.least > math.MinInt64 {
		s["minimum"] = within.least
	}
	if within.most < math.MaxInt64 {
		s["maximum"] = within.most
	}
}

type unit struct {
	name string
	size int64
}

var (
	durations = []unit{
		{"ns", 1},
		{"[uµμ]s", int64(time.Microsecond)},
		{"ms", int64(time.Millisecond)},
		{"s", int64(time.Second)},
		{"m", int64(time.Minute)},
		{"h", int64(time.Hour)},
	}
	sizes = []unit{
		{"B?", 1}, {"[kK]B", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	}
)

// measures is a regular expression of the durations or sizes within the bounds. Durations with a fraction or with several
// units are all in it.
func (k *Key) measures() string {
	within, _ := k.bounds() // Of has reported the error
	units, space := sizes, `\s*`
	if k.Kind == Duration {
		units, space = durations, ""
	}
	var names, all []string
	for _, u := range units {
		names = append(names, u.name)
		least, most, more := (max(within.least, 0)+u.size-1)/u.size, within.most/u.size, ""
		if within.most == math.MaxInt64 { // more digits are no problem of the bounds
			most, more = 1e18-1, `|\d{19,}`
		}
		if least <= most {
			all = append(all, `\+?0*(?:`+between(uint64(least), uint64(most))+more+")"+space+u.name)
		}
	}
	unit := "(?:" + strings.Join(names, "|") + ")"
	if k.Kind == Duration {
		all = append(all, `\+?(?:[0-9.]+`+unit+`){2,}`, `\+?[0-9]*\.[0-9]*`+unit)
	}
	if within.least <= 0 || slices.Contains(k.Words, "0") {
		all = append(all, `[+-]?0+`+space+unit+"?")
	}
	return strings.Join(all, "|")
}

// between is a regular expression of the whole numbers from least to most, without zeros before them.
func between(least, most uint64) string {
	// Between two ends, only the last digits run from 0 to 9, and one digit before them runs over a range.
	ends := []uint64{most}
	for scale := uint64(10); scale <= 1e18; scale *= 10 {
		if nines := least - least%scale + scale - 1; nines < most {
			ends = append(ends, nines)
		}
		if zeros := (most + 1) - (most+1)%scale; zeros > least {
			ends = append(ends, zeros-1)
		}
	}
	slices.Sort(ends)
	type run struct {
		head        string // the digits before the last ones
		fewest, any int    // how many digits of any value follow
	}
	var runs []run
	for _, end := range slices.Compact(ends) {
		from, to, r := strconv.FormatUint(least, 10), strconv.FormatUint(end, 10), run{}
		for i := range to {
			switch {
			case from[i] == to[i]:
				r.head += to[i : i+1]
			case from[i] == '0' && to[i] == '9':
				r.any++
			default:
				r.head += fmt.Sprintf("[%c-%c]", from[i], to[i])
			}
		}
		least, r.fewest = end+1, r.any
		if last := len(runs) - 1; last >= 0 && runs[last].head == r.head && runs[last].any+1 == r.any {
			runs[last].any++
		} else {
			runs = append(runs, r)
		}
	}
	all := make([]string, len(runs))
	for i, r := range runs {
		all[i] = r.head + fmt.Sprintf(`\d{%d,%d}`, r.fewest, r.any)
	}
	return strings.NewReplacer(`\d{0,0}`, "", `\d{1,1}`, `\d`).Replace(strings.Join(all, "|"))
}
