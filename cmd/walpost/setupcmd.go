package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
)

func setupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "prints the SQL for what is missing; --apply runs it",
		Long: `setup prints the SQL for what is missing: the table, the rights of the role, the publication and the
slot. If it cannot reach the database, it prints the SQL for everything. --apply runs the SQL as the
role of the DSN.`,
		Example: `  walpost setup --config walpost.yaml
  walpost setup --dsn postgres://postgres@localhost/shop --table public.outbox --apply`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase, "dsn", "table", "slot", "publication", "snapshot")
	apply := cmd.Flags().Bool("apply", false, "run the SQL")
	partitioned := cmd.Flags().Bool("partitioned", false, "make a missing table partitioned by source.time_column (default created_at), one partition for each day")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(nil)
		if err != nil {
			return err
		}
		cfg.SetupPartitioned = *partitioned
		ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
		defer stop()
		out := cmd.OutOrStdout()
		if *apply {
			made, err := walpost.Setup(ctx, cfg.Config)
			for _, what := range made {
				fmt.Fprintln(out, "made "+what)
			}
			if err == nil && len(made) == 0 {
				fmt.Fprintln(out, "everything is there")
			}
			return err
		}
		sql, why, err := walpost.SetupSQL(ctx, cfg.Config)
		if err != nil {
			return err
		}
		if why != nil {
			fmt.Fprintf(out, "-- walpost could not examine the database (%s), so this SQL is for an empty database.\n\n",
				oneLine(why.Error()))
		}
		if sql == "" {
			sql = "-- Everything is there.\n"
		}
		_, err = fmt.Fprint(out, sql)
		return err
	}
	return cmd
}
