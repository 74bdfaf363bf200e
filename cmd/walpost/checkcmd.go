package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "looks at every precondition and says what fixes what is not right",
		Long: `check looks at every precondition of a run, in Postgres and in Kafka, and prints one line for each: ok, warn or FAIL,
with the SQL or the setting that fixes it. It changes nothing. It exits 1 where something fails.`,
		Example: `  walpost check --config walpost.yaml`,
		Args:    noArguments,
	}
	load := configFlags(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(nil)
		if err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context(), cmd.ErrOrStderr())
		defer stop()
		found, err := walpost.Check(ctx, cfg.Config)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if *asJSON {
			err = printJSON(out, found)
		} else {
			err = printFindings(out, found)
		}
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.Level == walpost.Fail {
				return exitError(exitFailed)
			}
		}
		return nil
	}
	return cmd
}

func printFindings(w io.Writer, found []walpost.Finding) error {
	var b strings.Builder
	counts := map[string]int{}
	for _, f := range found {
		counts[f.Level]++
		fmt.Fprintf(&b, "%-4s  %s: %s: %s\n", f.Level, f.Part, f.Name, oneLine(f.Detail))
		if f.Fix != "" {
			fmt.Fprintf(&b, "      fix: %s\n", strings.ReplaceAll(strings.TrimSpace(f.Fix), "\n", "\n           "))
		}
	}
	switch {
	case counts[walpost.Fail] > 0:
		fmt.Fprintf(&b, "%d of %d preconditions fail\n", counts[walpost.Fail], len(found))
	case counts["warn"] > 0:
		fmt.Fprintf(&b, "ready to run, with %d warnings\n", counts["warn"])
	default:
		b.WriteString("ready to run\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine is a text with its line breaks and tabs, as errors of several addresses have, as spaces.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
