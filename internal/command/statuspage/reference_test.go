package statuspage

import (
	"encoding/json"
	goflag "flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walpost/walpost/internal/configkeys"
	"github.com/walpost/walpost/internal/doctest"
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
	keys := map[string]bool{}
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of.Implements(marshals) {
			keys[path] = true
			return
		}
		for i := range of.NumField() {
			field := of.Field(i)
			switch key, _, _ := strings.Cut(field.Tag.Get("json"), ","); {
			case field.Anonymous && key == "":
				walk(field.Type, path)
			case key != "-" && field.IsExported():
				walk(field.Type, strings.TrimPrefix(path+"."+key, "."))
			}
		}
	}
	walk(reflect.TypeFor[View](), "")
	for key := range keys {
		if !listed[key] {
			t.Errorf("the page lacks %s", key)
		}
	}
	for key := range listed {
		if !keys[key] {
			t.Errorf("/api/status has no %s", key)
		}
	}
}

var update = goflag.Bool("update", false, "write the metrics in docs/metrics.md anew")

// docs/metrics.md lists every metric of walpost with its help. Those of the Kafka client's library are its own.
func TestThePageListsEveryMetric(t *testing.T) {
	const page = "../../../docs/metrics.md"
	s := New(DefaultConfig(), Build{})
	s.Spans(func() int64 { return 0 })
	s.metrics.MustRegister(newCollector(busy()))
	all := make(chan *prometheus.Desc, 1000)
	s.metrics.Describe(all)
	close(all)
	form := regexp.MustCompile(`^Desc{fqName: "(walpost_.*?)", help: "(.*?)"(?:, unit: ".*?")?, constLabels: {.*}, variableLabels: {(.*)}}$`)
	var lines []string
	for d := range all {
		if m := form.FindStringSubmatch(d.String()); m != nil {
			labels := strings.TrimPrefix(strings.TrimPrefix(m[3], "slot,database"), ",")
			if labels != "" {
				labels = "{" + labels + "}"
			}
			lines = append(lines, configkeys.Wrap(fmt.Sprintf("* `%s%s`: %s", m[1], labels, m[2]), "  "))
		}
	}
	slices.Sort(lines)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, ok := doctest.Within(string(text), strings.Join(lines, "\n")+"\n")
	if !ok || len(lines) < 40 {
		t.Fatalf("%s has no place for %d metrics", page, len(lines))
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not up to date: go test ./internal/command/statuspage -run ThePageLists -update", page)
	}
}
