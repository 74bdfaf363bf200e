//go:build linux

package release

import (
	"strings"
	"testing"
)

// TestTheRpmHasTheSameFiles reads the package. It is not installed: the machines of the tests are Debian.
func TestTheRpmHasTheSameFiles(t *testing.T) {
	rpm := one(t, "walpost_*_linux_amd64.rpm")
	listed := out(t, "rpm", "--query", "--package", "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES} %{FILEFLAGS:fflags}\n]", rpm)
	for _, want := range []string{
		"-rwxr-xr-x root:root /usr/bin/walpost ",
		"-rw-r--r-- root:root /usr/lib/systemd/system/walpost.service ",
		"drwxr-x--- root:walpost /etc/walpost ",
		"-rw-r----- root:walpost /etc/walpost/walpost.yaml cn", // a configuration that an upgrade keeps
	} {
		if !strings.Contains(listed, want) {
			t.Errorf("the package lacks %q:\n%s", want, listed)
		}
	}
	scripts := out(t, "rpm", "--query", "--package", "--scripts", rpm)
	for _, want := range []string{"preinstall scriptlet", "useradd --system", "postinstall scriptlet", "preuninstall scriptlet", "postuninstall scriptlet"} {
		if !strings.Contains(scripts, want) {
			t.Errorf("the scripts lack %q:\n%s", want, scripts)
		}
	}
}
