package explain

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router"
)

// TestEveryRuleHasAHint reads the rules from the router's source, so that a new one is not forgotten here.
func TestEveryRuleHasAHint(t *testing.T) {
	const source = "../../../router/errors.go"
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
	if len(rules) < 8 {
		t.Fatalf("%s has only the rules %q", source, rules)
	}
	for _, rule := range rules {
		for _, column := range []string{"", "payload"} {
			for _, at := range []cdc.LSN{0, 1} {
				bad := router.RowError{LSN: at, Problems: []router.Problem{{Rule: rule, Option: "router.an.option", Column: column}}}
				hint := bad.Hint()
				if !strings.Contains(hint, "router.an.option") && !strings.Contains(hint, "records.") && !strings.Contains(hint, "skip") {
					t.Errorf("rule %q, column %q, at %s: the hint %q does not say what to change", rule, column, at, hint)
				}
				if hint == "Change the value of router.an.option." && column != "" && rule != router.OptionValid {
					t.Errorf("rule %q has no hint of its own", rule)
				}
				if byRow := strings.Contains(hint, "value of column") || strings.Contains(hint, "Write a value"); byRow && at != 0 {
					t.Errorf("rule %q: the WAL keeps the row, and the hint says %q", rule, hint)
				}
			}
		}
	}
}
