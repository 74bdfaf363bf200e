package convert

import (
	_ "embed"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/command/convert/input"
)

// A rule is the verdict of options that become no field. rules.yaml explains the fields.
type rule struct {
	Options []string
	Why     string
	Fine    []string
	Bad     string
	Differs string
	Empty   bool
}

//go:embed rules.yaml
var rulesYAML []byte

var rules = sync.OnceValue(func() (all []rule) {
	if err := yaml.Unmarshal(rulesYAML, &all); err != nil {
		panic("rules.yaml: " + err.Error())
	}
	return all
})

// ruleOf finds the rule of an option: by its name, or by the first family that it belongs to.
func ruleOf(name string) (family rule) {
	for _, r := range slices.Backward(rules()) {
		for _, option := range r.Options {
			if option == name {
				return r
			}
			if prefix, many := strings.CutSuffix(option, "*"); many && strings.HasPrefix(name, prefix) {
				family = r
			}
		}
	}
	return family
}

// judge reports an option that becomes no field, by the rule of name.
func (r *report) judge(e *input.Entry, name string) {
	found := ruleOf(name)
	value, known := e.Plain()
	v, text := Unsupported, found.Bad
	switch {
	case known && value == "" && !found.Empty:
		v, text = NotNeeded, "the value is empty"
	case found.Bad+found.Differs == "", known && slices.Contains(found.Fine, strings.ReplaceAll(strings.ToLower(value), " ", "")):
		v, text = NotNeeded, found.Why
	case found.Differs != "":
		v, text = Differs, found.Differs
	}
	r.add(v, e.Name, false, "%s", text)
}
