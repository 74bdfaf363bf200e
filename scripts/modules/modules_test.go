package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"

	"github.com/walpost/walpost/internal/testenv/short"
)

// A user is what a Go team has: a module outside of this checkout that gets walpost's modules from a proxy.
type user struct {
	*testing.T
	dir string
	env []string
}

const testVersion = "v0.9999.0"

// newUser has a proxy with the modules of this checkout. The others come from the machine's module cache, or from where
// that gets them.
func newUser(t *testing.T) *user {
	t.Helper()
	all, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	proxy := t.TempDir()
	if err := all.proxy(proxy, testVersion); err != nil {
		t.Fatal(err)
	}
	u := &user{T: t, dir: t.TempDir()}
	cache, proxies := u.goEnv("GOMODCACHE"), u.goEnv("GOPROXY")
	u.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GONOSUMDB=github.com/walpost/*", "GOMODCACHE="+t.TempDir(),
		"GOBIN="+filepath.Join(u.dir, "bin"), "GOPROXY=file://"+proxy+",file://"+filepath.Join(cache, "cache", "download")+","+proxies)
	return u
}

func (u *user) goEnv(name string) string { return strings.TrimSpace(u.run(".", "go", "env", name)) }

func (u *user) run(dir, name string, args ...string) string {
	u.Helper()
	cmd := exec.CommandContext(u.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, u.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		u.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// service builds a service of this source. It returns its modules, without itself, and its size.
func (u *user) service(name, source string) (modules []string, linked []string, size int64) {
	u.Helper()
	dir := filepath.Join(u.dir, name)
	gomod := "module example.com/" + name + "\n\ngo 1.26.0\n"
	all, err := load("../..")
	if err != nil {
		u.Fatal(err)
	}
	for _, m := range all.mods {
		if strings.Contains(source, `"`+m.path+`"`) || m.dir == "outbox" && strings.Contains(source, m.path+"/outboxtest") {
			gomod += fmt.Sprintf("\nrequire %s %s\n", m.path, testVersion)
		}
	}
	for file, content := range map[string]string{"go.mod": gomod, "main.go": source} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			u.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			u.Fatal(err)
		}
	}
	u.run(dir, "go", "mod", "tidy")
	u.run(dir, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", "service", ".")
	info, err := os.Stat(filepath.Join(dir, "service"))
	if err != nil {
		u.Fatal(err)
	}
	modules = strings.Split(strings.TrimSpace(u.run(dir, "go", "list", "-m", "all")), "\n")
	for line := range strings.Lines(u.run(dir, "go", "version", "-m", "service")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "dep" {
			linked = append(linked, fields[1])
		}
	}
	return modules[1:], linked, info.Size()
}

// A service takes what it uses: each kind of service has the modules of its driver and its client, and ours.
func TestAServiceTakesWhatItUses(t *testing.T) {
	short.Skip(t, "it builds programs against a module proxy")
	u := newUser(t)
	const head = "package main\n\nimport (\n"
	bare := map[string][]string{}
	for _, c := range []struct {
		name, source string
		beside       string // the service without walpost that it is compared with
		ours         int    // how many modules come in addition
	}{
		{"pgx", head + "\t\"context\"\n\n\t\"github.com/jackc/pgx/v5/pgxpool\"\n)\n\nfunc main() { _, _ = pgxpool.New(context.Background(), \"\") }\n", "", 0},
		{"kafka", head + "\t\"context\"\n\n\t\"github.com/jackc/pgx/v5/pgxpool\"\n\t\"github.com/twmb/franz-go/pkg/kadm\"\n\t\"github.com/twmb/franz-go/pkg/kgo\"\n)\n\nfunc main() {\n\t_, _ = pgxpool.New(context.Background(), \"\")\n\tcl, _ := kgo.NewClient()\n\t_ = kadm.NewClient(cl)\n}\n", "", 0},
		{"writer", head + "\t\"context\"\n\n\t\"github.com/jackc/pgx/v5/pgxpool\"\n\t\"github.com/walpost/walpost/outbox\"\n)\n\nfunc main() {\n\t_, _ = pgxpool.New(context.Background(), \"\")\n\t_ = outbox.Write(context.Background(), nil)\n}\n", "pgx", 2},
		{"consumer", head + "\t\"context\"\n\n\t\"github.com/jackc/pgx/v5/pgxpool\"\n\t\"github.com/walpost/walpost/inbox\"\n\t\"github.com/walpost/walpost/inbox/consumer\"\n)\n\nfunc main() {\n\tpool, _ := pgxpool.New(context.Background(), \"\")\n\t_ = inbox.Pgx(pool)\n\t_, _ = consumer.New(consumer.Config{})\n}\n", "kafka", 3},
		{"otel", head + "\t\"context\"\n\n\t\"github.com/jackc/pgx/v5/pgxpool\"\n\t\"github.com/twmb/franz-go/pkg/kadm\"\n\t\"github.com/twmb/franz-go/pkg/kgo\"\n\t\"go.opentelemetry.io/otel\"\n\tsdkmetric \"go.opentelemetry.io/otel/sdk/metric\"\n\tsdktrace \"go.opentelemetry.io/otel/sdk/trace\"\n)\n\nfunc main() {\n\t_, _ = pgxpool.New(context.Background(), \"\")\n\tcl, _ := kgo.NewClient()\n\t_ = kadm.NewClient(cl)\n\totel.SetTracerProvider(sdktrace.NewTracerProvider())\n\totel.SetMeterProvider(sdkmetric.NewMeterProvider())\n}\n", "", 0},
		{"traced", head + "\t\"context\"\n\n\t\"github.com/jackc/pgx/v5/pgxpool\"\n\t\"github.com/walpost/walpost/inbox\"\n\t\"github.com/walpost/walpost/inbox/consumer\"\n\twalpostotel \"github.com/walpost/walpost/otel\"\n\t\"github.com/walpost/walpost/outbox\"\n\t\"go.opentelemetry.io/otel\"\n\tsdkmetric \"go.opentelemetry.io/otel/sdk/metric\"\n\tsdktrace \"go.opentelemetry.io/otel/sdk/trace\"\n)\n\nfunc main() {\n\tpool, _ := pgxpool.New(context.Background(), \"\")\n\t_ = inbox.Pgx(pool)\n\tvar t walpostotel.Telemetry\n\t_, _ = outbox.New(outbox.Options{FromContext: t.FromContext})\n\t_, _ = consumer.New(consumer.Config{Handler: t.Handler(nil)})\n\totel.SetTracerProvider(sdktrace.NewTracerProvider())\n\totel.SetMeterProvider(sdkmetric.NewMeterProvider())\n}\n", "otel", 5},
	} {
		modules, linked, size := u.service(c.name, c.source)
		bare[c.name] = modules
		t.Logf("%s: %d modules, %d of them linked, %d bytes", c.name, len(modules), len(linked), size)
		if c.beside == "" {
			continue
		}
		var more []string
		for _, m := range modules {
			path, _, _ := strings.Cut(m, " ")
			if !slices.ContainsFunc(bare[c.beside], func(b string) bool { return strings.HasPrefix(b, path+" ") }) {
				more = append(more, path)
			}
		}
		if len(more) != c.ours || slices.ContainsFunc(more, func(path string) bool { return !strings.HasPrefix(path, "github.com/walpost/walpost/") }) {
			t.Errorf("%s brings the modules %q, want %d of walpost and no others", c.name, more, c.ours)
		}
	}
}

// Until a release, a service uses the checkout.
func TestAServiceUsesTheCheckout(t *testing.T) {
	short.Skip(t, "it builds a program")
	u := &user{T: t, env: append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath")}
	dir := t.TempDir()
	for file, content := range map[string]string{
		"go.mod":  "module example.com/shop\n\ngo 1.26.0\n",
		"main.go": "package main\n\nimport (\n\t\"context\"\n\n\t\"github.com/walpost/walpost/outbox\"\n)\n\nfunc main() { _ = outbox.Write(context.Background(), nil) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := all.replace(dir); err != nil {
		t.Fatal(err)
	}
	u.run(dir, "go", "mod", "tidy")
	u.run(dir, "go", "build", ".")
}

// go install gets the program without the checkout.
func TestTheProgramIsInstalledFromItsModules(t *testing.T) {
	short.Skip(t, "it builds the program against a module proxy")
	u := newUser(t)
	u.run(u.dir, "go", "install", "github.com/walpost/walpost/cmd/walpost@"+testVersion)
	if out := u.run(u.dir, filepath.Join(u.dir, "bin", "walpost"), "version"); !strings.Contains(out, testVersion) {
		t.Errorf("version: %s", out)
	}
}

func TestEachModuleGetsItsTag(t *testing.T) {
	all, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := all.tags(&out); err == nil && strings.Contains(out.String(), unreleased) {
		t.Errorf("tags of no version: %s", out.String())
	}
	copied := &set{root: t.TempDir(), mods: all.mods}
	for _, m := range all.mods {
		data, err := os.ReadFile(all.file(m, "go.mod"))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(copied.file(m, "go.mod")), 0o700)
		}
		if err == nil {
			err = os.WriteFile(copied.file(m, "go.mod"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(copied.root, "go.work"), read(t, "../../go.work"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copied.require("1.2"); err == nil {
		t.Error("1.2 is a version")
	}
	if err := copied.require("v1.2.3"); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := copied.tags(&out); err != nil {
		t.Fatal(err)
	}
	tags := strings.Fields(out.String())
	if len(tags) != len(all.mods) || tags[0] != "v1.2.3" || !slices.Contains(tags, "outbox/v1.2.3") {
		t.Errorf("tags %q", tags)
	}
	if work := string(read(t, filepath.Join(copied.root, "go.work"))); strings.Contains(work, unreleased) || strings.Count(work, " v1.2.3 => ./") != len(all.mods) || !strings.Contains(work, "outbox v1.2.3 => ./outbox") {
		t.Errorf("go.work: %s", work)
	}
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b.c"}, args...)...)
		cmd.Dir = copied.root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "a")
	for _, tag := range tags {
		if err := copied.tagged("v1.2.3"); err == nil || !strings.Contains(err.Error(), "no tag ") {
			t.Errorf("before %s: %v", tag, err)
		}
		git("tag", tag)
	}
	if err := copied.tagged("v1.2.3"); err != nil {
		t.Error(err)
	}
	if err := copied.tagged("v1.2.4"); err == nil || !strings.Contains(err.Error(), "v1.2.3") {
		t.Errorf("another version: %v", err)
	}
	first := copied.mods[0]
	if err := edit(copied.file(first, "go.mod"), func(f *modfile.File) error { return copied.requireIn(f, "v1.2.4") }); err != nil {
		t.Fatal(err)
	}
	if err := copied.tags(&out); err == nil || !strings.Contains(err.Error(), "v1.2.4") && !strings.Contains(err.Error(), "v1.2.3") {
		t.Errorf("two versions: %v", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A service tests itself with walposttest, without a TestMain.
func TestAServiceTestsItselfWithAWorld(t *testing.T) {
	short.Skip(t, "Postgres")
	u := newUser(t)
	for file, content := range map[string]string{
		"go.mod": "module example.com/tested\n\ngo 1.26.0\n\nrequire github.com/walpost/walpost/walposttest " + testVersion + "\n",
		"service_test.go": `package tested

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walpost/walpost/outbox"
	"github.com/walpost/walpost/walposttest"
)

func TestAnEventArrives(t *testing.T) {
	w := walposttest.Start(t)
	conn, err := pgx.Connect(t.Context(), w.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "1", Type: "Placed", Payload: 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	if events := w.Events("outbox.event.order"); len(events) != 1 {
		t.Errorf("%v", events)
	}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(u.dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u.run(u.dir, "go", "mod", "tidy")
	if out := u.run(u.dir, "go", "test", "-count=1", "-v", "."); !strings.Contains(out, "--- PASS: TestAnEventArrives") {
		t.Error(out)
	}
}

// proxy writes the modules in a version as a module proxy has them, into a folder: what a user's go command would get.
func (s *set) proxy(to, version string) error {
	for _, m := range s.mods {
		at, err := module.EscapePath(m.path)
		if err != nil {
			return err
		}
		at = filepath.Join(to, filepath.FromSlash(at), "@v")
		if err := os.MkdirAll(at, 0o750); err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "modules-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := s.copy(m, dir); err != nil {
			return err
		}
		gomod := filepath.Join(dir, "go.mod")
		if err := edit(gomod, func(f *modfile.File) error { return s.requireIn(f, version) }); err != nil {
			return err
		}
		data, err := os.ReadFile(gomod)
		if err != nil {
			return err
		}
		for name, content := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": fmt.Appendf(nil, `{"Version":%q}`, version), version + ".mod": data} {
			if err := os.WriteFile(filepath.Join(at, name), content, 0o600); err != nil {
				return err
			}
		}
		archive, err := os.Create(filepath.Join(at, version+".zip"))
		if err != nil {
			return err
		}
		err = modzip.CreateFromDir(archive, module.Version{Path: m.path, Version: version}, dir)
		if err = errors.Join(err, archive.Close()); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	return nil
}

// copy copies the files of a module that git has or would take, without those of the modules in it.
func (s *set) copy(m mod, to string) error {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	cmd.Dir = filepath.Join(s.root, m.dir)
	list, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("git ls-files in %s: %w", m.dir, err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		data, err := os.ReadFile(s.file(m, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed and not committed
		}
		path := filepath.Join(to, name)
		if err = cmp.Or(err, os.MkdirAll(filepath.Dir(path), 0o750)); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
