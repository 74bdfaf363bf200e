//go:build linux || darwin

package localpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// DefaultVersion is the version of a Config without a version.
const DefaultVersion = "15"

// Versions lists the supported major versions, oldest first.
func Versions() []string { return slices.Sorted(maps.Keys(releases)) }

// releases are the newest builds of each major version.
var releases = map[string]embedded.PostgresVersion{
	"14": "14.24.0",
	"15": "15.19.0",
	"16": "16.15.0",
	"17": "17.11.0",
	"18": "18.6.0",
}

// binaries returns the folder with bin/initdb and bin/postgres of a major version. It downloads
// them if needed.
func binaries(ctx context.Context, major string, progress func(string)) (string, error) {
	release, ok := releases[major]
	if !ok {
		return "", fmt.Errorf("postgres %s: the version must be one of %s", major, strings.Join(Versions(), ", "))
	}
	return Cached(fmt.Sprintf("postgres-%s-%s-%s", release, runtime.GOOS, runtime.GOARCH), func(dir string) error {
		if progress != nil {
			progress(fmt.Sprintf("downloading Postgres %s (about 15 MB, once)", major))
		}
		fetched := make(chan error, 1)
		go func() { fetched <- fetch(release, dir) }() // the library cannot be interrupted
		select {
		case err := <-fetched:
			return err
		case <-ctx.Done():
			return fmt.Errorf("download of postgres %s: %w", release, context.Cause(ctx))
		}
	})
}

// fetch downloads a release and unpacks it into dir.
//
// The library cannot fetch without starting a server. It fetches, makes its runtime folder, and
// runs initdb. Here the runtime folder would be below a file of the archive, so the library stops
// with an error after the fetch.
func fetch(release embedded.PostgresVersion, dir string) error {
	download := filepath.Join(dir, "download")
	err := embedded.NewDatabase(embedded.DefaultConfig().
		Version(release).
		Port(0).
		CachePath(download).
		BinariesPath(dir).
		RuntimePath(filepath.Join(dir, "bin", "postgres", "none")).
		Logger(nil)).Start()
	for _, file := range []string{"initdb", "postgres"} {
		if _, missing := os.Stat(filepath.Join(dir, "bin", file)); missing != nil {
			return fmt.Errorf("download of postgres %s: %w", release, errors.Join(err, missing))
		}
	}
	return os.RemoveAll(download)
}
