package conf

import (
	"encoding"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/internal/size"
)

// A Field is a key of walpost.yaml: the field of a struct that has its value. The tags of the field say which values are
// valid, and its doc comment, up to the first empty line, is the description of the key. From them come the decoding, the
// validation, the JSON Schema and the reference.
//
//	yaml      the key, or - for a field that is no key
//	suffix    instead of yaml in a struct that stands for several keys, which all begin with its own
//	min, max  the bounds, both inclusive
//	words     the values, separated by |. A number may have them beside its bounds, and an empty one means that the key may be empty
//	fold      true if upper and lower case are the same in words
//	pattern   a regular expression of a text
//	want      what a text that does not match the pattern must be. Without it, the section validates the text
//	keys      the keys of a mapping, separated by |. Without it, they are free
//	example   a valid value, as YAML
//	verbatim  true if ${VAR} is no variable in the text
//	reload    true if walpost run takes a new value after SIGHUP
type Field struct {
	Path  string // kafka.topics.create
	Name  string // the last part, which may have dots
	Value reflect.Value
	Tag   reflect.StructTag
	In    reflect.Type // the struct with the tags and the comment, and the name of the field there
	Go    string
}

// Fields are the keys of a section, which v is, in the order of the struct.
func Fields(v reflect.Value, path string) iter.Seq[Field] {
	return func(yield func(Field) bool) { eachField(Field{Path: path, Value: v}, "", yield) }
}

// eachField has the keys of the struct in, which begin with prefix.
func eachField(in Field, prefix string, yield func(Field) bool) bool {
	for t, v := range in.Value.Fields() {
		suffix, more := t.Tag.Lookup("suffix")
		key := t.Tag.Get("yaml")
		f := Field{Name: prefix + key + suffix, Value: v, Tag: t.Tag, In: in.Value.Type(), Go: t.Name}
		f.Path = Join(in.Path, f.Name)
		if more && suffix == "" { // it has the key of the struct
			f.Tag, f.In, f.Go = in.Tag, in.In, in.Go
		}
		switch {
		case !more && (key == "" || key == "-"):
			continue
		case key == ",inline":
			more = eachField(Field{Path: in.Path, Value: v}, prefix, yield)
		case IsSection(v.Type()) && hasSuffixes(v.Type()):
			name := f.Name
			f.Path = in.Path
			more = eachField(f, name, yield)
		default:
			more = yield(f)
		}
		if !more {
			return false
		}
	}
	return true
}

func hasSuffixes(t reflect.Type) bool {
	_, ok := t.Field(0).Tag.Lookup("suffix")
	return ok
}

// Find returns the field at a path of the configuration that root points to.
func Find(root any, path string) (Field, bool) { return find(reflect.ValueOf(root).Elem(), "", path) }

func find(v reflect.Value, at, path string) (Field, bool) {
	for f := range Fields(v, at) {
		switch {
		case f.Path == path:
			return f, true
		case strings.HasPrefix(path, f.Path+".") && IsSection(f.Value.Type()):
			return find(f.Value, f.Path, path)
		}
	}
	return Field{}, false
}

// IsSection reports whether a type is a section, with keys of its own.
func IsSection(t reflect.Type) bool { return t.Kind() == reflect.Struct && !IsText(t) }

// IsText reports whether a type that is no text can be written as one.
func IsText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// Words are the words of the tag.
func (f Field) Words() []string { return f.list("words") }

// Keys are the keys of a mapping, or none if they are free.
func (f Field) Keys() []string { return f.list("keys") }

func (f Field) list(tag string) []string {
	if text, ok := f.Tag.Lookup(tag); ok {
		return strings.Split(text, "|")
	}
	return nil
}

// Has reports whether a tag is set.
func (f Field) Has(tag string) bool {
	_, ok := f.Tag.Lookup(tag)
	return ok
}

// Join is the path of a key.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// SetText sets a field from text: of a file, a flag, a variable or a tag.
func SetText(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	wrong := fmt.Errorf("must be %s (got %q)", Wanted(v.Type()), text)
	switch v.Interface().(type) {
	case time.Duration:
		x, err := time.ParseDuration(text)
		if err != nil {
			return wrong
		}
		v.SetInt(int64(x))
		return nil
	case []string:
		v.Set(reflect.ValueOf(SplitList(text)))
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

// Wanted says what a value of a type must be.
func Wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 10s"
	case t == reflect.TypeFor[size.Bytes]():
		return "a size such as 64MiB"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	}
	return "one value"
}

// SplitList returns the items of a list with commas, without spaces around them and without empty items.
func SplitList(text string) []string {
	parts := strings.Split(text, ",")
	list := parts[:0]
	for _, part := range parts {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// Plain is a value as encoders write it: a bool, a whole number, a text, a list or a mapping. A secret is masked.
func Plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool()
	case reflect.Int:
		return v.Int()
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = Plain(v.Index(i))
		}
		return list
	case reflect.Map:
		words := map[string]any{}
		for key, value := range v.Seq2() {
			words[key.String()] = Plain(value)
		}
		if word, ok := words["default"]; ok && len(words) == 1 && IsText(v.Type()) {
			return word
		}
		return words
	case reflect.Struct:
		section := map[string]any{}
		for f := range Fields(v, "") {
			if !f.Value.IsZero() {
				section[f.Name] = Plain(f.Value)
			}
		}
		return section
	default: // a text
	}
	text := fmt.Sprint(v.Interface())
	if v.Kind() == reflect.Int64 && v.Type() != reflect.TypeFor[size.Bytes]() {
		text = shortDuration(text)
	}
	return text
}

// shortDuration is the text of a duration without the units that are zero: 72h for 72h0m0s.
func shortDuration(text string) string {
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

// String is the key with its value. A secret is masked.
func (f Field) String() string {
	if f.Value.Kind() == reflect.Pointer {
		return f.Path
	}
	return fmt.Sprintf("%s: %v", f.Path, Plain(f.Value))
}

// Changes returns the keys that have other values after a change, from two pointers to structs of one type. A section that is in
// one of them only is one key.
func Changes(before, after any) []Field {
	return changes(reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem(), "")
}

func changes(before, after reflect.Value, path string) (found []Field) {
	old := slices.Collect(Fields(before, path))
	for i, f := range slices.Collect(Fields(after, path)) {
		a, b := old[i].Value, f.Value
		if a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() {
			a, b = a.Elem(), b.Elem()
		}
		switch {
		case IsSection(a.Type()):
			found = append(found, changes(a, b, f.Path)...)
		case !reflect.DeepEqual(a.Interface(), b.Interface()):
			found = append(found, f)
		}
	}
	return found
}
