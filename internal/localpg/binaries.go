//go:build linux || darwin

package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/walpost/walpost/internal/keeper"
)

// DefaultVersion is the version of a Config without a version.
const DefaultVersion = "15"

// Versions lists the supported major versions, oldest first.
func Versions() []string { return []string{"14", "15", "16", "17", "18"} }

// releases are the newest builds of each major version.
var releases = map[string]embedded.PostgresVersion{
	"14": "14.24.0",
	"15": "15.19.0",
	"16": "16.15.0",
	"17": "17.11.0",
	"18": "18.6.0",
}

const fetchSubcommand = "fetch-postgres"

// Init must be the first call in main or TestMain of a program that starts servers. In a process
// that this package started itself, it does the work of that process and does not return.
func Init() {
	keeper.Init()
	if len(os.Args) == 4 && os.Args[1] == fetchSubcommand {
		if err := fetch(embedded.PostgresVersion(os.Args[2]), os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// fetch downloads a release and unpacks it into dir/postgres.
//
// The library cannot fetch without starting a server. It fetches, makes its runtime folder, and runs initdb. Here the runtime folder
// would be below a file of the archive, so the library stops with an error after the fetch.
func fetch(release embedded.PostgresVersion, dir string) error {
	to := filepath.Join(dir, "postgres")
	err := embedded.NewDatabase(embedded.DefaultConfig().
		Version(release).
		Port(0).
		CachePath(filepath.Join(dir, "download")).
		BinariesPath(to).
		RuntimePath(filepath.Join(to, "bin", "postgres", "none")).
		Logger(nil)).Start()
	for _, file := range []string{"initdb", "postgres"} {
		if _, statErr := os.Stat(filepath.Join(to, "bin", file)); statErr != nil {
			return errors.Join(err, statErr)
		}
	}
	return nil
}

// binaries returns the folder with bin/initdb and bin/postgres of a major version. It downloads them if needed.
func binaries(ctx context.Context, major string, progress func(string)) (string, error) {
	release, ok := releases[major]
	if !ok {
		return "", fmt.Errorf("postgres %s: the version must be one of %s", major, strings.Join(Versions(), ", "))
	}
	name := fmt.Sprintf("postgres-%s-%s-%s", release, runtime.GOOS, runtime.GOARCH)
	return Cached(name, func(dir string) error {
		if progress != nil {
			progress(fmt.Sprintf("downloading Postgres %s (about 15 MB, once)", major))
		}
		work := filepath.Join(dir, "work")
		if err := os.Mkdir(work, 0o755); err != nil {
			return err
		}
		// Use another process, because the library cannot be interrupted, and leaves a file in $TMPDIR.
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, self, fetchSubcommand, string(release), work)
		cmd.Args[0] = os.Args[0]
		cmd.Env = append(os.Environ(), "TMPDIR="+work)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("download of postgres %s: %w", release, context.Cause(ctx))
			}
			return fmt.Errorf("download of postgres %s: %w: %s", release, err, bytes.TrimSpace(stderr.Bytes()))
		}
		for _, sub := range []string{"bin", "lib", "share"} {
			if err := os.Rename(filepath.Join(work, "postgres", sub), filepath.Join(dir, sub)); err != nil {
				return err
			}
		}
		return os.RemoveAll(work)
	})
}
