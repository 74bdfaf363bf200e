package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A page keeps the rows of what was not run, and has the worst of what was.
func TestThePageHasTheWorstOfTheRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+tableBegins+tableEnds+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(i int, once bool, duplicates int, recovery time.Duration, broken ...Breach) outcome {
		return outcome{scenario: &scenarios[i], once: once, verdict: Verdict{Duplicates: duplicates, Broken: broken}, recovery: recovery, rss: 30 << 20}
	}
	kill, stop := scenarios[0].name, scenarios[2].name
	for _, runs := range [][]outcome{
		{run(2, false, 0, time.Second), run(0, true, 0, time.Second)},
		{run(0, false, 7, time.Second), run(0, false, 5, 3*time.Second, Breach{"lost", ""}), {scenario: &scenarios[0], unreached: []string{"it"}}, {scenario: &scenarios[2], leftOut: "no disk"}},
	} {
		if err := writePage(path, runs); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n", "\nafter\n", "\n|" + kill + "|at_least_once|2|1|0|0|7|3.0s|30MB|\n|" + kill + "|exactly_once|1|0|0|0|0|1.0s|30MB|\n",
		"|**" + scenarios[2].promise + "**|\n|" + stop + "|at_least_once|1|0|",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
