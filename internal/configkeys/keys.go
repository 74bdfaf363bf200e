// Package configkeys makes the JSON Schema and the reference of walpost.yaml from the structs of the configuration: their
// types, defaults, tags and doc comments (see conf.Field). It reads the comments in the sources, so it is for the tests that
// write both files, and no part of the program.
package configkeys

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/size"
)

// A Kind is the type of a key's value.
type Kind string

// The kinds. A section has keys of its own, and a list of sections has items with keys.
const (
	Section  Kind = "section"
	Sections Kind = "list of mappings"
	Text     Kind = "text"
	Secret   Kind = "secret"
	Bool     Kind = "boolean"
	Int      Kind = "number"
	Duration Kind = "duration"
	Size     Kind = "size"
	List     Kind = "list"
	Mapping  Kind = "mapping"
	Policies Kind = "word or mapping" // a mapping that can be written as one word
)

// A Key is one key of walpost.yaml, or one section. records.headers[].insert is a key of an item.
type Key struct {
	conf.Field
	Kind    Kind
	Meaning string // in whole sentences
	Example any    // nil for none
	Keys    []*Key // of a section, or of an item
}

// Of describes the configuration that defaults points to. The sources of the module are in the directory root.
func Of(defaults any, root string) (*Key, error) {
	s := sources{root: root, comments: map[string]string{}}
	k := &Key{Field: conf.Field{Value: reflect.ValueOf(defaults).Elem()}, Kind: Section, Meaning: "The configuration of walpost."}
	return k, s.below(k, "")
}

// sources are the doc comments of the fields of structs, by package, struct and field.
type sources struct {
	root     string
	comments map[string]string
}

// below describes the keys of a section, or of the items of a list.
func (s sources) below(k *Key, path string) error {
	section := k.Value
	if k.Kind == Sections || k.off() {
		section = reflect.New(section.Type().Elem()).Elem()
	}
	for f := range conf.Fields(section, path) {
		key := &Key{Field: f, Kind: kindOf(f.Value.Type())}
		k.Keys = append(k.Keys, key)
		var err error
		if key.Meaning, err = s.comment(f); err == nil {
			err = yaml.Unmarshal([]byte(f.Tag.Get("example")), &key.Example)
		}
		at := f.Path
		if key.Kind == Sections {
			at += "[]"
		}
		switch {
		case err != nil:
		case key.Kind == Section || key.Kind == Sections:
			err = s.below(key, at)
		case key.Kind != Bool && key.Example == nil && !f.Has("words"):
			err = fmt.Errorf("%s needs an example or words", f.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const module = "github.com/walpost/walpost"

// comment is the doc comment of a field up to its first empty line, on one line.
func (s sources) comment(f conf.Field) (string, error) {
	pkg := f.In.PkgPath()
	if _, read := s.comments[pkg]; !read {
		s.comments[pkg] = ""
		if err := s.read(pkg); err != nil {
			return "", err
		}
	}
	text := s.comments[pkg+"."+f.In.Name()+"."+f.Go]
	if text == "" {
		return "", fmt.Errorf("%s: %s.%s.%s has no doc comment", f.Path, pkg, f.In.Name(), f.Go)
	}
	return text, nil
}

func (s sources) read(pkg string) error {
	files, err := filepath.Glob(filepath.Join(s.root, filepath.FromSlash(strings.TrimPrefix(pkg, module)), "*.go"))
	for _, name := range files {
		text, failed := os.ReadFile(name)
		if failed != nil || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, failed := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if failed != nil {
			return failed
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if body, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range body.Fields.List {
					first, _, _ := strings.Cut(field.Doc.Text(), "\n\n")
					for _, name := range field.Names {
						s.comments[pkg+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(first), " ")
					}
				}
			}
			return false
		})
	}
	return err
}

func kindOf(t reflect.Type) Kind {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[conf.Secret]():
		return Secret
	case reflect.TypeFor[size.Bytes]():
		return Size
	}
	switch t.Kind() {
	case reflect.Struct:
		return Section
	case reflect.String:
		return Text
	case reflect.Bool:
		return Bool
	case reflect.Int:
		return Int
	case reflect.Int64: // time.Duration, or a type of its own that also has words
		return Duration
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return Sections
		}
		return List
	case reflect.Map:
		if conf.IsText(t) {
			return Policies
		}
		return Mapping
	default:
		panic("configuration field of type " + t.String())
	}
}

// off reports whether the key is a section that is off by default.
func (k *Key) off() bool { return k.Value.Kind() == reflect.Pointer }

// Min and Max are the bounds, or "".
func (k *Key) Min() string { return k.Tag.Get("min") }

// Max is the upper bound.
func (k *Key) Max() string { return k.Tag.Get("max") }

// Closed reports whether Words has every value.
func (k *Key) Closed() bool {
	return (k.Kind == Text || k.Kind == List || k.Kind == Policies) && k.Field.Closed()
}
