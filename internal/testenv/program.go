//go:build linux || darwin

package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/keeper"
	"github.com/walpost/walpost/internal/localpg"
)

// A program is a Java server that listens on a port of 127.0.0.1: a Kafka node or a Connect worker.
type program struct {
	*keeper.Keeper
	java, lib string
	port      int
}

func (p *program) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// file is the path of a file in the program's folder.
func (p *program) file(name string) string { return filepath.Join(p.Folder(), name) }

// writeLogging writes log4j2.properties, with further properties. Messages go to the program's log.
func (p *program) writeLogging(more map[string]string) error {
	all := map[string]string{
		"status":                         "error",
		"appender.out.type":              "Console",
		"appender.out.name":              "out",
		"appender.out.layout.type":       "PatternLayout",
		"appender.out.layout.pattern":    "%d %p %c{1} [%t]: %m%n",
		"rootLogger.level":               "warn",
		"rootLogger.appenderRef.out.ref": "out",
	}
	maps.Copy(all, more)
	return writeProperties(p.file("log4j2.properties"), all)
}

// run starts the program. The options of the JVM are for a short life: no optimising compiler, and
// no file in the temporary folder.
func (p *program) run(heap []string, class, properties string) error {
	_, err := p.Keeper.Start(keeper.Command{
		Path: p.java,
		Args: append(slices.Clone(heap), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto",
			"-Djava.io.tmpdir="+p.Folder(), "-Dlog4j2.configurationFile="+p.file("log4j2.properties"),
			"-cp", filepath.Join(p.lib, "lib", "*"), class, p.file(properties)),
		Env: os.Environ(), Quit: syscall.SIGKILL, Grace: 10 * time.Second,
	})
	return err
}

func writeProperties(path string, p map[string]string) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// errMissing says what a machine lacks.
type errMissing struct{ what string }

func (e *errMissing) Error() string { return e.what }

// need skips the test if this machine cannot run the program in lib, or fails it if
// WALPOST_REQUIRE_KAFKA is 1.
func need(t testing.TB, what string, lib func(context.Context) (dir, java string, err error)) {
	t.Helper()
	_, _, err := lib(t.Context())
	var missing *errMissing
	switch {
	case err == nil:
	case errors.As(err, &missing) && os.Getenv("WALPOST_REQUIRE_KAFKA") != "1":
		loudly("SKIP: tests with a real %s are skipped: %v (WALPOST_REQUIRE_KAFKA=1 makes this a failure)", what, err)
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// cachedJars returns the folder called name in the cache, and the Java to run its jars. The folder
// has the dependencies of each pom in a subfolder, which is the pom's key. finish, if not nil,
// completes a new folder.
func cachedJars(ctx context.Context, name, what string, poms map[string][]byte, finish func(dir, java string) error) (dir, java string, err error) {
	if java, err = findJava(); err != nil {
		return "", "", err
	}
	dir, err = localpg.Cached(name, func(tmp string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return &errMissing{"Maven (mvn), which downloads " + what + ", is not installed"}
		}
		loudly("downloading %s (about 45 MB, once)", what)
		for to, pom := range poms {
			from := filepath.Join(tmp, "pom-"+filepath.Base(to))
			if err := os.Mkdir(from, 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(from, "pom.xml"), pom, 0o644); err != nil {
				return err
			}
			err := command(ctx, from, mvn, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+filepath.Join(tmp, to))
			if err != nil {
				return fmt.Errorf("download of %s: %w", what, err)
			}
		}
		if finish == nil {
			return nil
		}
		return finish(tmp, java)
	})
	return dir, java, err
}

func command(ctx context.Context, dir, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// findJava returns $JAVA_HOME/bin/java, or the java of the path. It must be new enough for Kafka.
func findJava() (string, error) {
	const needs = "Java 17 or newer, which runs the broker, "
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	java, err := exec.LookPath(java)
	if err != nil {
		return "", &errMissing{needs + "is not installed"}
	}
	out, err := exec.Command(java, "-XX:-UsePerfData", "-version").CombinedOutput()
	m := javaVersion.FindSubmatch(out)
	if err != nil || m == nil {
		return "", &errMissing{fmt.Sprintf("%sis not installed: %s -version says %q", needs, java, out)}
	}
	if major, err := strconv.Atoi(string(m[1])); err != nil || major < 17 {
		return "", &errMissing{fmt.Sprintf("%sis not installed: %s is version %s", needs, java, m[1])}
	}
	return java, nil
}
