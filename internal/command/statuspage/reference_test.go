package statuspage

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// docs/status.md lists exactly the keys of /api/status. A heading names an object, and the items of the list below name its keys.
func TestThePageListsEveryKeyOfTheStatus(t *testing.T) {
	text, err := os.ReadFile("../../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, list, _ := strings.Cut(section, "\n")
		object := ""
		if name, ok := strings.CutPrefix(title, "`"); ok {
			object = strings.TrimSuffix(name, "`") + "."
		}
		for _, item := range strings.Split(list, "\n* ")[1:] {
			keys, _, _ := strings.Cut(item, ":")
			for _, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(keys, -1) {
				listed[object+m[1]] = true
			}
		}
	}
	marshals := reflect.TypeFor[json.Marshaler]()
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of.Implements(marshals) {
			if !listed[path] {
				t.Errorf("the page lacks %s", path)
			}
			delete(listed, path)
			return
		}
		for i := range of.NumField() {
			field := of.Field(i)
			switch key := field.Tag.Get("json"); {
			case field.Anonymous && key == "":
				walk(field.Type, path)
			case key != "-" && field.IsExported():
				walk(field.Type, strings.TrimPrefix(path+"."+key, "."))
			}
		}
	}
	walk(reflect.TypeFor[View](), "")
	for key := range listed {
		t.Errorf("/api/status has no %s", key)
	}
}
