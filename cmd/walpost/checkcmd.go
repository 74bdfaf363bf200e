package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/doctor"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "examines each precondition and says how to repair it",
		Long: `check examines each precondition of a run, in Postgres and in Kafka. It prints one line for each: ok,
warn or FAIL, and the SQL, the setting or the command that repairs it. It changes nothing. If one
side is down, the report of the other side is still complete. check ends within about a minute, and
exits with 1 if there is a FAIL.

With --json it prints one object with the worst verdict, the number of findings for each verdict, and
the findings. Each finding has side (postgres or kafka), name, verdict, why and fix.`,
		Example: `  walpost check --config walpost.yaml
  walpost check --config walpost.yaml --json | jq -r '.findings[] | select(.verdict == "FAIL") | .fix'`,
		Args: noArguments,
	}
	load := configFlags(cmd, (*walpost.Config).Validate)
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
		report := reportOf(found)
		if *asJSON {
			err = printJSON(cmd.OutOrStdout(), report)
		} else {
			err = report.print(cmd.OutOrStdout())
		}
		if err == nil && report.Verdict == walpost.Fail {
			err = exitError(exitFailed) // the findings have said why
		}
		return err
	}
	return cmd
}

// checkReport is what check --json prints. Its names and meanings do not change; further ones may come.
type checkReport struct {
	Verdict  doctor.Verdict `json:"verdict"` // the worst of the findings
	Counts   checkCounts    `json:"counts"`
	Findings []checkFinding `json:"findings"`
}

type checkFinding struct {
	Side    doctor.Side    `json:"side"`
	Name    string         `json:"name"`
	Verdict doctor.Verdict `json:"verdict"`
	Why     string         `json:"why"`
	Fix     string         `json:"fix"` // one or more lines; "" if there is nothing to do
}

type checkCounts struct {
	OK   int `json:"ok"`
	Warn int `json:"warn"`
	Fail int `json:"FAIL"`
}

func reportOf(found []walpost.Finding) *checkReport {
	r := &checkReport{Verdict: walpost.OK, Findings: make([]checkFinding, len(found))}
	for i := range found {
		f := &found[i]
		r.Findings[i] = checkFinding{f.Side, f.Name, f.Verdict, oneLine(f.Why), f.FixText()}
		switch f.Verdict {
		case walpost.OK:
			r.Counts.OK++
		case walpost.Fail:
			r.Counts.Fail++
			r.Verdict = walpost.Fail
		default:
			r.Counts.Warn++
			if r.Verdict == walpost.OK {
				r.Verdict = walpost.Warn
			}
		}
	}
	return r
}

func (r *checkReport) print(w io.Writer) error {
	var b strings.Builder
	for i := range r.Findings {
		f := &r.Findings[i]
		fmt.Fprintf(&b, "%-4s  %s: %s: %s\n", f.Verdict, f.Side, f.Name, f.Why)
		if f.Fix != "" {
			fmt.Fprintf(&b, "      fix: %s\n", strings.ReplaceAll(f.Fix, "\n", "\n           "))
		}
	}
	switch {
	case r.Counts.Fail > 0:
		fmt.Fprintf(&b, "%d of %d preconditions fail\n", r.Counts.Fail, len(r.Findings))
	case r.Counts.Warn > 0:
		fmt.Fprintf(&b, "ready to run, with %d warnings\n", r.Counts.Warn)
	default:
		b.WriteString("ready to run\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine is a text with its line breaks and tabs, as errors of several addresses have, as spaces.
// A line that is there twice in a row, as for two attempts with one address, is there once.
func oneLine(text string) string {
	lines := slices.Compact(strings.Split(text, "\n"))
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
