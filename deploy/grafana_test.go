package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type dashboard struct {
	SchemaVersion int `json:"schemaVersion"`
	Templating    struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		GridPos struct{ X, Y, W, H int }
		Links   []struct {
			URL string `json:"url"`
		} `json:"links"`
		Datasource  struct{ UID string } `json:"datasource"`
		FieldConfig struct {
			Defaults struct {
				Unit string `json:"unit"`
			} `json:"defaults"`
		} `json:"fieldConfig"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

func TestDashboardAsksOnlyForMetricsThatAreExportedAndForEachOfOurs(t *testing.T) {
	text, err := os.ReadFile("grafana/walpost.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	known := exported(t)
	var shown, rows []string
	ids := map[int]bool{}
	check := func(where, expr string) {
		names := metricsIn(expr)
		if len(names) == 0 {
			t.Errorf("%s asks for no metric", where)
		}
		for _, name := range names {
			if !slices.Contains(known, name) {
				t.Errorf("%s asks for %s, which nothing exports", where, name)
			}
		}
		shown = append(shown, names...)
	}
	for _, v := range d.Templating.List {
		if v.Name != "datasource" {
			check("variable "+v.Name, v.Definition)
		}
	}
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, q := range d.Panels[:i] {
			if p.GridPos.X < q.GridPos.X+q.GridPos.W && q.GridPos.X < p.GridPos.X+p.GridPos.W &&
				p.GridPos.Y < q.GridPos.Y+q.GridPos.H && q.GridPos.Y < p.GridPos.Y+p.GridPos.H {
				t.Errorf("the panels %q and %q overlap", q.Title, p.Title)
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q: data source %q, unit %q, %d targets", p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for _, target := range p.Targets {
			check("panel "+p.Title, target.Expr)
		}
		for _, link := range p.Links {
			if _, err := os.Stat(filepath.Join(runbooks, strings.TrimPrefix(link.URL, runbookURL))); err != nil {
				t.Errorf("panel %q: %v", p.Title, err)
			}
		}
	}
	if want := []string{"Overview", "Slot", "Delivery", "Kafka client", "Process"}; !slices.Equal(rows, want) {
		t.Errorf("rows %v, want %v", rows, want)
	}
	for _, name := range known {
		ours := strings.HasPrefix(name, "walpost_") && !strings.HasPrefix(name, "walpost_kafka_")
		if ours && !slices.Contains(shown, name) && !strings.HasPrefix(name, "walpost_commit_to_ack_seconds") {
			t.Errorf("%s is exported and on no panel", name)
		}
	}
}
