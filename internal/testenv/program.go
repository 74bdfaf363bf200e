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
	"github.com/walpost/walpost/internal/testenv/short"
)

// Jars are Java programs, which Maven downloads into a folder of the cache once.
type Jars struct {
	Name string            // of the folder
	What string            // the programs and their versions, for a message
	POMs map[string][]byte // the dependencies of each subfolder; servers run those of lib

	// finish, if not nil, completes a new folder.
	finish func(ctx context.Context, dir, java string) error
}

// A JavaServer is a Java program that listens on a port of 127.0.0.1: a Kafka node, a Connect worker,
// or a store for objects.
type JavaServer struct {
	*keeper.Keeper
	Jars string // the folder
	Port int
	PID  int // of the process that Run started last
	java string
}

// Server returns a server that is not running yet. The caller must Close it.
func (j *Jars) Server(ctx context.Context, folder string) (*JavaServer, error) {
	dir, java, _, err := j.Open(ctx)
	if err != nil {
		return nil, err
	}
	port, err := localpg.FreePort()
	if err != nil {
		return nil, err
	}
	k, err := keeper.New(os.TempDir(), folder)
	return &JavaServer{Keeper: k, Jars: dir, Port: port, java: java}, err
}

// Address is the server's host:port.
func (s *JavaServer) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// File is the path of a file in the server's folder.
func (s *JavaServer) File(name string) string { return filepath.Join(s.Folder(), name) }

// Run starts the server's main class. loggers are further properties of log4j2. Messages go to the
// server's log. The JVM's options are for a short life, without an optimising compiler or a file in
// the temporary folder. The caller's options override them.
func (s *JavaServer) Run(options []string, loggers map[string]string, class string, args ...string) error {
	all := map[string]string{
		"status":                         "error",
		"appender.out.type":              "Console",
		"appender.out.name":              "out",
		"appender.out.layout.type":       "PatternLayout",
		"appender.out.layout.pattern":    "%d %p %c{1} [%t]: %m%n",
		"rootLogger.level":               "warn",
		"rootLogger.appenderRef.out.ref": "out",
	}
	maps.Copy(all, loggers)
	if err := WriteProperties(s.File("log4j2.properties"), all); err != nil {
		return err
	}
	pid, err := s.Keeper.Start(keeper.Command{
		Path: s.java,
		Args: slices.Concat([]string{
			"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto",
			"-Djava.io.tmpdir=" + s.Folder(), "-Dlog4j2.configurationFile=" + s.File("log4j2.properties"),
		}, options, []string{"-cp", filepath.Join(s.Jars, "lib", "*"), class}, args),
		Env: os.Environ(), Quit: syscall.SIGKILL, Grace: 10 * time.Second,
	})
	s.PID = pid
	return err
}

// WriteProperties writes a file of Java properties.
func WriteProperties(path string, p map[string]string) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// Need fails the test if this machine cannot run the jars, and skips it in the fast tier. what is the name of the server.
func (j *Jars) Need(t testing.TB, what string) {
	t.Helper()
	short.Skip(t, what)
	if _, _, _, err := j.Open(t.Context()); err != nil {
		t.Fatal(fmt.Errorf("tests with a real %s: %w (go test -short needs none)", what, err))
	}
}

// Open returns the folder of the jars, the Java to run them, and the version of Java. It downloads the jars if they are missing.
func (j *Jars) Open(ctx context.Context) (dir, java, version string, err error) {
	if java, version, err = findJava(); err != nil {
		return "", "", "", err
	}
	dir, err = localpg.Cached(j.Name, func(tmp string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return fmt.Errorf("download of %s: Maven (mvn) is not installed", j.What)
		}
		loudly("downloading %s (about 45 MB, once)", j.What)
		for to, pom := range j.POMs {
			from := filepath.Join(tmp, "pom-"+filepath.Base(to))
			if err := os.Mkdir(from, 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(from, "pom.xml"), pom, 0o644); err != nil {
				return err
			}
			err := command(ctx, from, mvn, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+filepath.Join(tmp, to))
			if err != nil {
				return fmt.Errorf("download of %s: %w", j.What, err)
			}
		}
		if j.finish == nil {
			return nil
		}
		return j.finish(ctx, tmp, java)
	})
	return dir, java, version, err
}

func command(ctx context.Context, dir, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

var javaVersion = regexp.MustCompile(`version "((\d+)[^"]*)`)

// findJava returns $JAVA_HOME/bin/java, or the java of the path, and its version. It must be new enough for Kafka.
func findJava() (java, version string, err error) {
	const lacks = "it runs on Java 17 or newer, which is not installed"
	java = "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	if java, err = exec.LookPath(java); err != nil {
		return "", "", errors.New(lacks)
	}
	out, err := exec.Command(java, "-XX:-UsePerfData", "-version").CombinedOutput()
	m := javaVersion.FindSubmatch(out)
	if err != nil || m == nil {
		return "", "", fmt.Errorf("%s: %s -version says %q", lacks, java, out)
	}
	if major, err := strconv.Atoi(string(m[2])); err != nil || major < 17 {
		return "", "", fmt.Errorf("%s: %s is version %s", lacks, java, m[1])
	}
	return java, string(m[1]), nil
}
