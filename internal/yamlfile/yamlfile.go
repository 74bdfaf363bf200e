// Package yamlfile reads walpost.yaml into a struct by its yaml tags, strictly, and collects everything
// that is wrong instead of stopping at the first problem. yaml.Decoder gives neither columns nor more
// than one kind of error.
package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/conf"
)

// A Problem is one thing that is wrong with what the user wrote.
type Problem struct {
	conf.Problem
	at place
}

func (p Problem) String() string {
	parts := slices.DeleteFunc([]string{p.at.label, p.Field, p.Text()}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Problems is everything that is wrong with what the user wrote.
type Problems []Problem

func (ps Problems) Error() string { return conf.Lines(ps) }

// Misconfigured is true: see package fault.
func (Problems) Misconfigured() bool { return true }

// A Reader fills one struct: from a file, and then from flags and variables, which go over it.
type Reader struct {
	file     string
	env      func(string) (string, bool)
	places   map[string]place // of every field that was written, by its path
	problems Problems
}

// New returns a Reader. The file's name is for messages; env gives the variables in values.
func New(file string, env func(string) (string, bool)) *Reader {
	return &Reader{file: file, env: env, places: map[string]place{}}
}

// Set sets a field from the text of a flag or a variable, and forgets what the file says about it.
func (d *Reader) Set(into any, from, field, text string) {
	d.Forget(field, from)
	f, ok := conf.Find(into, field)
	if !ok {
		panic(field + " is no key")
	}
	d.refuse(place{label: from}, field, conf.SetText(f.Value, text))
}

// Check returns what is wrong with how the fields are written, and what a validation found. What is
// wrong with how a field is written tells enough about it.
func (d *Reader) Check(found conf.Problems) Problems {
	all := slices.Clone(d.problems)
	for _, p := range found {
		if !d.reported(p.Field) {
			all = append(all, Problem{p, d.find(p.Field)})
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.at.line, b.at.line), cmp.Compare(a.at.col, b.at.col))
	})
	return all
}

// reported says whether something is already known to be wrong with a field, so that its absence is no
// further news.
func (d *Reader) reported(field string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool {
		return p.Field == field || p.Field == field+"_file" || strings.HasPrefix(p.Field, field+"[") ||
			p.Field == field+"s" || strings.HasPrefix(p.Field, field+"s[") || // source.table may stand as source.tables
			p.Field == "" // the file could not be read as YAML
	})
}

// refuse adds an error, if there is one, as a problem of a field.
func (d *Reader) refuse(at place, field string, err error) {
	var found conf.Problems
	found.Try(field, err)
	for _, p := range found {
		d.problems = append(d.problems, Problem{p, at})
	}
}

// Read reads one document into the struct that into points to.
func (d *Reader) Read(doc []byte, into any) {
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
		d.add(&second, "", "a second document: the file must contain only one document")
		return
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return
	}
	d.value(root.Content[0], reflect.ValueOf(into).Elem(), "")
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func (d *Reader) syntax(err error) {
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
	d.refuse(at, "", errors.New("not YAML: "+text))
}

func (d *Reader) add(n *yaml.Node, field, format string, args ...any) {
	d.refuse(d.place(n), field, fmt.Errorf(format, args...))
}

// value decodes one node. Only mappings that a struct stands for are walked into, so an alias cannot recurse for ever.
func (d *Reader) value(n *yaml.Node, v reflect.Value, path string) {
	d.places[path] = d.place(n)
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch {
	case v.Kind() == reflect.Pointer && !null:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case conf.IsSection(v.Type()):
		if !null { // a section with nothing in it, as after commenting out all of its keys
			d.mapping(n, v, path)
		}
	case null:
		d.add(n, path, "has no value (leave the key out for the default)")
	case v.Kind() == reflect.Slice:
		d.list(n, v, path)
	case v.Kind() == reflect.Map && (n.Kind != yaml.ScalarNode || !conf.IsText(v.Type())):
		d.mapping(n, v, path)
	case n.Kind != yaml.ScalarNode:
		d.add(n, path, "must be %s (got %s)", conf.Wanted(v.Type()), kindName(n))
	default:
		text, ok := d.expand(n, path)
		if !ok {
			return
		}
		if err := conf.SetText(v, text); err != nil {
			d.add(n, path, "%v", err)
		}
	}
}

func (d *Reader) list(n *yaml.Node, v reflect.Value, path string) {
	switch n.Kind {
	case yaml.SequenceNode:
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			d.value(item, list.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		v.Set(list)
	case yaml.ScalarNode: // a,b,c: what one environment variable can hold
		if v.Type().Elem().Kind() == reflect.Struct {
			d.add(n, path, "must be a list (got %s)", kindName(n))
		} else if text, ok := d.expand(n, path); ok {
			v.Set(reflect.ValueOf(conf.SplitList(text)))
		}
	default:
		d.add(n, path, "must be a list (got %s)", kindName(n))
	}
}

// mapping decodes a mapping into a struct, or into a map, whose keys are the user's own.
func (d *Reader) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.add(n, path, "must be a mapping (got %s)", kindName(n))
		return
	}
	own, fields := v.Kind() == reflect.Map, map[string]conf.Field{}
	if own {
		v.Set(reflect.MakeMap(v.Type()))
	} else {
		for f := range conf.Fields(v, path) {
			fields[f.Name] = f
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		name := key.Value
		if seen[name] {
			d.add(key, conf.Join(path, name), "occurs twice")
			continue
		}
		seen[name] = true
		f, ok := fields[name]
		switch {
		case own:
			word := reflect.New(v.Type().Elem()).Elem()
			d.value(val, word, conf.Join(path, name))
			v.SetMapIndex(reflect.ValueOf(name), word)
		case ok:
			if f.Has("verbatim") {
				val = verbatim(val)
			}
			d.value(val, f.Value, f.Path)
		default:
			d.add(key, conf.Join(path, name), "unknown key%s", suggest(name, fields))
		}
	}
}

// verbatim is a node in whose text a dollar sign begins no variable.
func verbatim(n *yaml.Node) *yaml.Node {
	text := *n
	for text.Kind == yaml.AliasNode {
		text = *text.Alias
	}
	text.Line, text.Column, text.Value = n.Line, n.Column, strings.ReplaceAll(text.Value, "$", "$$")
	return &text
}

// expand is the node's text with its variables put in.
func (d *Reader) expand(n *yaml.Node, path string) (string, bool) {
	at := d.places[path]
	for _, m := range variable.FindAllString(n.Value, -1) {
		if m != "$$" {
			name, _, _ := strings.Cut(strings.Trim(m, "${}"), ":-") // a default may be a secret
			at.variables += ", ${" + name + "}"
		}
	}
	d.places[path] = at
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
		case strings.Contains(fallback, "${"): // its first } would end the whole expression
			wrong = append(wrong, fmt.Sprintf("the default in ${%s:-…} must not contain ${, because variables do not nest", name))
		case hasFallback && value == "":
			return fallback
		case !set:
			wrong = append(wrong, fmt.Sprintf("the environment variable %s is not set (${%s:-default} names a default)", name, name))
		}
		return value
	})
	return out, wrong
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

// suggest names the key that was probably meant.
func suggest(name string, fields map[string]conf.Field) string {
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
