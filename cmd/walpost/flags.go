package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/cmd/walpost/internal/show"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/pg"
)

// A setting is a key of walpost.yaml that also has a flag and an environment variable.
type setting struct {
	flag   string
	field  string
	usage  string // the first word in backquotes names the value in the help, which adds the values and the default
	values string // what it can be, separated by spaces; "" if that is no short list
	bool   bool
	makes  bool // run, recover and replay make something; for other commands, it says what run will do
}

// env is the setting's environment variable: WALPOST_ and the flag.
func (s setting) env() string {
	return "WALPOST_" + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))
}

var settings = []setting{
	{flag: "dsn", field: "source.dsn", usage: "the database, as a libpq `URI`"},
	{flag: "table", field: "source.tables", usage: "the outbox table, as `schema.table`; separate several tables with commas"},
	{flag: "brokers", field: "kafka.brokers", usage: "`host:port` of Kafka brokers, separated by commas"},
	{flag: "slot", field: "source.slot", usage: "`name` of the replication slot"},
	{flag: "publication", field: "source.publication", usage: "`name` of the publication"},
	{flag: "create", field: "source.create", usage: "create the publication and the slot if they're missing", bool: true, makes: true},
	{flag: "snapshot", field: "source.snapshot", usage: "what to do with rows from before the first start; either the `bound` that walpost run prints, or one of these words", values: "never initial"},
	{flag: "name", field: "name", usage: "`name` of the checkpoint (default <database>.<slot>)"},
	{flag: "topic-regex", field: "router.route.topic.regex", usage: "Java `regex` for the value of the route.by.field column"},
	{flag: "topic-replacement", field: "router.route.topic.replacement", usage: "the `topic` if the regex matches"},
	{flag: "create-topics", field: "kafka.topics.create", usage: "create missing topics", bool: true, makes: true},
	{flag: "compression", field: "kafka.compression", usage: "the `codec`", values: "none gzip snappy lz4 zstd"},
	{flag: "window-events", field: "delivery.window.events", usage: "the maximum `number` of events in flight"},
	{flag: "window-bytes", field: "delivery.window.bytes", usage: "the maximum total `size` of the events in flight"},
	{flag: "checkpoint-store", field: "checkpoint.store", usage: "the `store`", values: "kafka file"},
	{flag: "checkpoint-topic", field: "checkpoint.topic", usage: "the compacted `topic` for checkpoints"},
	{flag: "checkpoint-path", field: "checkpoint.path", usage: "the `file`, with --checkpoint-store file"},
	{flag: "http", field: "http.listen", usage: "`host:port` for metrics, health and the status page, or off"},
	{flag: "log-level", field: "log.level", usage: "the `level`", values: "debug info warn error"},
	{flag: "log-format", field: "log.format", usage: "the `format`", values: "json console"},
	{flag: "shutdown-grace", field: "shutdown_grace", usage: "the maximum `duration` to wait for acknowledgements when stopping"},
	{flag: "halt-linger", field: "halt_linger", usage: "the `duration` for which a halted relay shows the reason, or forever"},
}

// A value is a flag's text, which the configuration judges as it judges a file's.
type value struct {
	text string
	bool bool
}

func (v *value) String() string { return v.text }

func (v *value) Set(text string) error {
	v.text = text
	return nil
}

// Type is for the help.
func (v *value) Type() string {
	if v.bool {
		return "bool"
	}
	return "string"
}

// A loader reads the configuration of a command. with, if not nil, sets what has no key.
type loader func(with func(*fileConfig)) (fileConfig, error)

// work reads the configuration, and works by it until a signal ends ctx.
func (load loader) work(cmd *cobra.Command, with func(*fileConfig), work func(ctx context.Context, cfg fileConfig) error) error {
	cfg, err := load(with)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
	defer stop()
	return work(ctx, cfg)
}

// configFlags adds the flags that say what to relay, and returns what reads them. check finds what is wrong for the command.
// The help lists the flags in uses, or all flags if uses is empty. The command accepts the other flags as well, because every
// command of a relay can have the same options, and hints repeat them.
func configFlags(cmd *cobra.Command, check func(*walpost.Config) walpost.Problems, uses ...string) loader {
	flags := cmd.Flags()
	flags.StringP("config", "c", "", "the `file` walpost.yaml (WALPOST_CONFIG); flags and WALPOST_… variables override it")
	for i, s := range settings {
		if s.makes && !slices.Contains([]string{"run", "recover", "replay"}, cmd.Name()) {
			s.usage = "let run " + s.usage
		}
		values := strings.Fields(s.values)
		if n := len(values); n > 0 {
			s.usage += ": " + strings.Join(values[:n-1], ", ") + " or " + values[n-1]
		}
		s.usage += defaultUsage()[i]
		f := flags.VarPF(&value{bool: s.bool}, s.flag, "", s.usage)
		if s.bool {
			f.NoOptDefVal, values = "true", []string{"true", "false"}
		}
		f.Hidden = len(uses) > 0 && !slices.Contains(uses, s.flag)
		if len(values) > 0 {
			offer(cmd, s.flag, values...)
		}
	}
	flags.SortFlags = false
	return func(with func(*fileConfig)) (fileConfig, error) {
		file := namedFile(flags)
		fault.SetOptions(given(flags, file, os.LookupEnv))
		return loadConfig(file, os.LookupEnv, overrides(flags, os.LookupEnv), with, check)
	}
}

// defaultUsage is what the usage of each setting says of its default. All commands share it, because
// it takes most of the time of a start.
var defaultUsage = sync.OnceValue(func() []string {
	defaults := defaultConfig()
	usage := make([]string, len(settings))
	for i, s := range settings {
		if f, _ := conf.Find(&defaults, s.field); !f.Value.IsZero() {
			usage[i] = fmt.Sprintf(" (default %v)", f.Value)
		}
	}
	return usage
})

// namedFile is the file that holds the configuration, "" for none.
func namedFile(flags *pflag.FlagSet) string {
	return cmp.Or(flags.Lookup("config").Value.String(), os.Getenv("WALPOST_CONFIG"))
}

// identity are the flags that say which relay a command is for. Without one of them, the command finds another relay, or begins a new one.
var identity = []string{"table", "slot", "publication", "name", "checkpoint-store", "checkpoint-topic", "checkpoint-path"}

// given repeats, for a shell, how the command line says what to relay, and which relay the environment names. A DSN with a password
// is left to the environment. An administrator's DSN, which --role shows, is not repeated for walpost's role.
func given(flags *pflag.FlagSet, file string, env func(string) (string, bool)) (all, withoutDSN string) {
	var words []string
	at := -1 // the place of the DSN in words
	if file != "" {
		words = append(words, "--config "+show.ShellWord(file))
	}
	for _, s := range settings {
		switch {
		case !flags.Changed(s.flag):
			if text, _ := env(s.env()); text != "" && slices.Contains(identity, s.flag) {
				words = append(words, "--"+s.flag+"="+show.ShellWord(text))
			}
		case s.flag == "dsn":
			word := `"$WALPOST_DSN"`
			dsn := flags.Lookup(s.flag).Value.String()
			if safe, ok := pg.Printable(dsn); ok && safe == dsn {
				word = show.ShellWord(dsn)
			}
			at = len(words)
			words = append(words, "--dsn "+word)
		default:
			words = append(words, "--"+s.flag+"="+show.ShellWord(flags.Lookup(s.flag).Value.String()))
		}
	}
	if f := flags.Lookup(deadTopicFlag); f != nil && f.Changed {
		words = append(words, "--"+f.Name+"="+show.ShellWord(f.Value.String()))
	}
	all = strings.Join(words, " ")
	if at < 0 {
		return all, all
	}
	withoutDSN = strings.Join(slices.Delete(words, at, at+1), " ")
	if role := flags.Lookup("role"); role != nil && role.Changed {
		return withoutDSN, withoutDSN
	}
	return all, withoutDSN
}

// overrides are the values of the environment and of the flags. A flag goes over a variable. The variable of a DSN stays before
// the flag, because it says whose the password of the file is. A variable that is set and empty says nothing. Other WALPOST_ variables are left alone: Kubernetes sets some for a service of that name.
func overrides(flags *pflag.FlagSet, env func(string) (string, bool)) []override {
	var over []override
	for _, s := range settings {
		given := flags.Changed(s.flag)
		if text, _ := env(s.env()); text != "" && (!given || s.flag == "dsn") {
			over = append(over, override{from: s.env(), field: s.field, text: text})
		}
		if given {
			over = append(over, override{from: "--" + s.flag, field: s.field, text: flags.Lookup(s.flag).Value.String()})
		}
	}
	return over
}

// offer has the shell's completion offer the values of a flag.
func offer(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// offerNoFiles keeps the shell's completion from offering files where a command or a flag takes none.
func offerNoFiles(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if name, _ := pflag.UnquoteUsage(f); name != "file" {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions) // an error says that it has values
		}
	})
	for _, c := range cmd.Commands() {
		offerNoFiles(c)
	}
}

// noArguments refuses words after the command: a flag that lost its dashes must not be ignored.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		text := fmt.Sprintf("%s: unexpected argument %q", cmd.CommandPath(), args[0])
		if strings.HasSuffix(args[0], ".yaml") && cmd.Flag("config") != nil {
			text += " (did you mean --config " + show.ShellWord(args[0]) + "?)"
		}
		return usageError{errors.New(text)}
	}
	return nil
}
