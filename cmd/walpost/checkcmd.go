package main

import (
	"context"
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
		return load.work(cmd, nil, func(ctx context.Context, cfg fileConfig) error {
			found, err := walpost.Check(ctx, cfg.Config)
			if err != nil {
				return err
			}
			report := reportOf(found)
			if *asJSON {
				err = printJSON(cmd.OutOrStdout(), report, "  ")
			} else {
				err = report.print(cmd.OutOrStdout())
			}
			if err == nil && report.Verdict == walpost.Fail {
				err = exitError(exitFailed) // the findings have said why
			}
			return err
		})
	}
	return cmd
}

// checkReport is what check --json prints. Its names and meanings do not change; further ones may come.
type checkReport struct {
	Verdict  doctor.Verdict         `json:"verdict"` // the worst of the findings
	Counts   map[doctor.Verdict]int `json:"counts"`
	Findings []checkFinding         `json:"findings"`
}

type checkFinding struct {
	Side    doctor.Side    `json:"side"`
	Name    string         `json:"name"`
	Verdict doctor.Verdict `json:"verdict"`
	Why     string         `json:"why"`
	Fix     string         `json:"fix"` // one or more lines; "" if there is nothing to do
}

func reportOf(found []walpost.Finding) *checkReport {
	r := &checkReport{Counts: map[doctor.Verdict]int{walpost.OK: 0, walpost.Warn: 0, walpost.Fail: 0}, Findings: make([]checkFinding, len(found))}
	for i := range found {
		f := &found[i]
		r.Findings[i] = checkFinding{f.Side, f.Name, f.Verdict, oneLine(f.Why), f.FixText()}
		r.Counts[f.Verdict]++
	}
	for _, v := range []doctor.Verdict{walpost.OK, walpost.Warn, walpost.Fail} {
		if v == walpost.OK || r.Counts[v] > 0 {
			r.Verdict = v
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
	case r.Verdict == walpost.Fail:
		fmt.Fprintf(&b, "%d of %d preconditions fail\n", r.Counts[walpost.Fail], len(r.Findings))
	case r.Verdict == walpost.Warn:
		fmt.Fprintf(&b, "ready to run, with %d warnings\n", r.Counts[walpost.Warn])
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

// printJSON prints one object, on one line if indent is "".
func printJSON(w io.Writer, v any, indent string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(v)
}
