package walpost

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// What the libraries export is shown by an Example or a program in examples. What nobody needs to be shown is not exported.
func TestEachNameOfTheLibrariesIsInAnExample(t *testing.T) {
	parse := func(own bool, patterns ...string) (all []*ast.File) {
		for _, pattern := range patterns {
			names, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if own && strings.HasSuffix(name, "_test.go") {
					continue
				}
				file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, file)
			}
		}
		return all
	}
	shown := map[string]bool{"Error": true, "Unwrap": true, "Is": true} // package errors calls these
	for _, file := range parse(false, "*/example_test.go", "*/*/example_test.go", "*/*/*/example_test.go", "examples/*/*.go") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok {
					shown[x.Name+"."+n.Sel.Name] = true
				}
			case *ast.Ident:
				shown[n.Name] = true
			}
			return true
		})
	}
	for _, dir := range []string{"outbox", "outbox/outboxtest", "outbox/s3store", "inbox", "inbox/inboxtest", "inbox/consumer", "inbox/consumer/promstats", "otel", "otel/otelstats", "walposttest"} {
		exported := 0
		for _, file := range parse(true, dir+"/*.go") {
			pkg := file.Name.Name
			ast.FileExports(file)
			need := func(prefix string, names ...*ast.Ident) {
				for _, name := range names {
					exported++
					if !shown[prefix+name.Name] {
						t.Errorf("%s: no example has %s%s: add it to one, or do not export it", dir, prefix, name.Name)
					}
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Recv == nil {
						need(pkg+".", n.Name)
					} else if ofExported(n.Recv.List[0].Type) {
						need("", n.Name)
					}
					return false
				case *ast.ValueSpec:
					need(pkg+".", n.Names...)
				case *ast.TypeSpec:
					need(pkg+".", n.Name)
				case *ast.Field: // of a struct, or a method of an interface
					need("", n.Names...)
				case *ast.FuncType:
					return false
				}
				return true
			})
		}
		if exported == 0 {
			t.Errorf("%s exports nothing: this test would find nothing", dir)
		}
	}
}

// ofExported reports whether the type of a receiver, such as *DB[T], is exported.
func ofExported(receiver ast.Expr) (exported bool) {
	switch r := receiver.(type) {
	case *ast.StarExpr:
		return ofExported(r.X)
	case *ast.IndexExpr:
		return ofExported(r.X)
	case *ast.Ident:
		return r.IsExported()
	}
	return true
}
