package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "checks what run needs, and prints the fixes",
		Long: `check examines everything that walpost run needs in Postgres and in Kafka. It prints one line for
each precondition: ok, warn or FAIL, with the SQL, setting or command that repairs the problem. It
changes nothing. If Postgres or Kafka is down, the report about the other one is still complete.
check finishes within about a minute, and exits with 1 if there's a FAIL.

With --json, check prints one object with the worst verdict, the number of findings for each
verdict, and the findings. Each finding has the fields side (postgres, kafka, registry,
store or collector), name, verdict, why and fix.`,
		Example: `  walpost check --config walpost.yaml
  walpost check --config walpost.yaml --json | jq -r '.findings[] | select(.verdict == "FAIL") | .fix'`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			found, err := walpost.Check(ctx, cfg.Config)
			if err != nil {
				return err
			}
			if cfg.Tracing.On() {
				found = append(found, cfg.Tracing.Reach(ctx))
			}
			report := show.CheckReportOf(found)
			err = show.Print(cmd.OutOrStdout(), *asJSON, report, report.Text())
			if err == nil && report.Verdict == walpost.Fail {
				err = exitError(exitFailed) // the findings have said why
			}
			return err
		})
	}
	return cmd
}
