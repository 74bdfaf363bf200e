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
		Short: "prints the SQL that creates what is missing; --apply runs it",
		Long: `setup prints the SQL for what is missing: the table, the role and its privileges, and the
publication. If setup can't reach the database, it prints the SQL for everything. If it finds a
problem that it can't repair, such as a table without the columns that walpost needs, it reports the
problem and fails.

--apply runs the SQL as the DSN's role, in one transaction. It doesn't create an index on an
existing table (CREATE INDEX CONCURRENTLY): setup and walpost check print that statement for you to
run. If the DSN names an administrator, name the role that walpost runs as with --role. With
--partitioned, a missing table is created with a partition for each day of source.time_column.

--migration prints only the SQL of the tables, for a migration tool: a file for goose, or the up or
down file for golang-migrate. It doesn't connect to the database. With --inbox, it prints the tables
of the Go package inbox (docs/consume-events.md). With --from, it prints the SQL that upgrades them
from that version.

A slot retains WAL from the moment it exists, so setup creates the slot only with --make-slot.
Otherwise, the first walpost run creates the slot, together with its first checkpoint.`,
		Example: `  walpost setup --config walpost.yaml
  walpost setup --config walpost.yaml --dsn postgres://postgres@localhost/shop --role walpost --apply
  walpost setup --config walpost.yaml --migration goose > migrations/00001_outbox.sql`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).ValidateDatabase, "dsn", "table", "slot", "publication", "snapshot")
	apply := cmd.Flags().Bool("apply", false, "run the SQL")
	role := cmd.Flags().String("role", "", "the `name` of walpost's role (default the DSN's)")
	slot := cmd.Flags().Bool("make-slot", false, "also create the slot")
	partitioned := cmd.Flags().Bool("partitioned", false, "create a missing table with daily partitions")
	form := cmd.Flags().String("migration", "", "only print the SQL for the tables, in this `form`: "+strings.Join(walpost.Migrations, ", "))
	inbox := cmd.Flags().Bool("inbox", false, "with --migration: the tables of a consumer")
	schema := cmd.Flags().String("schema", "", "with --inbox: the `schema` of the tables (default by the search_path)")
	from := cmd.Flags().Int("from", 0, "with --inbox: the current `version` of the tables")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *form != "" && *apply {
			return usageError{errors.New("--migration only prints: leave out --apply")}
		}
		if !*inbox && (*schema != "" || *from != 0) {
			return usageError{errors.New("--schema and --from need --inbox")}
		}
		if *inbox {
			sql, err := walpost.InboxMigration(*form, *schema, *from)
			fmt.Fprint(cmd.OutOrStdout(), sql)
			return err
		}
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			cfg.SetupRole, cfg.SetupSlot, cfg.SetupPartitioned = *role, *slot, *partitioned
			out := cmd.OutOrStdout()
			if *form != "" {
				sql, err := walpost.Migration(cfg.Config, *form)
				fmt.Fprint(out, sql)
				return err
			}
			if *apply {
				made, err := walpost.Setup(ctx, cfg.Config)
				for _, what := range made {
					fmt.Fprintln(out, "done: "+what)
				}
				if err != nil {
					return err
				}
				left, why, _ := walpost.SetupSQL(ctx, cfg.Config)
				switch {
				case why != nil:
				case strings.Contains("\n"+left, "\nGRANT "):
					fmt.Fprint(out, "Still missing, because this role may not run this SQL:\n"+left)
				case strings.Contains("\n"+left, "\nCREATE INDEX"):
					fmt.Fprint(out, "Still missing, because it takes time to build an index on a table that exists:\n"+left)
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
