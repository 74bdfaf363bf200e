// Command walpost relays the inserts of a Postgres outbox table to Kafka. See the README, or walpost --help.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost/cmd/walpost/internal/man"
	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/yamlfile"
)

// Exit codes. They are part of the interface: service managers and checks rely on them.
const (
	exitOK     = 0 // stopped as asked
	exitFailed = 1 // failed at run time
	exitUsage  = 2 // wrong usage or configuration
	exitPerson = 3 // needs a person
)

func main() {
	startAsGuard()
	cobra.EnableCommandSorting = false // the order of sections says more than the alphabet
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program but for the process: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err != nil {
		printError(stderr, err)
	}
	return exitCode(err)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "walpost",
		Short: "publishes a Postgres outbox table to Kafka",
		Long: `walpost reads the inserts of a Postgres outbox table from the WAL, routes each row as Debezium's
Outbox EventRouter does, and produces the record to Kafka. It confirms a position to Postgres only
after the brokers have acknowledged every event up to that position.

Each command that reads walpost.yaml accepts the configuration flags of run. The help of a command
lists only the flags that the command uses.`,
		Example: `  walpost demo
  walpost init --dsn postgres://walpost@db:5432/shop --brokers kafka:9092 > walpost.yaml
  walpost setup --config walpost.yaml
  walpost check --config walpost.yaml
  walpost run --config walpost.yaml
  walpost run --dsn postgres://walpost@db:5432/shop --brokers kafka:9092 --table public.outbox --create-topics`,
		// Errors are printed once, by printError, without a page of usage behind which they would be lost.
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			text := fmt.Sprintf("unknown command %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				text += " (did you mean " + strings.Join(near, " or ") + "?)"
			}
			return usageError{errors.New(text)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help() // fails only where standard output does
			return usageError{errors.New("a command is missing")}
		},
		SuggestionsMinimumDistance: 2,
	}
	root.Version = buildInfo().String()
	root.SetVersionTemplate("{{.Version}}")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	for _, s := range sections() {
		root.AddGroup(&cobra.Group{ID: s.title, Title: s.title + ":"})
		for _, cmd := range s.commands {
			cmd.GroupID = s.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(versionCommand(), man.Command())
	offerNoFiles(root)
	return root
}

// A section of the help lists the commands for one purpose.
type section struct {
	title    string
	commands []*cobra.Command
}

// sections returns the commands by purpose, in the order in which a reader needs them.
func sections() []section {
	return []section{
		{"Start", []*cobra.Command{
			demoCommand(),
			initCommand(),
			groupCommand("config", "checks and describes a configuration", validateCommand(), printCommand(), schemaCommand()),
			setupCommand(),
			checkCommand(),
			runCommand(),
		}},
		{"Watch", []*cobra.Command{
			statusCommand(),
			healthCommand(),
			explainCommand(),
			verifyCommand(),
		}},
		{"Repair", []*cobra.Command{
			skipCommand(),
			deadCommand(),
			recoverCommand(),
			replayCommand(),
		}},
		{"Migrate", []*cobra.Command{
			groupCommand("debezium", "helps to move from Debezium to walpost", convertCommand()),
		}},
	}
}

// groupCommand is a command that only has other commands.
func groupCommand(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help() // fails only where standard output does
			return usageError{fmt.Errorf("a command is missing: %s %s", cmd.CommandPath(), commands[0].Name())}
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

// A usageError is a wrong command line.
type usageError struct{ error }

func (usageError) Misconfigured() bool { return true }

func (e usageError) Unwrap() error { return e.error }

func (usageError) Hint() string {
	return "walpost --help lists the commands, and walpost COMMAND --help lists the flags of a command"
}

// An exitError ends the program with a code and prints nothing: what there was to say is already on standard output.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// exitCode is by the error's behaviour, never by its type or text.
func exitCode(err error) int {
	var silent exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &silent):
		return int(silent)
	case fault.NeedsPerson(err):
		return exitPerson
	case fault.Misconfigured(err):
		return exitUsage
	}
	return exitFailed
}

// printError says what went wrong and, where it is known, what to do next.
func printError(w io.Writer, err error) {
	if errors.As(err, new(exitError)) {
		return
	}
	if wrong, ok := errors.AsType[yamlfile.Problems](err); ok {
		fmt.Fprintln(w, wrong) // every line begins with its place in the file
		return
	}
	fmt.Fprintf(w, "walpost: %v\n", err)
	if hint := fault.Hint(err); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", strings.ReplaceAll(hint, "\n", "\n      "))
	}
}
