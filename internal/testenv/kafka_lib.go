//go:build linux || darwin

package testenv

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

//go:embed pom.xml
var pom []byte

const kafkaVersion = "4.3.0" // as in pom.xml

// errMissing is what a machine lacks, in one line.
type errMissing struct{ what string }

func (e *errMissing) Error() string { return e.what }

// needJava skips the test, or fails it, where this machine cannot run a broker.
func needJava(t testing.TB) {
	t.Helper()
	_, _, err := kafkaLib(t.Context())
	var missing *errMissing
	switch {
	case err == nil:
	case errors.As(err, &missing) && os.Getenv("WALPOST_REQUIRE_KAFKA") != "1":
		loudly("SKIP: tests with a real Kafka are skipped: %v (WALPOST_REQUIRE_KAFKA=1 makes this a failure)", err)
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// kafkaLib returns the folder with lib/*.jar and formatted/, after downloading and making them if need be, and the java to run them.
func kafkaLib(ctx context.Context) (dir, java string, err error) {
	if java, err = findJava(); err != nil {
		return "", "", err
	}
	dir, err = localpg.Cached("kafka-"+kafkaVersion, func(tmp string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return &errMissing{"Maven (mvn), which downloads the broker, is not installed"}
		}
		loudly("downloading Kafka %s (about 45 MB, once)", kafkaVersion)
		if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), pom, 0o644); err != nil {
			return err
		}
		if err := command(ctx, tmp, mvn, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"); err != nil {
			return fmt.Errorf("download of kafka %s: %w", kafkaVersion, err)
		}
		return formatOnce(ctx, tmp, java)
	})
	return dir, java, err
}

// formatOnce makes formatted/bootstrap.checkpoint, which says what features a new cluster begins with. It is the same for all nodes
// and clusters of this version.
func formatOnce(ctx context.Context, dir, java string) error {
	data := filepath.Join(dir, "formatted")
	conf := filepath.Join(dir, "format.properties")
	err := writeProperties(conf, map[string]string{
		"process.roles": "broker,controller", "node.id": "1", "controller.quorum.voters": "1@127.0.0.1:9093",
		"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", "controller.listener.names": "CONTROLLER",
		"log.dirs": data,
	})
	if err != nil {
		return err
	}
	err = command(ctx, dir, java, "-XX:-UsePerfData", "-cp", filepath.Join(dir, "lib", "*"), "kafka.tools.StorageTool",
		"format", "-t", kafkaUUID(), "-c", conf)
	if err != nil {
		return fmt.Errorf("kafka %s: format: %w", kafkaVersion, err)
	}
	return os.Remove(filepath.Join(data, "meta.properties"))
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

// findJava returns a Java that is new enough for the broker: of $JAVA_HOME, else of the path.
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
