package walpost

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testsAndDemo are packages that only tests, the demo and the command need.
var testsAndDemo = regexp.MustCompile(`/kfake$|/srfake$|/embedded-postgres$|/lib/pq(/|$)|^testing$|opentelemetry.io/otel/(sdk|exporters)|google.golang.org/grpc|/walpost/(cmd|deploy|examples|inbox/inboxtest|outbox/outboxtest|scripts|walposttest|internal/(doctest|e2e|keeper|ledger|librarytest|localpg|parity|shop|testenv))(/|$)`)

func TestTheLibraryLinksNothingOfTestsAndTheDemo(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	libraries, command := 0, ""
	for line := range strings.Lines(string(out)) {
		pkg, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasSuffix(pkg, "/cmd/walpost") {
			command = deps
		}
		if testsAndDemo.MatchString(pkg) {
			continue
		}
		libraries++
		for _, dep := range strings.Fields(deps) {
			if testsAndDemo.MatchString(dep) {
				t.Errorf("%s links %s", pkg, dep)
			}
		}
	}
	if strings.Contains(command, "/minio-go/") {
		t.Error("the command links the client for S3")
	}
	if libraries < 8 || !strings.Contains(command, "/embedded-postgres") {
		t.Errorf("%d libraries looked at, and the command links %q: this test would find nothing", libraries, command)
	}
}

// An init function works for everybody who imports a package, whether they want it or not. Only a test
// imports walposttest, whose process is also the guard of its server. A build with failpoints is for the fault suite only.
func TestNoPackageActsWhenItIsImported(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		source, err := os.ReadFile(path)
		if strings.Contains(string(source), "\nfunc init()") && path != filepath.Join("walposttest", "walposttest.go") && !strings.HasPrefix(string(source), "//go:build failpoints") {
			t.Errorf("%s has an init function", path)
		}
		return err
	})
	if err != nil || files < 200 {
		t.Errorf("%d files, %v", files, err)
	}
}
