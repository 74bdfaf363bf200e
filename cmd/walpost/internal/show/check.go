package show

import (
	"fmt"
	"strings"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/doctor"
)

// A CheckReport is what check --json prints. Its names and meanings do not change; further ones may come.
type CheckReport struct {
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

// CheckReportOf counts findings.
func CheckReportOf(found []walpost.Finding) *CheckReport {
	r := &CheckReport{Counts: map[doctor.Verdict]int{walpost.OK: 0, walpost.Warn: 0, walpost.Fail: 0}, Findings: make([]checkFinding, len(found))}
	for i := range found {
		f := &found[i]
		r.Findings[i] = checkFinding{f.Side, f.Name, f.Verdict, OneLine(f.Why), f.FixText()}
		r.Counts[f.Verdict]++
	}
	for _, v := range []doctor.Verdict{walpost.OK, walpost.Warn, walpost.Fail} {
		if v == walpost.OK || r.Counts[v] > 0 {
			r.Verdict = v
		}
	}
	return r
}

// Text is the report for a person.
func (r *CheckReport) Text() string {
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
		warnings := "1 warning"
		if n := r.Counts[walpost.Warn]; n > 1 {
			warnings = fmt.Sprintf("%d warnings", n)
		}
		b.WriteString("ready to run, with " + warnings + "\n")
	default:
		b.WriteString("ready to run\n")
	}
	return b.String()
}
