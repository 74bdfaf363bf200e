package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// The table is between these lines of the page.
const (
	tableBegins = "<!-- written by go run ./scripts/faults -write -->\n"
	tableEnds   = "<!-- end -->"
	tableHead   = "|scenario|guarantee|runs|failed|lost|reordered|duplicates|recovery|memory|\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n"
)

// writePage replaces the rows of the table for what was run, and keeps the others. A row has the worst of its runs.
func writePage(path string, all []outcome) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), tableBegins)
	table, after, ended := strings.Cut(rest, tableEnds)
	if !ok || !ended {
		return fmt.Errorf("%s has no place for the table", path)
	}
	rows := map[string]string{} // by scenario and guarantee
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 4 {
			rows[cells[1]+"|"+cells[2]] = line
		}
	}
	var merged strings.Builder
	merged.WriteString(tableHead)
	maps.Copy(rows, rowsOf(all))
	written := map[string]bool{}
	for _, of := range scenarios {
		if written[of.promise] {
			continue
		}
		written[of.promise] = true
		fmt.Fprintf(&merged, "|**%s**|\n", of.promise)
		for _, s := range scenarios {
			for _, g := range []string{atLeastOnce, exactlyOnce} {
				if s.promise == of.promise {
					merged.WriteString(rows[s.name+"|"+g])
				}
			}
		}
	}
	return os.WriteFile(path, []byte(before+tableBegins+"\n"+merged.String()+"\n"+tableEnds+after), 0o644)
}

const atLeastOnce, exactlyOnce = "at_least_once", "exactly_once"

func guarantee(once bool) string {
	if once {
		return exactlyOnce
	}
	return atLeastOnce
}

func rowsOf(all []outcome) map[string]string {
	type sums struct {
		o                        outcome
		runs, failed, duplicates int
	}
	by := map[string]*sums{}
	for _, o := range all {
		if o.leftOut != "" { // an earlier row stays
			continue
		}
		key := o.scenario.name + "|" + o.guarantee()
		s := by[key]
		if s == nil {
			s = &sums{o: outcome{scenario: o.scenario}}
			by[key] = s
		}
		if !o.counts() {
			continue
		}
		s.runs++
		if !o.ok() {
			s.failed++
		}
		s.o.verdict.Lost += o.verdict.Lost
		s.o.verdict.Reordered += o.verdict.Reordered
		s.duplicates = max(s.duplicates, o.verdict.Duplicates)
		s.o.recovery, s.o.rss = max(s.o.recovery, o.recovery), max(s.o.rss, o.rss)
	}
	rows := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		s := by[key]
		rows[key] = fmt.Sprintf("|%s|%d|%d|%d|%d|%d|%.1fs|%dMB|\n", key, s.runs, s.failed, s.o.verdict.Lost, s.o.verdict.Reordered,
			s.duplicates, s.o.recovery.Round(100*time.Millisecond).Seconds(), s.o.rss>>20)
	}
	return rows
}
