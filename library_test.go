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
var testsAndDemo = regexp.MustCompile(`/kfake$|/embedded-postgres$|/lib/pq(/|$)|^testing$|/walpost/(cmd|deploy|examples|outbox/outboxtest|scripts|internal/(doctest|e2e|keeper|ledger|localpg|parity|shop|testenv))(/|$)`)

func TestTheLibraryLinksNothingOfTestsAndTheDemo(t *testing.T) {
	list := func(args ...string) []string {
		out, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	libraries := 0
	for _, pkg := range list("./...") {
		if testsAndDemo.MatchString(pkg) {
			continue
		}
		libraries++
		clients := 0
		for _, dep := range list("-deps", pkg) {
			if testsAndDemo.MatchString(dep) {
				t.Errorf("%s links %s", pkg, dep)
			}
			if strings.Contains(dep, "/minio-go/") {
				clients++
			}
		}
		if s3 := strings.HasSuffix(pkg, "/outbox/s3store"); s3 != (clients > 0) {
			t.Errorf("%s links %d packages of the client for S3", pkg, clients)
		}
	}
	found := strings.Join(list("-deps", "./cmd/walpost"), "\n")
	if libraries < 8 || !strings.Contains(found, "/embedded-postgres") {
		t.Errorf("%d libraries looked at, and the command links %q: this test would find nothing", libraries, found)
	}
	if strings.Contains(found, "/minio-go/") {
		t.Error("the command links the client for S3")
	}
}

// An init function works for everybody who imports a package, whether they want it or not.
func TestNoPackageActsWhenItIsImported(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		source, err := os.ReadFile(path)
		if strings.Contains(string(source), "\nfunc init()") {
			t.Errorf("%s has an init function", path)
		}
		return err
	})
	if err != nil || files < 200 {
		t.Errorf("%d files, %v", files, err)
	}
}
