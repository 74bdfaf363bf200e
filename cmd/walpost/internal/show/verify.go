package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/walpost/walpost"
	"github.com/walpost/walpost/internal/command/verify"
	"github.com/walpost/walpost/internal/fault"
)

// Verify says what a verify found, for a person.
func Verify(r *walpost.VerifyReport) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rows: %d, records: %d\n", r.Rows, r.Records)
	fmt.Fprintf(&b, "rows with their record: %d\n", r.Matched)
	for _, line := range verifyCounts(r) {
		if line.count > 0 {
			fmt.Fprintf(&b, "%s: %d\n", line.text, line.count)
		}
	}
	if r.NotConfirmed != "" {
		fmt.Fprintf(&b, "note: %s\n", r.NotConfirmed)
	}
	for _, k := range verify.Kinds() {
		n := r.Counts[k.Kind]
		if n == 0 {
			continue
		}
		title := "NOT JUDGED"
		if k.Difference {
			title = "DIFFERENCE"
		}
		fmt.Fprintf(&b, "\n%s %s: %d (%s)\n", title, k.Kind, n, k.Text)
		var shownSoFar int64
		for i := range r.Findings {
			if f := &r.Findings[i]; f.Kind == k.Kind {
				fmt.Fprintf(&b, "  %s\n", findingLine(f))
				shownSoFar++
			}
		}
		if shownSoFar < n {
			fmt.Fprintf(&b, "  and %d more (--limit)\n", n-shownSoFar)
		}
		if k.Hint != "" {
			fmt.Fprintf(&b, "  what to do: %s\n", k.Hint)
		}
		if k.Kind == verify.Missing {
			which := "them"
			if 0 < shownSoFar && shownSoFar < n {
				which = fmt.Sprintf("these %d (then run verify again)", shownSoFar)
			}
			fmt.Fprintf(&b, "  to publish %s after newer events of their keys: %s\n", which, fault.Command("replay"+replayIDs(r.Findings)))
		}
	}
	fmt.Fprintf(&b, "\ndifferences: %d, not judged: %d\n", r.Differences(), r.CannotTell())
	return b.String()
}

// replayIDs are the flags of walpost replay for the rows that are missing.
func replayIDs(findings []verify.Finding) (flags string) {
	for i := range findings {
		if f := &findings[i]; f.Kind == verify.Missing {
			flags += " --id " + ShellWord(f.EventID)
		}
	}
	return cmp.Or(flags, " --id ID") // --limit 0
}

type countLine struct {
	count int64
	text  string
}

// verifyCounts are the counts that are no findings.
func verifyCounts(r *walpost.VerifyReport) []countLine {
	var lines []countLine
	for _, where := range slices.Sorted(maps.Keys(r.Elsewhere)) {
		lines = append(lines, countLine{r.Elsewhere[where], "rows whose event is not in its topic, but is a " + where})
	}
	return append(lines,
		countLine{r.LeftOut, "rows without a record that source.snapshot leaves out"},
		countLine{r.WithoutRow, "records whose row was not compared"},
		countLine{r.NoEventID, "records without an event id"},
		countLine{r.Repeated, "duplicates from restarts of the relay (contiguous, byte-identical)"},
		countLine{r.Marked, "duplicates from a command (header walpost.origin)"},
		countLine{r.Late, "rows whose only record came from a replay or a retry: the order of that record is not judged"},
		countLine{r.Unordered, "consecutive records of one key whose order is unknown"})
}

func findingLine(f *verify.Finding) string {
	words := []string{"event " + shown([]byte(f.EventID))}
	switch {
	case f.Key != nil:
		words = append(words, "key "+shown([]byte(*f.Key)))
	case f.Topic != "":
		words = append(words, "key "+shown(nil))
	}
	if f.Table != "" {
		words = append(words, "of "+f.Table)
	}
	if f.Topic != "" {
		words = append(words, "topic "+f.Topic)
	}
	if f.Partition >= 0 {
		words = append(words, fmt.Sprintf("partition %d", f.Partition))
	}
	if f.Offset >= 0 {
		words = append(words, fmt.Sprintf("offset %d", f.Offset))
	}
	line := strings.Join(words, ", ")
	if f.Detail != "" {
		line += ": " + OneLine(f.Detail)
	}
	return line
}

// VerifyOf is the report for programs. Its counts have every kind, also one with no findings.
func VerifyOf(r *walpost.VerifyReport, clean bool) any {
	v := struct {
		Clean       bool                  `json:"clean"`
		Differences map[verify.Kind]int64 `json:"differences"`
		CannotTell  map[verify.Kind]int64 `json:"cannot_tell"`
		*walpost.VerifyReport
	}{clean, map[verify.Kind]int64{}, map[verify.Kind]int64{}, r}
	for _, k := range verify.Kinds() {
		if k.Difference {
			v.Differences[k.Kind] = r.Counts[k.Kind]
		} else {
			v.CannotTell[k.Kind] = r.Counts[k.Kind]
		}
	}
	return v
}
