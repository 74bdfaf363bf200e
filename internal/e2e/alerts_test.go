package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fire evaluates the alert rules over what was scraped while a slot went on to be lost, one scrape a second: somebody is called while
// it can still be saved, and once more when it is lost.
func fire(t *testing.T, seen []samples) {
	t.Helper()
	lost := slices.IndexFunc(seen, func(s samples) bool { return s.status() == "lost" })
	if lost < 1 {
		t.Fatal("the slot was never scraped as lost")
	}
	var names []string
	for _, s := range seen {
		for name := range s {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	rules, err := filepath.Abs("../../deploy/prometheus/walpost-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%q]\nevaluation_interval: 1s\ntests:\n- interval: 1s\n  input_series:\n", rules)
	for _, name := range names {
		values := make([]string, len(seen))
		for i, s := range seen {
			values[i] = "_"
			if v, ok := s[name]; ok {
				values[i] = strconv.FormatFloat(v, 'g', -1, 64)
			}
		}
		series := name + `{job="walpost",instance="a"}`
		if metric, labels, ok := strings.Cut(name, "{"); ok {
			series = metric + `{job="walpost",instance="a",` + labels
		}
		fmt.Fprintf(&b, "  - series: %s\n    values: %q\n", strconv.Quote(series), strings.Join(values, " "))
	}
	fmt.Fprint(&b, "  promql_expr_test:\n")
	for _, c := range []struct {
		at     int
		alert  string
		firing int
	}{
		{lost - 1, "WalpostSlotUnreserved", 1},
		{lost - 1, "WalpostSlotLost", 0},
		{lost, "WalpostSlotLost", 1},
	} {
		fmt.Fprintf(&b, "  - expr: count(ALERTS{alertname=%q,alertstate=\"firing\",slot=\"walpost\"}) or vector(0)\n    eval_time: %ds\n    exp_samples: [{value: %d}]\n",
			c.alert, c.at, c.firing)
	}
	file := filepath.Join(t.TempDir(), "scraped_test.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := promtool(t)
	if tool == "" {
		return // it said so
	}
	if out, err := exec.CommandContext(t.Context(), tool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("the alert rules over %d scrapes, lost in the %d.: %v\n%s", len(seen), lost+1, err, out)
	}
}
