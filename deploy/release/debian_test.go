//go:build linux

package release

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/testenv"
)

// A debian is a copy of this machine's system that is thrown away: what is written goes to a layer
// above the real files, in memory.
type debian struct {
	pid   string
	layer string // the folder of the layer, as seen from inside its mount namespace
}

func newDebian(t *testing.T) debian {
	t.Helper()
	layer := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	holder := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-ec", `
		mount -t tmpfs tmpfs "$1"; cd "$1"; mkdir upper work root
		mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
		mount -t proc proc root/proc; mount --bind /dev root/dev; mount -t tmpfs tmpfs root/tmp
		echo ready; exec sleep infinity`, "sh", layer)
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said testenv.Output
	holder.Stderr = &said
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = holder.Wait() // it was killed
	})
	ready := make([]byte, 5)
	if _, err := stdout.Read(ready); err != nil || string(ready) != "ready" {
		t.Fatalf("the copy of the system could not be made (this needs root): %v, %s", err, said.String())
	}
	return debian{pid: strconv.Itoa(holder.Process.Pid), layer: layer}
}

// command is a shell script inside the copy.
func (d debian) command(ctx context.Context, script string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", d.pid, "--mount", "chroot", filepath.Join(d.layer, "root"), "sh", "-ec", script, "sh",
	}, args...)...)
}

func (d debian) sh(t *testing.T, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	text, err := d.command(ctx, script, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, text)
	}
	return string(text)
}

// left lists the files that differ from the real system, without the package manager's and the user database's own.
func (d debian) left(t *testing.T) []string {
	t.Helper()
	text := out(t, "nsenter", "--target", d.pid, "--mount", "sh", "-ec", `cd "$1" && find . -mindepth 1 ! -type d -o -type d -name '*walpost*'`, "sh", filepath.Join(d.layer, "upper"))
	own := regexp.MustCompile(`^\./(var/(lib/dpkg|log|cache)/|run/|etc/(\.pwd\.lock|passwd|group|shadow|gshadow|subuid|subgid)-?$)`)
	var left []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !own.MatchString(line) {
			left = append(left, strings.TrimPrefix(line, "."))
		}
	}
	return left
}

// TestTheDebRelaysAndLeavesNothing: install it, edit three lines, start the service's program as the service's user, and remove it.
func TestTheDebRelaysAndLeavesNothing(t *testing.T) {
	deb := one(t, "walpost_*_linux_amd64.deb")
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	dsn := pg.Database(t)
	kafka.CreateTopic(t, "outbox.event.deb", 1, nil)

	d := newDebian(t)
	out(t, "nsenter", "--target", d.pid, "--mount", "cp", deb, filepath.Join(d.layer, "root/tmp/walpost.deb"))
	d.sh(t, "dpkg --install /tmp/walpost.deb")
	listed := d.sh(t, "stat --format '%A %U:%G %n' $(dpkg --listfiles walpost | grep walpost)")
	for _, want := range []string{
		"-rwxr-xr-x root:root /usr/bin/walpost",
		"-rw-r--r-- root:root /usr/lib/systemd/system/walpost.service",
		"drwxr-x--- root:walpost /etc/walpost",
		"-rw-r----- root:walpost /etc/walpost/walpost.yaml",
		"-rw-r--r-- root:root /usr/share/doc/walpost/LICENSE",
		"-rw-r--r-- root:root /usr/share/man/man1/walpost-run.1",
		"-rw-r--r-- root:root /usr/share/bash-completion/completions/walpost",
	} {
		if !strings.Contains(listed, want+"\n") {
			t.Errorf("the package lacks %q:\n%s", want, listed)
		}
	}

	const config = "/etc/walpost/walpost.yaml"
	for old, now := range map[string]string{
		`^  dsn: .*`:     `  dsn: ` + dsn,
		`^  brokers: .*`: `  brokers: [` + strings.Join(kafka.Brokers(), ", ") + `]`,
		`^  listen: \S*`: `  listen: 127.0.0.1:0`,
	} {
		if n := strings.TrimSpace(d.sh(t, `grep -cE "$1" "$2"`, old, config)); n != "1" {
			t.Fatalf("%s fits %s lines", old, n)
		}
		d.sh(t, `sed -i -E "s|$1|$2|" "$3"`, old, now, config)
	}
	d.sh(t, "walpost setup --config "+config+" --make-slot --apply")
	// systemd is not there, so the unit's program is started as the unit says.
	start := strings.TrimSpace(d.sh(t, `sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/walpost.service`))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	relay := d.command(ctx, `exec setpriv --reuid walpost --regid walpost --init-groups --no-new-privs `+start)
	var said testenv.Output
	relay.Stdout, relay.Stderr = &said, &said
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(said.String())
		}
	})
	if got := relayed(t, dsn, "deb", kafka.Brokers()); got != `{"n": 1}` {
		t.Errorf("the event is %s", got)
	}
	if err := relay.Process.Signal(syscall.SIGTERM); err != nil { // every program before walpost replaced itself by the next
		t.Fatal(err)
	}
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay ended with %v", err)
	}

	d.sh(t, "mkdir -p /var/lib/walpost && dpkg --install /tmp/walpost.deb") // an upgrade keeps the configuration
	if got := d.sh(t, `grep -c "$1" /etc/walpost/walpost.yaml`, "listen: 127.0.0.1:0"); strings.TrimSpace(got) != "1" {
		t.Error("the upgrade replaced the configuration")
	}
	d.sh(t, "dpkg --remove walpost")
	if got := d.left(t); len(got) != 2 || got[0] != "/etc/walpost" || got[1] != config {
		t.Errorf("removing leaves %v, must leave the configuration only", got)
	}
	d.sh(t, "dpkg --purge walpost")
	if got := d.left(t); len(got) > 0 {
		t.Errorf("purging leaves %v", got)
	}
	if got := d.sh(t, "getent passwd walpost || getent group walpost || echo none"); strings.TrimSpace(got) != "none" {
		t.Errorf("purging leaves the user: %s", got)
	}
}
