//go:build linux || darwin

package testenv

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/walpost/walpost/internal/localpg"
)

var (
	//go:embed connect_pom.xml
	connectPOM []byte
	//go:embed connect_debezium_pom.xml
	debeziumPOM []byte
)

// DebeziumVersion is the release that Connect runs, as in connect_debezium_pom.xml.
const DebeziumVersion = "3.6.1.Final"

// needConnect skips the test, or fails it, where this machine cannot run a Kafka Connect worker.
func needConnect(t testing.TB) {
	t.Helper()
	_, _, err := connectLib(t.Context())
	var missing *errMissing
	switch {
	case err == nil:
	case errors.As(err, &missing) && os.Getenv("WALPOST_REQUIRE_KAFKA") != "1":
		loudly("SKIP: tests with a real Debezium are skipped: %v (WALPOST_REQUIRE_KAFKA=1 makes this a failure)", err)
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// connectLib returns the folder with lib/*.jar, the worker, and plugins/debezium/*.jar, after downloading them if need be, and the
// java to run them.
func connectLib(ctx context.Context) (dir, java string, err error) {
	if java, err = findJava(); err != nil {
		return "", "", err
	}
	dir, err = localpg.Cached("connect-"+kafkaVersion+"-debezium-"+DebeziumVersion, func(tmp string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return &errMissing{"Maven (mvn), which downloads Kafka Connect and Debezium, is not installed"}
		}
		loudly("downloading Kafka Connect %s and Debezium %s (about 45 MB, once)", kafkaVersion, DebeziumVersion)
		for to, pom := range map[string][]byte{"lib": connectPOM, filepath.Join("plugins", "debezium"): debeziumPOM} {
			from := filepath.Join(tmp, "pom-"+filepath.Base(to))
			if err := os.Mkdir(from, 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(from, "pom.xml"), pom, 0o644); err != nil {
				return err
			}
			err := command(ctx, from, mvn, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+filepath.Join(tmp, to))
			if err != nil {
				return fmt.Errorf("download of kafka connect %s and debezium %s: %w", kafkaVersion, DebeziumVersion, err)
			}
		}
		return nil
	})
	return dir, java, err
}
