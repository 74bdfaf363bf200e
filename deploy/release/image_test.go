//go:build linux

package release

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// TestTheImageRunsReadOnlyAndWithoutRoot builds the image from its Dockerfile, on an empty base in
// place of distroless, and starts its program in its unpacked root.
func TestTheImageRunsReadOnlyAndWithoutRoot(t *testing.T) {
	program := one(t, "walpost_linux_amd64_v1/walpost")
	folder := t.TempDir()
	for from, to := range map[string]string{
		program: "linux/amd64/walpost", "../../LICENSE": "LICENSE", "../docker/Dockerfile": "Dockerfile",
	} {
		to = filepath.Join(folder, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		out(t, "cp", from, to)
	}
	store := []string{"--root", filepath.Join(folder, "store"), "--runroot", filepath.Join(folder, "run"), "--storage-driver", "vfs"}
	buildah := func(args ...string) string { return out(t, "buildah", append(slices.Clone(store), args...)...) }
	buildah("build", "--isolation", "chroot", "--format", "docker", "--platform", "linux/amd64", "--build-arg", "BASE=scratch", "--tag", "walpost:test", folder)

	var image struct {
		Docker struct {
			Config struct {
				User            string
				Cmd, Entrypoint []string
				Healthcheck     struct{ Test []string }
			} `json:"config"`
		}
	}
	if err := json.Unmarshal([]byte(buildah("inspect", "--type", "image", "walpost:test")), &image); err != nil {
		t.Fatal(err)
	}
	c := image.Docker.Config
	if c.User != "65532:65532" || strings.Join(c.Entrypoint, " ") != "/usr/bin/walpost" || strings.Join(c.Cmd, " ") != "run --config /etc/walpost/walpost.yaml" ||
		strings.Join(c.Healthcheck.Test, " ") != "CMD /usr/bin/walpost health --config /etc/walpost/walpost.yaml" {
		t.Errorf("the image is %+v", c)
	}

	container := strings.TrimSpace(buildah("from", "--pull-never", "walpost:test"))
	root := strings.TrimSpace(buildah("mount", container))
	pg, kafka := testenv.Postgres(t, "17"), testenv.Kafka(t)
	dsn := pg.Database(t)
	kafka.CreateTopic(t, "outbox.event.image", 1, nil)
	config := filepath.Join(folder, "walpost.yaml")
	text := "source: {dsn: '" + dsn + "', table: public.outbox}\nkafka: {brokers: [" + strings.Join(kafka.Brokers(), ", ") + "]}\nhttp: {listen: '127.0.0.1:0'}\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out(t, program, "setup", "--config", config, "--make-slot", "--apply")

	// A container runtime mounts the configuration, and everything else read-only.
	const start = `
		root=$1; config=$2; user=$3; shift 3
		mount --bind "$root" "$root"; mkdir -p "$root/etc/walpost"; mount --bind "$(dirname "$config")" "$root/etc/walpost"
		mount -o remount,bind,ro "$root"; mount -o remount,bind,ro "$root/etc/walpost"
		if touch "$root/x" 2>/dev/null; then echo the root can be written; exit 1; fi
		exec chroot --userspec="$user" "$root" "$@"`
	run := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-ec", start, "sh", root, config, c.User}, args...)...)
	}
	relay := run(slices.Concat(c.Entrypoint, c.Cmd)...)
	var said testenv.Output
	relay.Stdout, relay.Stderr = &said, &said
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = relay.Process.Kill()
		_ = relay.Wait() // it was killed
		if t.Failed() {
			t.Log(said.String())
		}
	})
	if got := relayed(t, dsn, "image", kafka.Brokers()); got != `{"n": 1}` {
		t.Errorf("the event is %s", got)
	}
	if text, err := run("/usr/bin/walpost", "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(text), "walpost v0.0.0-snapshot-") {
		t.Errorf("%v, %s", err, text)
	}
}
