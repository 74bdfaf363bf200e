// Package configkeys describes the keys of walpost.yaml. From the structs of the sections come each
// key's name, type and default, and from keys.yaml what a struct cannot say. The JSON Schema, the
// reference and the printed configuration are made of the description. This package knows no section.
package configkeys

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/size"
	"github.com/walpost/walpost/internal/yamlfile"
)

//go:embed keys.yaml
var texts []byte

// A Kind is the type of a key's value.
type Kind string

// The kinds. A section has keys of its own, and a list of sections has items with keys.
const (
	Section  Kind = "section"
	Sections Kind = "list of mappings"
	Text     Kind = "text"
	Secret   Kind = "secret"
	Bool     Kind = "`true` or `false`"
	Int      Kind = "whole number"
	Duration Kind = "duration"
	Size     Kind = "size in bytes"
	List     Kind = "list"
	Mapping  Kind = "mapping"
	Policies Kind = "one word, or a mapping" // a mapping that can be written as one word
)

// About is what keys.yaml says about a key.
type About struct {
	Meaning string   `yaml:"meaning"`
	Example any      `yaml:"example"`
	Words   []string `yaml:"words"`
	Fold    bool     `yaml:"fold"`
	Min     string   `yaml:"min"`
	Max     string   `yaml:"max"`
	Unit    string   `yaml:"unit"`
	Pattern string   `yaml:"pattern"`
	Keys    []string `yaml:"keys"`
	Since   string   `yaml:"since"`
	Reload  bool     `yaml:"reload"`
}

// A Key is one key of walpost.yaml, or one section.
type Key struct {
	About
	Path    string // kafka.topics.create; records.headers[].insert is a key of an item
	Name    string // the last part: a name may have dots
	Kind    Kind
	Default reflect.Value // the zero value for a key of an item, and in a section that is off
	Off     bool          // the section is off by default
	Keys    []*Key        // of a section, or of an item
}

// firstVersion has every key that does not say another version.
const firstVersion = "0.1"

// Of describes the configuration that defaults points to. An error is a bug: it names the keys that are in the structs or in
// keys.yaml only, and what the description of a key lacks.
func Of(defaults any) (*Key, error) {
	about := map[string]*About{}
	dec := yaml.NewDecoder(strings.NewReader(string(texts)))
	dec.KnownFields(true)
	if err := dec.Decode(&about); err != nil {
		return nil, fmt.Errorf("keys.yaml: %w", err)
	}
	d := describer{about: about, used: map[string]bool{"": true}}
	d.about[""] = &About{Meaning: "The configuration of walpost."}
	root := d.key("", "", reflect.ValueOf(defaults).Elem())
	for name := range about {
		if !d.used[name] {
			d.wrong = append(d.wrong, fmt.Errorf("%s: is in keys.yaml, but is not a key", name))
		}
	}
	return root, errors.Join(d.wrong...)
}

type describer struct {
	about map[string]*About
	used  map[string]bool
	wrong []error
}

// text finds what keys.yaml says about a key.
func (d *describer) text(path string) About {
	name := path
	if d.about[path] == nil {
		for pattern := range d.about {
			if head, tail, ok := strings.Cut(pattern, "*"); ok && strings.HasPrefix(path, head) && strings.HasSuffix(path, tail) {
				name = pattern
			}
		}
	}
	d.used[name] = true
	if a := d.about[name]; a != nil {
		return *a
	}
	d.wrong = append(d.wrong, fmt.Errorf("%s: is missing in internal/configkeys/keys.yaml", path))
	return About{}
}

func (d *describer) key(path, name string, v reflect.Value) *Key {
	k := &Key{About: d.text(path), Path: path, Name: name, Kind: kindOf(v.Type()), Default: v}
	if k.Since == "" {
		k.Since = firstVersion
	}
	inner := v
	switch {
	case v.Kind() == reflect.Pointer:
		k.Off, inner = true, reflect.New(v.Type().Elem()).Elem()
	case k.Kind == Sections:
		path, inner = path+"[]", reflect.New(v.Type().Elem()).Elem()
	}
	if k.Kind == Section || k.Kind == Sections {
		for name, f := range yamlfile.Ordered(inner) {
			k.Keys = append(k.Keys, d.key(yamlfile.Join(path, name), name, f))
		}
	}
	if lacks := k.lacks(); lacks != "" {
		d.wrong = append(d.wrong, fmt.Errorf("%s: needs %s in internal/configkeys/keys.yaml", k.Path, lacks))
	}
	return k
}

// lacks names what the description of the key must have and lacks.
func (k *Key) lacks() string {
	scaled := k.Kind == Duration || k.Kind == Size
	_, err := k.bounds()
	switch {
	case k.Meaning == "":
		return "meaning"
	case err != nil:
		return "min and max that are values of the key"
	case scaled && k.Min == "":
		return "min"
	case k.Kind == Int && k.Unit == "":
		return "unit"
	case k.Kind != Section && k.Kind != Bool && k.Example == nil && len(k.Words) == 0:
		return "example or words"
	}
	return ""
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
		if yamlfile.IsSection(t) {
			return Section
		}
		return Text
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
		if yamlfile.IsText(t) {
			return Policies
		}
		return Mapping
	default:
		panic("configuration field of type " + t.String())
	}
}

// Closed reports whether Words has every value.
func (k *Key) Closed() bool {
	switch k.Kind {
	case Text, List, Policies:
		return len(k.Words) > 0 && k.Pattern == ""
	default:
		return false
	}
}

// All is the key and every key below it.
func (k *Key) All() []*Key {
	all := []*Key{k}
	for _, below := range k.Keys {
		all = append(all, below.All()...)
	}
	return all
}

// span is from the least to the largest value of a key, in nanoseconds, bytes or the key's unit.
type span struct{ least, most int64 }

func (k *Key) bounds() (span, error) {
	s := span{math.MinInt64, math.MaxInt64}
	for _, bound := range []struct {
		text string
		to   *int64
	}{{k.Min, &s.least}, {k.Max, &s.most}} {
		text, to := bound.text, bound.to
		if text == "" {
			continue
		}
		var err error
		switch k.Kind {
		case Duration:
			var d time.Duration
			d, err = time.ParseDuration(text)
			*to = int64(d)
		case Size:
			var b size.Bytes
			err = b.UnmarshalText([]byte(text))
			*to = int64(b)
		default:
			*to, err = strconv.ParseInt(text, 10, 64)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// plain is a value as encoders write it: a bool, a whole number, a text, a list or a mapping. A secret is masked.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool()
	case reflect.Int:
		return v.Int()
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i))
		}
		return list
	case reflect.Map:
		words := map[string]any{}
		for key, value := range v.Seq2() {
			words[key.String()] = plain(value)
		}
		if word, ok := words["default"]; ok && len(words) == 1 && yamlfile.IsText(v.Type()) {
			return word
		}
		return words
	case reflect.Struct:
		if !yamlfile.IsSection(v.Type()) {
			break
		}
		section := map[string]any{}
		for key, f := range yamlfile.Ordered(v) {
			if !f.IsZero() {
				section[key] = plain(f)
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
