package convert

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/fault"
)

// Whatever the input is, there is an answer: a usage error, options that walpost can't take over, or one document of YAML. What walpost says
// to the document is tested with the cases of cmd/walpost, cut at many places. To fuzz that too, Go would compile the whole program for the
// fuzzer.
func FuzzConvert(f *testing.F) {
	names, err := filepath.Glob("../../../cmd/walpost/testdata/debezium/*.txtar")
	if err != nil || len(names) == 0 {
		f.Fatalf("no cases to begin with: %v", err)
	}
	for _, name := range names {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			f.Add(file.Data, []byte(nil), "public.outbox")
		}
	}
	f.Fuzz(func(t *testing.T, text, worker []byte, table string) {
		o := Options{Worker: worker}
		if table != "" {
			o.Tables = []string{table}
		}
		r, err := Convert(text, o)
		if err != nil {
			if !fault.Misconfigured(err) {
				t.Fatalf("no usage error: %v", err)
			}
			return
		}
		if r.YAML == nil && !r.Unsupported() {
			t.Fatal("nothing is written, and nothing is unsupported")
		}
		if r.YAML == nil {
			return
		}
		docs := yaml.NewDecoder(bytes.NewReader(r.YAML))
		if err := docs.Decode(new(map[string]any)); err != nil {
			t.Fatalf("no YAML: %v\n%s", err, r.YAML)
		}
		if err := docs.Decode(new(any)); !errors.Is(err, io.EOF) {
			t.Fatalf("more than one document: %v\n%s", err, r.YAML)
		}
	})
}
