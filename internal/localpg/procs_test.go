package localpg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// processesIn counts the processes whose working directory or command line lies in the folder.
func processesIn(t *testing.T, folder string) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.HasPrefix(cwd, folder) || strings.Contains(string(args), folder) {
			n++
		}
	}
	return n
}
