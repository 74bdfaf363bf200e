package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestThePageHasTheMedians(t *testing.T) {
	pass := func(benchmark, workload, reader string, round int, figures map[string]float64) result {
		figures["load"] = float64(round)
		return result{benchmark, workload, reader, round, figures}
	}
	all := []result{
		pass("Backlog", "rows", "walpost", 1, map[string]float64{"events/s": 40_000, "peak-MB": 52.4}),
		pass("Backlog", "rows", "pg_recvlogical", 1, map[string]float64{"events/s": 51_239}),
		pass("Backlog", "rows", "walpost", 2, map[string]float64{"events/s": 90_000, "peak-MB": 52.4}),
		pass("Backlog", "rows", "walpost", 3, map[string]float64{"events/s": 41_000, "peak-MB": 52.4}),
		pass("Backlog", "2kB", "walpost", 1, map[string]float64{"events/s": 998.4, "CPU-s/Mevents": 3.14}),
		pass("Latency", "100", "walpost", 1, map[string]float64{"consumed-ms-p50": 0.84, "consumed-ms-p99": 9.6, "consumed-ms-p999": 14, "CPU-%": 3, "peak-MB": 31}),
		pass("Latency", "100", "walpost", 2, map[string]float64{"consumed-ms-p50": 0.86, "consumed-ms-p99": 9.6, "consumed-ms-p999": 14, "CPU-%": 3, "peak-MB": 31}),
		pass("Latency", "20000", "walpost", 1, map[string]float64{"consumed-ms-p50": 1, "consumed-ms-p99": 2, "consumed-ms-p999": 3, "CPU-%": 4, "peak-MB": 5, "written/s": 12_345}),
	}
	folder := t.TempDir()
	page := filepath.Join(folder, "page.md")
	if err := os.Mkdir(filepath.Join(folder, "pictures"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := "Before.\n<!-- written by go run ./scripts/bench: backlog -->\nold\n<!-- end -->\nBetween.\n<!-- written by go run ./scripts/bench: latency -->\n<!-- end -->\nAfter.\n"
	if err := os.WriteFile(page, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, the tables are there
		if err := writePage(page, all); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Before.\n<!-- written by go run ./scripts/bench: backlog -->\n\nMedians of up to 3 rounds, at load averages from 1 to 3.\n",
		"|events/s|pg_recvlogical|walpost|\n|---|--:|--:|\n|rows|51,200|41,000|\n|2kB|–|998|\n",
		"|2kB|–|3.1|\n",
		"|rows|–|52|\n",
		"<!-- end -->\nBetween.\n",
		"Medians of up to 2 rounds, at load averages from 1 to 2.\n",
		"|100|walpost|0.85|9.6|14|3|31|\n|20000 (12,300 written)|walpost|1|2|3|4|5|\n\n<!-- end -->\nAfter.\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks\n%s\nIt is\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the page still has the old table")
	}
	picture, err := os.Open(filepath.Join(folder, "pictures", "catch-up.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer picture.Close() //nolint:errcheck // only read
	bars, parts := 0, xml.NewDecoder(picture)
	for {
		token, err := parts.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if want := 1 + 2 + 3; bars != want { // the background, the legend, and what was measured
		t.Errorf("the picture has %d rectangles, not %d", bars, want)
	}
	if err := writePage(page, nil); err != nil {
		t.Errorf("nothing measured: %v", err)
	}
	if err := os.WriteFile(page, []byte("no place"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writePage(page, all); err == nil {
		t.Error("a page without a place for the table is no error")
	}
}
