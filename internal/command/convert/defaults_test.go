package convert

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var comment = regexp.MustCompile(`(?m)\s*(?:^|\s)#.*$`)

// outcome converts the options, and returns what walpost reads of the configuration, and what it
// refuses.
func outcome(t *testing.T, options map[string]string) (yaml string, refused []string) {
	t.Helper()
	text, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Convert(text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Report {
		if f.Verdict == Unsupported {
			refused = append(refused, f.Option+": "+f.Text)
		}
	}
	slices.Sort(refused)
	return comment.ReplaceAllString(string(r.YAML), ""), refused
}

// Whoever writes every default into the connector's configuration gets the same as without.
func TestDefaultsThatAreWrittenOutChangeNothing(t *testing.T) {
	text, err := os.ReadFile("testdata/defaults.txt")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(class string) map[string]string {
		options := map[string]string{}
		if err := json.Unmarshal([]byte(connector+"}"), &options); err != nil {
			t.Fatal(err)
		}
		options["value.converter"] = class
		return options
	}
	all := connect(jsonConverter)
	n := 0
	for _, line := range strings.Split(string(text), "\n") {
		name, value, ok := strings.Cut(line, "=")
		if !ok || line[0] == '#' || name == "transforms" {
			continue
		}
		n++
		base := connect(stringConverter)
		if strings.HasPrefix(name, "value.converter.") {
			base = connect(jsonConverter)
		}
		delete(base, name)
		yaml, refused := outcome(t, base)
		base[name] = value
		written, more := outcome(t, base)
		if written != yaml {
			t.Errorf("%s gives\n%s\nand without it\n%s", line, written, yaml)
		}
		if !slices.Equal(refused, more) {
			t.Errorf("%s is refused: %s, and without it: %s", line, more, refused)
		}
		if name != "plugin.name" {
			all[name] = value
		}
	}
	if n < 180 {
		t.Errorf("only %d defaults", n)
	}
	yaml, _ := outcome(t, connect(jsonConverter))
	written, refused := outcome(t, all)
	if written != yaml || refused != nil {
		t.Errorf("all defaults give\n%s\nand none\n%s\nrefused: %q", written, yaml, refused)
	}
}
