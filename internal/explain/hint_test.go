package explain

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/walpost/walpost/router"
)

// TestEveryRuleHasAHint reads the rules from the router's source, so that a new one is not forgotten here.
func TestEveryRuleHasAHint(t *testing.T) {
	const source = "../../router/errors.go"
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var rules []router.Rule
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Rule" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			rules = append(rules, router.Rule(text))
		}
		return true
	})
	ofUpdates := []router.Rule{router.ValueSent, router.UpdateFatal}
	if len(rules) < 8 {
		t.Fatalf("%s has only the rules %q", source, rules)
	}
	for _, rule := range rules {
		if slices.Contains(ofUpdates, rule) {
			continue // explain sees no update
		}
		for _, column := range []string{"", "payload"} {
			hint := explainHint(router.Problem{Rule: rule, Option: "router.an.option", Column: column})
			if !strings.Contains(hint, "router.an.option") {
				t.Errorf("rule %q, column %q: the hint %q does not say what to change", rule, column, hint)
			}
		}
	}
}
