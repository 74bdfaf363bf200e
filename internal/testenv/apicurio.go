//go:build linux || darwin

package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/localpg"
)

const registryVersion = "3.0.9"

// registryJars are Apicurio Registry, in lib/*.jar. A pom cannot name it, because its parent's pom is not in the repository.
var registryJars = Jars{
	Name: "apicurio-registry-" + registryVersion, What: "Apicurio Registry " + registryVersion,
	finish: func(ctx context.Context, dir, _ string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return err
		}
		name := "io.apicurio:apicurio-registry-app:" + registryVersion + ":tar.gz:all"
		err = command(ctx, dir, mvn, "-q", "-B", "dependency:copy", "-Dmdep.stripVersion=true", "-Dartifact="+name, "-DoutputDirectory="+dir)
		if err != nil {
			return fmt.Errorf("download of %s: %w", name, err)
		}
		archive := "apicurio-registry-app-all.tar.gz"
		if err := command(ctx, dir, "tar", "xzf", archive); err != nil {
			return err
		}
		return command(ctx, dir, "sh", "-c", "mv *-runner.jar lib/ && rm "+archive)
	},
}

// Registry starts Apicurio Registry, which keeps its schemas in memory, and returns its host:port. It ends with the test. Under
// /apis/ccompat/v7 it has the API of Confluent's registry, and under /apis/registry/v2 the one that Apicurio's converters use.
func Registry(t testing.TB) (address string) {
	t.Helper()
	registryJars.Need(t, "schema registry")
	var s *JavaServer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := localpg.OnFreePorts(func() (err error) {
		if s, err = registryJars.Server(ctx, "walpost-registry-"); err != nil {
			return err
		}
		options := []string{"-Xmx384m", "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=" + strconv.Itoa(s.Port)}
		if err = s.Run(options, nil, "io.quarkus.runner.GeneratedMain"); err == nil {
			err = s.Await(ctx, func() error {
				resp, err := http.Get("http://" + s.Address() + "/apis/ccompat/v7/subjects")
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					return errors.New(resp.Status)
				}
				return nil
			})
		}
		if err != nil {
			return errors.Join(fmt.Errorf("apicurio registry: start: %w", err), s.Close())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last messages of the registry:\n%s", s.Said())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Address()
}
