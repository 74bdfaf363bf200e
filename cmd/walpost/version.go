package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build with -ldflags "-X main.version=v1.2.3"; otherwise the build's own information says it.
var version string

// build is what a build says of itself. The date is the commit's, in RFC 3339.
type build struct{ version, commit, date, goVersion string }

func buildInfo() build {
	b := build{version: version, goVersion: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.version = cmp.Or(b.version, info.Main.Version)
		dirty := ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.commit = s.Value
			case s.Key == "vcs.time":
				b.date = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "-dirty"
			}
		}
		if b.commit != "" {
			b.commit += dirty
		}
	}
	if b.version == "" || b.version == "(devel)" {
		b.version = "devel"
	}
	b.commit = cmp.Or(b.commit, "unknown")
	return b
}

// String is what walpost version prints.
func (b build) String() string {
	commit := b.commit
	if b.date != "" {
		commit += " of " + b.date
	}
	return fmt.Sprintf("walpost %s\ncommit %s\n%s %s/%s\n", b.version, commit, b.goVersion, runtime.GOOS, runtime.GOARCH)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "prints the version, the commit and the Go version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), buildInfo())
			return err
		},
	}
}
