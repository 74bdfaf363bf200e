package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
)

func setupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "prints the SQL for what is missing; --apply runs it",
		Long: `setup prints the SQL for what is missing: the table, the role and its rights, and the publication.
If it cannot reach the database, it prints the SQL for everything. If something is wrong that setup
cannot repair, such as a table without the columns that walpost needs, setup says so and fails.

--apply runs the SQL as the role of the DSN, in one transaction. It does not make an index on an
existing table (CREATE INDEX CONCURRENTLY): walpost check prints this statement, and you run it.
--role names the role that walpost runs as, if the DSN is an administrator's.

--migration prints the tables alone, for a migration tool: one file of goose, or the up and the down
file of golang-migrate. It does not connect to the database. With --inbox, these are the tables of
the Go package inbox (docs/inbox.md).

The slot holds WAL from the moment it exists. So setup makes it only with --make-slot. Otherwise the
first walpost run makes it, together with its first checkpoint.`,
		Example: `  walpost setup --config walpost.yaml
  walpost setup --config walpost.yaml --dsn postgres://postgres@localhost/shop --role walpost --apply
  walpost setup --config walpost.yaml --migration goose > migrations/00001_outbox.sql`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase, "dsn", "table", "slot", "publication", "shard", "snapshot")
	apply := cmd.Flags().Bool("apply", false, "run the SQL")
	role := cmd.Flags().String("role", "", "the `name` of the role that walpost runs as (default the role of the DSN)")
	slot := cmd.Flags().Bool("make-slot", false, "also make the slot, which holds WAL from then on")
	shards := cmd.Flags().Int("shards", 0, "make what that `number` of relays needs to share out the rows by a hash of the key (docs/sharding.md)")
	partitioned := cmd.Flags().Bool("partitioned", false, "make a missing table partitioned by source.time_column (default created_at), one partition for each day")
	form := cmd.Flags().String("migration", "", "print the tables alone, in this `form`: "+strings.Join(walpost.Migrations, ", "))
	inbox := cmd.Flags().Bool("inbox", false, "with --migration: the tables of a consumer, for which no configuration is needed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *form != "" && *apply {
			return usageError{errors.New("--migration only prints: leave out --apply")}
		}
		if *inbox {
			sql, err := walpost.InboxMigration(*form)
			fmt.Fprint(cmd.OutOrStdout(), sql)
			return err
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			cfg.SetupRole, cfg.SetupSlot, cfg.SetupPartitioned, cfg.SetupShards = *role, *slot, *partitioned, *shards
			out := cmd.OutOrStdout()
			if *form != "" {
				sql, err := walpost.Migration(cfg.Config, *form)
				fmt.Fprint(out, sql)
				return err
			}
			if *apply {
				made, err := walpost.Setup(ctx, cfg.Config)
				for _, what := range made {
					fmt.Fprintln(out, "made "+what)
				}
				if err != nil {
					return err
				}
				left, why, _ := walpost.SetupSQL(ctx, cfg.Config)
				switch {
				case why != nil:
				case strings.Contains("\n"+left, "\nGRANT "):
					fmt.Fprint(out, "Still missing, because this role may not run this SQL:\n"+left)
				default: // only comments are left
					fmt.Fprint(out, strings.ReplaceAll("\n"+left, "\n-- ", "\n")[1:])
				}
				return nil
			}
			sql, why, err := walpost.SetupSQL(ctx, cfg.Config)
			if why != nil {
				fmt.Fprintf(out, "-- walpost could not examine the database (%s), so this SQL is for an empty database.\n\n",
					show.OneLine(why.Error()))
			}
			fmt.Fprint(out, sql)
			return err
		})
	}
	return cmd
}
