package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/replication"
)

func initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "writes a walpost.yaml for your database",
		Long: `init writes a short walpost.yaml to standard output. It looks in the database for a table with the
columns of an outbox. If there's none, the file names public.outbox, which walpost setup creates. If
there are several, name your outbox with --table.

The file never contains a password. With --role, it names this role instead of the DSN's. walpost
setup --role creates the role.`,
		Example: `  walpost init --dsn postgres://postgres@localhost/shop --role walpost --brokers localhost:9092 > walpost.yaml`,
		Args:    noArguments,
	}
	flags := cmd.Flags()
	for _, s := range settings {
		if slices.Contains([]string{"dsn", "table", "brokers"}, s.flag) {
			flags.Var(&value{}, s.flag, s.usage)
		}
	}
	role := flags.String("role", "", "the `name` of walpost's role (default the DSN's)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		known := true
		cfg, err := loadConfig("", os.LookupEnv, overrides(flags, os.LookupEnv), func(c *fileConfig) {
			c.fileless = true
			if known = len(c.Source.AllTables()) > 0; !known {
				c.Source.Tables = []string{"public.outbox"}
			}
		}, (*walpost.Config).Validate)
		if err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
		defer stop()
		source := &cfg.Source.Config
		source.ReadSecrets()
		db := source.Connection()
		db.Administrator = true
		found, err := pg.FindTables(ctx, db, source.Names().Tables)
		if err != nil {
			if strings.HasPrefix(pg.SQLState(err), "28") && *role == "" {
				err = fault.WithHint(err, fault.Hint(err)+"\nIf walpost's role does not exist yet, pass the DSN of an administrator, and name the role with --role.")
			}
			return err
		}
		if fit := slices.DeleteFunc(slices.Clone(found), func(t pg.FoundTable) bool { return !t.Fits }); !known && len(fit) > 0 {
			found = fit // not public.outbox
		}
		names := make([]string, len(found))
		for i, t := range found {
			names[i] = t.String()
		}
		switch {
		case known || len(found) == 0:
			found = slices.DeleteFunc(found, func(t pg.FoundTable) bool { return !slices.Contains(source.Names().Tables, t.Table) })
		case len(found) == 1:
			source.Tables = names
		default:
			return fault.Config(fmt.Errorf("%d tables look like an outbox: %s", len(found), strings.Join(names, ", ")), "Name the outbox with --table.")
		}
		if source.Slot, err = pg.FreeName(ctx, db, source.Slot, source.Names().Tables); err != nil {
			return err
		}
		text, err := initialFile(source, cfg.Kafka.Brokers, *role, found)
		if err == nil {
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
		}
		return err
	}
	return cmd
}

// initialFile is a walpost.yaml for the tables of source, of which found are those that exist.
func initialFile(source *replication.Config, brokers []string, role string, found []pg.FoundTable) (string, error) {
	dsn, password, err := pg.WithoutPassword(string(source.DSN), role)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(text, comment string) {
		if comment != "" {
			text = fmt.Sprintf("%-36s # %s", text, comment)
		}
		b.WriteString(text + "\n")
	}
	line("# yaml-language-server: $schema="+schemaURL, "")
	line("# walpost.yaml, written by walpost init. walpost.example.yaml has every key.", "")
	line("# Next: walpost setup, walpost check, walpost run.", "")
	line("source:", "")
	line("  dsn: "+yamlWord(dsn), "")
	if password && role == "" {
		line("  password: ${PGPASSWORD}", "from the environment; or password_file")
	} else {
		line("  # password_file: /run/secrets/pg", "if Postgres asks for a password")
	}
	if source.Slot != defaultConfig().Source.Slot {
		line("  slot: "+yamlWord(source.Slot), "another relay may use "+defaultConfig().Source.Slot)
		line("  publication: "+yamlWord(source.Slot), "another relay may use "+defaultConfig().Source.Publication)
	}
	missing := ""
	if len(found) < len(source.Names().Tables) {
		missing = "walpost setup creates it if it is missing"
	}
	tables, orders, times := []string{}, []string{}, []string{}
	var extra []string // the text columns that all tables have and no record has
	headers := true    // all tables have a column for headers
	for n, t := range source.Names().Tables {
		texts := []string{"event_type"} // of the table that walpost setup creates
		i := slices.IndexFunc(found, func(f pg.FoundTable) bool { return f.Table == t })
		switch {
		case i < 0:
			orders, times = append(orders, outboxtable.DefaultOrderColumn), append(times, source.Outbox.Time())
		case !found[i].Fits:
			missing = "walpost check says which columns or router options it needs"
			fallthrough
		default:
			orders, times = append(orders, found[i].OrderColumn), append(times, found[i].TimeColumn)
			headers = headers && found[i].Headers
			texts = slices.DeleteFunc(outboxtable.Extra(found[i].Texts), func(c string) bool { return c == found[i].OrderColumn })
		}
		if n == 0 {
			extra = texts
		}
		extra = slices.DeleteFunc(extra, func(c string) bool { return !slices.Contains(texts, c) })
		tables = append(tables, yamlWord(t.String()))
	}
	if len(tables) == 1 {
		line("  table: "+tables[0], missing)
	} else {
		line("  tables: ["+strings.Join(tables, ", ")+"]", missing)
	}
	if orders = slices.Compact(orders); len(orders) == 1 && orders[0] != "" {
		line("  order_column: "+yamlWord(orders[0]), "orders rows that walpost reads from the table")
	} else {
		line("  # order_column: seq", "a column whose values increase with each row, such as an identity")
	}
	if times = slices.Compact(times); len(times) == 1 && times[0] != "" {
		line("  time_column: "+yamlWord(times[0]), "the time of the insert; recover and cleanup use it")
	} else {
		line("  # time_column: created_at", "the time of the insert; recover and cleanup use it")
	}
	if len(found) > 0 {
		line("  # snapshot: initial", "publishes the existing rows; walpost run prints how to leave them out")
	}
	if placement := outboxtable.Placement(extra, headers); placement != "" {
		line("router:", "")
		line("  table.fields.additional.placement: "+yamlWord(placement), "columns that become headers of the record")
	}
	line("kafka:", "")
	for i, broker := range brokers {
		brokers[i] = yamlWord(broker)
	}
	line("  brokers: ["+strings.Join(brokers, ", ")+"]", "")
	line("  topics: {create: true}", "false: you create each topic before its first event")
	line("http:", "")
	line("  listen: "+defaultConfig().HTTP.Listen, "metrics, health and the status page")
	return b.String(), nil
}

var (
	noString  = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)
	plainYAML = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./:@?=&%+-]*$|^[0-9.]+:[0-9]+$`)
)

// yamlWord is a value as walpost.yaml writes it.
func yamlWord(s string) string {
	s = strings.ReplaceAll(s, "$", "$$")
	if plainYAML.MatchString(s) && !noString.MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}
