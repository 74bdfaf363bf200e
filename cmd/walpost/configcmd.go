package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/yamlfile"
)

func validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "checks whether a configuration is valid, without connecting",
		Long: `validate reads the configuration as run does, without connecting. It prints each problem with its
place in the file, and exits with 2 if there is a problem. The files and variables that the
configuration refers to must exist.`,
		Example: `  walpost config validate --config walpost.yaml`,
		Args:    noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(nil)
		if err == nil {
			_, err = walpost.New(cfg.Config)
		}
		if err == nil {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
		}
		return err
	}
	return cmd
}

func printCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "prints the effective configuration, with the origin of each value",
		Long: `print prints the configuration that run would use, as YAML. A comment gives the origin of each
value: the line of the file, the variables in the value, a flag, a WALPOST_… variable, or the
default. Secrets are masked, and the DSN is printed without its password. Keys without a value are
left out.`,
		Example: `  walpost config print --config walpost.yaml`,
		Args:    noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(nil)
		if err != nil {
			return err
		}
		return yamlfile.Print(cmd.OutOrStdout(), &cfg, cfg.read.Origin, func(path string, secret conf.Secret) string {
			if path == "source.dsn" {
				if dsn, ok := pg.Printable(string(secret)); ok {
					return dsn
				}
			}
			return secret.String()
		})
	}
	return cmd
}

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "prints the JSON Schema of walpost.yaml",
		Long: `schema prints the JSON Schema (draft 2020-12) of walpost.yaml, which an editor can use to complete
and check the file. The first line of walpost.example.yaml and of the output of init names the
schema of the newest version.`,
		Example: `  walpost config schema > walpost.schema.json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), walpost.Schema())
			return err
		},
	}
}

// schemaURL is where the JSON Schema of the newest version is. The example and the output of init name it.
const schemaURL = "https://raw.githubusercontent.com/walpost/walpost/main/walpost.schema.json"
