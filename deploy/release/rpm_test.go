//go:build linux

package release

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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

// The machines of the tests are Debian. Its rpm installs a package only with --force-debian, and knows no package that another one
// needs. Everything else is as on a Red Hat: rpm unpacks the files, gives them their owners, and runs the scripts.
func TestTheRpmIsInstalledUpgradedAndRemoved(t *testing.T) {
	rpm := one(t, "walpost_*_linux_amd64.rpm")
	d := newDebian(t)
	out(t, "nsenter", "--target", d.pid, "--mount", "cp", rpm, filepath.Join(d.layer, "root/tmp/walpost.rpm"))
	do := func(args string) { t.Helper(); d.sh(t, "rpm --force-debian --nodeps --dbpath /tmp/rpm "+args) }
	do("--install /tmp/walpost.rpm")
	listed := d.sh(t, "stat --format '%A %U:%G %n' /usr/bin/walpost /usr/lib/systemd/system/walpost.service /etc/walpost /etc/walpost/walpost.yaml")
	if want := `-rwxr-xr-x root:root /usr/bin/walpost
-rw-r--r-- root:root /usr/lib/systemd/system/walpost.service
drwxr-x--- root:walpost /etc/walpost
-rw-r----- root:walpost /etc/walpost/walpost.yaml
`; listed != want {
		t.Errorf("installed are\n%s", listed)
	}
	// As the service's user, which owns none of the files.
	d.sh(t, "exec setpriv --reuid walpost --regid walpost --init-groups walpost config validate --config /etc/walpost/walpost.yaml")

	d.sh(t, "mkdir -p /var/lib/walpost; echo '# edited' >>/etc/walpost/walpost.yaml")
	do("--upgrade --replacepkgs /tmp/walpost.rpm")
	if text := d.sh(t, "cat /etc/walpost/walpost.yaml"); !strings.HasSuffix(text, "# edited\n") {
		t.Error("the upgrade replaced the configuration")
	}
	do("--erase walpost")
	got := d.left(t)
	slices.Sort(got)
	if !slices.Equal(got, []string{"/etc/walpost", "/etc/walpost/walpost.yaml.rpmsave"}) {
		t.Errorf("removing leaves %v, must leave the edited configuration only", got)
	}
}
