package conf

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Check returns the values that their tags forbid, of the keys of a section and of the sections in it except some. The
// section is at path, and section points to it.
func Check(path string, section any, except ...string) (found Problems) {
	checkSection(&found, path, reflect.ValueOf(section).Elem(), except)
	return found
}

func checkSection(found *Problems, path string, section reflect.Value, except []string) {
	for f := range Fields(section, path) {
		if !slices.Contains(except, f.Path) {
			f.check(found)
		}
	}
}

func (f Field) check(found *Problems) {
	v, words := f.Value, f.Words()
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		checkSection(found, f.Path, v, nil)
	case reflect.Map:
		if words != nil {
			f.checkWords(found)
		}
	case reflect.String:
		switch text := v.String(); {
		case f.Has("want"):
			if !regexp.MustCompile(f.Tag.Get("pattern")).MatchString(text) {
				found.Add(f.Path, MustBe, f.Tag.Get("want"), text)
			}
		case f.Closed() && !slices.ContainsFunc(words, func(w string) bool { return w == text || f.Has("fold") && strings.EqualFold(w, text) }):
			found.OneOf(f.Path, text, words...)
		}
	case reflect.Int, reflect.Int64:
		if !slices.ContainsFunc(words, func(w string) bool { return f.valueOf(w).Equal(v) }) {
			f.checkBounds(found)
		}
	default: // a list is for the section
	}
}

// Closed reports whether a text must be one of the words.
func (f Field) Closed() bool { return f.Has("words") && !f.Has("pattern") }

// valueOf is the value that a text of a tag stands for.
func (f Field) valueOf(text string) reflect.Value {
	v := reflect.New(f.Value.Type()).Elem()
	if err := SetText(v, text); err != nil {
		panic("the tags of " + f.Path + ": " + err.Error())
	}
	return v
}

func (f Field) checkBounds(found *Problems) {
	if least, ok := f.Tag.Lookup("min"); ok && f.Value.Int() < f.valueOf(least).Int() {
		found.Add(f.Path, MustBe, "at least "+least, f.Value.Interface())
	}
	if most, ok := f.Tag.Lookup("max"); ok && f.Value.Int() > f.valueOf(most).Int() {
		found.Add(f.Path, MustBe, "at most "+most, f.Value.Interface())
	}
}

// checkWords checks a mapping whose values are words. It may have been written as one word, for the key default.
func (f Field) checkWords(found *Problems) {
	for _, key := range slices.SortedFunc(slices.Values(f.Value.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
		path := Join(f.Path, key.String())
		if key.String() == "default" && f.Value.Len() == 1 {
			path = f.Path
		}
		if keys := f.Keys(); keys != nil && !slices.Contains(keys, key.String()) {
			found.OneOf(path, key.String(), keys...)
			continue
		}
		found.OneOf(path, f.Value.MapIndex(key).String(), f.Words()...)
	}
}
