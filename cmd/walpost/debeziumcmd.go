package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/convert"
	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
	"github.com/walpost/walpost/internal/yamlfile"
)

func convertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "convert connector.json",
		Short: "turns a Debezium configuration into walpost.yaml",
		Long: `convert reads the configuration of Debezium's Postgres connector with the Outbox EventRouter, and
writes walpost.yaml to standard output. The input is a Kafka Connect connector (as properties, or as
JSON, with or without name and config), Debezium Server's application.properties, a Strimzi
KafkaConnector (also inside a List), or Confluent Cloud's PostgresCdcSourceV2. The name "-" stands
for standard input.

On standard error, convert reports each option as mapped, as not needed (and why), or as unsupported
(why, and what to do). A line marked "differs" describes a difference between walpost and Debezium
that doesn't depend on the options. convert changes nothing, and connects only to the database that
--dsn specifies. Its output contains none of the input's secrets. With --fresh, for a connector that
has never run, walpost creates the slot and publishes the existing rows as the connector would have.

If an option is unsupported, convert exits with 1 and lists the option under unsupported in the
output. No command accepts that file until you have decided about the option and deleted its entry.
If the input can't be read or contradicts itself, convert writes nothing and exits with 2.`,
		Example: `  walpost debezium convert connector.json --worker connect-distributed.properties > walpost.yaml
  curl -s http://connect:8083/connectors/outbox/config | walpost debezium convert - > walpost.yaml
  walpost debezium convert connector.json --dsn postgres://app@db/shop > walpost.yaml
  walpost debezium convert application.properties > walpost.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("%s: needs one file, or - for standard input (got %d)", cmd.CommandPath(), len(args))}
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault) // files
	flags := cmd.Flags()
	format := flags.String("format", string(input.Auto), "the file's `kind`: auto, connect, server, strimzi")
	worker := flags.String("worker", "", "the worker's properties `file`")
	offer(cmd, "format", string(input.Auto), string(input.Connect), string(input.Server), string(input.Strimzi))
	tables := flags.StringArray("table", nil, "the outbox as `schema.table`, if the connector's table.include.list is missing or is a regular expression (may be repeated); with --dsn, convert finds the outbox itself")
	dsn := flags.String("dsn", "", "the database, as a libpq `URI`: convert asks it which tables the connector captures")
	fresh := flags.Bool("fresh", false, "for a connector that has never run")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch input.Format(*format) {
		case input.Auto, input.Connect, input.Server, input.Strimzi:
		default:
			return usageError{fmt.Errorf("--format: must be one of auto, connect, server, strimzi (got %q)", *format)}
		}
		text, err := readInput(cmd.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		opts := convert.Options{Format: input.Format(*format), Tables: *tables, Fresh: *fresh}
		if *worker != "" {
			if opts.Worker, err = readInput(nil, *worker); err != nil {
				return err
			}
		}
		if *dsn != "" {
			if opts.Catalog, err = readCatalog(cmd.Context(), *dsn); err != nil {
				return err
			}
		}
		result, err := convert.Convert(text, opts)
		if err != nil {
			return fmt.Errorf("convert %s: %w", args[0], err)
		}
		refuse(result)
		printReport(cmd.ErrOrStderr(), result)
		if result.YAML == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "no configuration was written")
		}
		if _, err := cmd.OutOrStdout().Write(result.YAML); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
		if result.Unsupported() {
			return exitError(exitFailed)
		}
		return nil
	}
	return cmd
}

// readCatalog asks a database for its tables.
func readCatalog(ctx context.Context, dsn string) ([]convert.CatalogTable, error) {
	conn, err := pg.Database{DSN: dsn}.ConnectSQL(ctx)
	if err != nil {
		return nil, err
	}
	defer pg.Close(conn)
	tables, err := pg.Rows[convert.CatalogTable](ctx, conn, "read the tables", convert.CatalogQuery)
	return append([]convert.CatalogTable{}, tables...), err
}

// maxDocument is more than any configuration has.
const maxDocument = 16 << 20

func readInput(stdin io.Reader, name string) ([]byte, error) {
	from := stdin
	if name != "-" || stdin == nil {
		f, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, fault.Config(err, "")
		}
		defer func() { _ = f.Close() }() // opened for reading only
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxDocument))
	if err != nil {
		return nil, fault.Config(fmt.Errorf("read %s: %w", name, err), "")
	}
	return text, nil
}

// refuse adds to the report what walpost itself would say of the configuration at its start.
func refuse(result *convert.Result) {
	if result.YAML == nil {
		return
	}
	for _, p := range wrongWith(result.YAML) {
		result.Refuse(p.Field, p.Text())
	}
}

var fileInDSN = regexp.MustCompile(`&ssl(?:rootcert|cert|key)=[^&]*`)

// wrongWith reads and validates a configuration whose variables and files need not be there: they
// are those of another host.
func wrongWith(doc []byte) yamlfile.Problems {
	cfg, file := defaultConfig(), yamlfile.New("walpost.yaml", func(string) (string, bool) { return "1", true })
	file.Read(doc, &cfg)
	cfg.Unsupported = nil // the report has them
	if s := &cfg.Source; s.PasswordFile != "" {
		s.Password, s.PasswordFile = "1", ""
	}
	cfg.Source.DSN = walpost.Secret(fileInDSN.ReplaceAllString(string(cfg.Source.DSN), ""))
	if s := &cfg.Kafka.SASL; s.PasswordFile != "" {
		s.Password, s.PasswordFile = "1", ""
	}
	if t := cfg.Kafka.TLS; t != nil {
		t.CAFile, t.CertFile, t.KeyFile = "", "", ""
	}
	for i, b := range cfg.Kafka.Brokers {
		if b == "1" { // one variable for all of them
			cfg.Kafka.Brokers[i] = "broker:9092"
		}
	}
	return file.Check(cfg.validate((*walpost.Config).Validate))
}

// printReport writes one line for each finding, and how many there are of each. What is unsupported
// comes last, where the user of a terminal sees it.
func printReport(w io.Writer, result *convert.Result) {
	width, count := 0, map[convert.Verdict]int{}
	label := func(f convert.Finding) string {
		if f.Default {
			return f.Option + " (default)"
		}
		return f.Option
	}
	for _, f := range result.Report {
		width = max(width, min(len(label(f)), 60))
		count[f.Verdict]++
	}
	for _, last := range []bool{false, true} {
		for _, f := range result.Report {
			if last == (f.Verdict == convert.Unsupported) {
				fmt.Fprintf(w, "%-11s  %-*s  %s\n", f.Verdict, width, label(f), f.Text)
			}
		}
	}
	fmt.Fprintf(w, "%d mapped, %d not needed, %d unsupported\n", count[convert.Mapped], count[convert.NotNeeded], count[convert.Unsupported])
}
