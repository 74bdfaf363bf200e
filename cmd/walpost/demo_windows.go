package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func startAsGuard() {}

func demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "shows walpost at work (Linux and macOS only)",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("demo cannot run a Postgres on Windows: " +
				"run it in the container image (docker run --rm ghcr.io/walpost/walpost demo), or in WSL")}
		},
	}
}
