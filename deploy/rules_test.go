package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	runbooks   = "../docs/runbooks"
	runbookURL = "https://github.com/walpost/walpost/blob/main/docs/runbooks/"
)

type rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Keep        string            `yaml:"keep_firing_for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
	file        string
}

// page is the file of the runbook. The alerts on the metrics of postgres_exporter share one.
func (r *rule) page() string {
	if filepath.Base(r.file) == "postgres-exporter-alerts.yaml" {
		return "Postgres.md"
	}
	return r.Alert + ".md"
}

// rules are all rules of the rule files here.
func rules(t *testing.T) []rule {
	t.Helper()
	files, err := filepath.Glob("prometheus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, file := range files {
		if strings.HasSuffix(file, "_test.yaml") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var parsed struct {
			Groups []struct {
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.Unmarshal(text, &parsed); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, g := range parsed.Groups {
			for _, r := range g.Rules {
				r.file = file
				all = append(all, r)
			}
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d rules in %v", len(all), files)
	}
	return all
}

// exporter are the metrics of postgres_exporter that may be asked for: of its collectors replication_slots (0.20 and newer) and
// replication_slot (before), of the slots' view that has always been called pg_replication_slots_…, of stat_activity and settings.
var exporter = []string{
	"pg_up", "pg_replication_slots_active", "pg_replication_slots_pg_wal_lsn_diff",
	"pg_replication_slots_slot_current_wal_lsn", "pg_replication_slots_slot_confirmed_flush_lsn", "pg_replication_slots_slot_is_active",
	"pg_replication_slots_safe_wal_size_bytes", "pg_replication_slots_wal_status",
	"pg_replication_slot_slot_current_wal_lsn", "pg_replication_slot_slot_confirmed_flush_lsn", "pg_replication_slot_slot_is_active",
	"pg_replication_slot_safe_wal_size_bytes", "pg_replication_slot_wal_status",
	"pg_stat_activity_max_tx_duration", "pg_settings_max_slot_wal_keep_size_bytes",
}

func TestRulesAskOnlyForMetricsThatAreExported(t *testing.T) {
	ours := exported(t)
	for _, r := range rules(t) {
		known := ours
		if filepath.Base(r.file) == "postgres-exporter-alerts.yaml" {
			known = exporter
		}
		asked := metricsIn(r.Expr)
		if len(asked) == 0 {
			t.Errorf("%s: %s%s asks for no metric", r.file, r.Alert, r.Record)
		}
		for _, text := range r.Annotations {
			asked = append(asked, metricsIn(text)...)
		}
		for _, name := range asked {
			if !slices.Contains(known, name) {
				t.Errorf("%s: %s%s asks for %s, which nothing exports", r.file, r.Alert, r.Record, name)
			}
		}
	}
}

func TestAlertsSayWhatAndWhatNext(t *testing.T) {
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s has the severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s lacks a summary or a description", r.Alert)
		}
		if got := r.Annotations["runbook_url"]; got != runbookURL+r.page() {
			t.Errorf("%s has the runbook_url %q", r.Alert, got)
		}
		if r.For == "" {
			t.Errorf("%s does not say for how long", r.Alert)
		}
		named := regexp.MustCompile(`\$labels\.(slot|instance)\b`)
		if !named.MatchString(r.Annotations["summary"]) && r.Alert != "WalpostNoRelay" {
			t.Errorf("the summary of %s names neither slot nor instance", r.Alert)
		}
	}
}

func TestAHaltFiresBeforeTheRelayHasGone(t *testing.T) {
	found := 0
	for _, r := range rules(t) {
		if strings.HasSuffix(r.Alert, "SlotLost") || r.Alert == "WalpostSlotMissing" || r.Alert == "WalpostRelayHalted" {
			found++
			if r.For != "0m" || r.Keep == "" {
				t.Errorf("%s: for %q, keep_firing_for %q; a halted relay is there for a minute only", r.Alert, r.For, r.Keep)
			}
		}
	}
	if found != 4 {
		t.Errorf("%d rules for lost slots and halts, want 4", found)
	}
}

func TestEveryAlertHasARunbookAndATest(t *testing.T) {
	tests, err := filepath.Glob("prometheus/*_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var tested strings.Builder
	for _, file := range tests {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tested.Write(text)
	}
	alerts := map[string]bool{}
	for _, r := range rules(t) {
		name := r.Alert
		if name == "" {
			name = r.Record
		} else {
			alerts[r.page()] = true
		}
		if !strings.Contains(tested.String(), `"`+name+`"`) && !strings.Contains(tested.String(), "expr: '"+name) && !strings.Contains(tested.String(), "round("+name) {
			t.Errorf("no test makes %s fire", name)
		}
	}
	index, err := os.ReadFile(filepath.Join(runbooks, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for file := range alerts {
		if _, err := os.Stat(filepath.Join(runbooks, file)); err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(index), "("+file+")") {
			t.Errorf("the index of the runbooks does not link %s", file)
		}
	}
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" && !alerts[name] {
			t.Errorf("%s belongs to no alert", name)
		}
	}
}
