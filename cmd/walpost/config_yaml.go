package main

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost"
)

// place is where a value was written: a line of the file, a flag, an environment variable.
type place struct {
	label     string // walpost.yaml:3:7, --slot, WALPOST_SLOT; "" for nowhere
	line, col int    // orders the problems of a file; 0 for the others
}

// problem is one thing that is wrong with what the user wrote.
type problem struct {
	at    place
	field string
	text  string
}

func (p problem) String() string {
	parts := []string{p.text}
	if p.field != "" {
		parts = slices.Insert(parts, 0, p.field)
	}
	if p.at.label != "" {
		parts = slices.Insert(parts, 0, p.at.label)
	}
	return strings.Join(parts, ": ")
}

// A decoder fills a struct from a YAML document by its yaml tags, strictly, and collects everything that is wrong
// instead of stopping at the first. It exists because yaml.Decoder gives neither columns nor more than one kind of error.
type decoder struct {
	file     string
	env      func(string) (string, bool)
	places   map[string]place // of every field that was written, by its path
	problems []problem
}

// verbatim are the fields in which a dollar sign means something else.
var verbatim = []string{"router.route.topic.regex", "router.route.topic.replacement"}

// decode reads one document into the struct that into points to.
func (d *decoder) decode(doc []byte, into any) {
	dec := yaml.NewDecoder(bytes.NewReader(doc))
	var root yaml.Node
	switch err := dec.Decode(&root); {
	case errors.Is(err, io.EOF):
		return // an empty file says nothing, which is allowed
	case err != nil:
		d.syntax(err)
		return
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		d.add(&second, "", "a second document: the file must hold one")
		return
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return
	}
	d.value(root.Content[0], reflect.ValueOf(into).Elem(), "")
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func (d *decoder) syntax(err error) {
	at, text := place{label: d.file}, err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = m[2]
		if m[1] != "" {
			at.label += ":" + m[1]
		}
	}
	if strings.HasPrefix(text, "unknown anchor") {
		// The parser's text repeats the value, and an unquoted password may well start with an asterisk.
		text = "a value that starts with * must be quoted"
	}
	d.problems = append(d.problems, problem{at: at, text: "not YAML: " + text})
}

func (d *decoder) add(n *yaml.Node, field, format string, args ...any) {
	d.problems = append(d.problems, problem{at: d.place(n), field: field, text: fmt.Sprintf(format, args...)})
}

func (d *decoder) place(n *yaml.Node) place {
	return place{label: fmt.Sprintf("%s:%d:%d", d.file, n.Line, n.Column), line: n.Line, col: n.Column}
}

// value decodes one node. Only mappings that a struct stands for are walked into, so an alias cannot recurse for ever.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	d.places[path] = d.place(n)
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch {
	case v.Kind() == reflect.Pointer && !null:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case isStruct(v):
		if !null { // a section with nothing in it, as after commenting out all of its keys
			d.mapping(n, v, path)
		}
	case null:
		d.add(n, path, "has no value (leave the key out for the default)")
	case v.Kind() == reflect.Slice:
		d.list(n, v, path)
	case v.Kind() == reflect.Map:
		d.words(n, v, path)
	case n.Kind != yaml.ScalarNode:
		d.add(n, path, "must be %s (got %s)", wanted(v.Type()), kindName(n))
	default:
		text, ok := d.expand(n, path)
		if !ok {
			return
		}
		if err := setText(v, text); err != nil {
			d.add(n, path, "%v", err)
		}
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	switch n.Kind {
	case yaml.SequenceNode:
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			d.value(item, list.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		v.Set(list)
	case yaml.ScalarNode: // a,b,c: what one environment variable can hold
		if text, ok := d.expand(n, path); ok {
			v.Set(reflect.ValueOf(splitList(text)))
		}
	default:
		d.add(n, path, "must be a list (got %s)", kindName(n))
	}
}

// words decodes a mapping whose keys are the user's own.
func (d *decoder) words(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.add(n, path, "must be a mapping (got %s)", kindName(n))
		return
	}
	words := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, field := n.Content[i], join(path, n.Content[i].Value)
		if _, twice := words[key.Value]; twice {
			d.add(key, field, "is there twice")
		}
		var word string
		d.value(n.Content[i+1], reflect.ValueOf(&word).Elem(), field)
		words[key.Value] = word
	}
	v.Set(reflect.ValueOf(words))
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.add(n, path, "must be a mapping (got %s)", kindName(n))
		return
	}
	fields := fieldsOf(v)
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		name := key.Value
		if seen[name] {
			d.add(key, join(path, name), "is there twice")
			continue
		}
		seen[name] = true
		if f, ok := fields[name]; ok {
			d.value(val, f, join(path, name))
			continue
		}
		d.add(key, join(path, name), "unknown key%s", suggest(name, fields))
	}
}

// expand is the node's text with its variables put in.
func (d *decoder) expand(n *yaml.Node, path string) (string, bool) {
	if slices.Contains(verbatim, path) {
		return n.Value, true
	}
	text, wrong := expandVariables(n.Value, d.env)
	for _, w := range wrong {
		d.add(n, path, "%s", w)
	}
	return text, len(wrong) == 0
}

var variable = regexp.MustCompile(`\$\$|\$\{([^}]*)(\}?)`)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expandVariables replaces ${NAME} and ${NAME:-default} (also for a variable that is set and empty, as a shell does), and
// $$ by $. Any other dollar sign stays. wrong is what cannot be replaced.
func expandVariables(text string, env func(string) (string, bool)) (out string, wrong []string) {
	out = variable.ReplaceAllStringFunc(text, func(match string) string {
		if match == "$$" {
			return "$"
		}
		m := variable.FindStringSubmatch(match)
		name, fallback, hasFallback := strings.Cut(m[1], ":-")
		value, set := env(name)
		switch {
		case m[2] == "":
			wrong = append(wrong, "${ without } (write $$ for a dollar sign)")
		case !variableName.MatchString(name):
			wrong = append(wrong, "${…} must hold the name of an environment variable (write $$ for a dollar sign)")
		case hasFallback && value == "":
			return fallback
		case !set:
			wrong = append(wrong, fmt.Sprintf("the environment variable %s is not set (${%s:-default} gives a default)", name, name))
		}
		return value
	})
	return out, wrong
}

// setText sets a field from text: of a file, a flag or a variable.
func setText(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	wrong := fmt.Errorf("must be %s (got %q)", wanted(v.Type()), text)
	switch v.Interface().(type) {
	case time.Duration:
		x, err := time.ParseDuration(text)
		if err != nil {
			return wrong
		}
		v.SetInt(int64(x))
		return nil
	case []string:
		v.Set(reflect.ValueOf(splitList(text)))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return wrong
		}
		v.SetBool(text == "true")
	case reflect.Int:
		x, err := strconv.Atoi(text)
		if err != nil {
			return wrong
		}
		v.SetInt(int64(x))
	default:
		panic("configuration field of type " + v.Type().String())
	}
	return nil
}

func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 10s"
	case t == reflect.TypeFor[walpost.Size]():
		return "a size such as 64MiB"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	}
	return "one value"
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return "one value"
	}
}

func isStruct(v reflect.Value) bool { return v.Kind() == reflect.Struct }

// fieldsOf is a struct's fields by their yaml key, with those of inlined structs.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		switch tag := v.Type().Field(i).Tag.Get("yaml"); tag {
		case "-", "":
		case ",inline":
			for key, f := range fieldsOf(v.Field(i)) {
				fields[key] = f
			}
		default:
			fields[tag] = v.Field(i)
		}
	}
	return fields
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func splitList(text string) []string {
	parts := strings.Split(text, ",")
	list := parts[:0]
	for _, part := range parts {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// suggest names the key that was probably meant.
func suggest(name string, fields map[string]reflect.Value) string {
	best, least := "", max(2, len(name)/4)+1
	for key := range fields {
		if n := distance(strings.ToLower(name), key); n < least || n == least && key < best {
			best, least = key, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// distance is the number of letters to insert, remove or change between two words (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
