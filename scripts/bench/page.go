package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A series is the results of one benchmark: medians over the rounds, by workload, reader and unit.
type series struct {
	workloads, readers []string // in the order in which they were measured
	results            []result
}

func of(all []result, benchmark string) (s series) {
	for _, r := range all {
		if r.Benchmark != benchmark {
			continue
		}
		s.results = append(s.results, r)
		if !slices.Contains(s.workloads, r.Workload) {
			s.workloads = append(s.workloads, r.Workload)
		}
		if !slices.Contains(s.readers, r.Reader) {
			s.readers = append(s.readers, r.Reader)
		}
	}
	slices.SortStableFunc(s.readers, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return s
}

// The first round measures the readers in this order; any others come behind them.
var order = []string{"pg_recvlogical", "walpost", "walpost-exactly-once", "debezium", "debezium-tuned"}

func rank(reader string) int {
	if i := slices.Index(order, reader); i >= 0 {
		return i
	}
	return len(order)
}

// median is NaN if nobody measured it.
func (s series) median(workload, reader, unit string) float64 {
	var values []float64
	for _, r := range s.results {
		if v, ok := r.Metrics[unit]; ok && r.Workload == workload && r.Reader == reader {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 0 {
		return (values[middle-1] + values[middle]) / 2
	}
	return values[middle]
}

// rounds are how often each reader was measured, and loads are the lowest and the highest load average.
func (s series) rounds() (rounds int, low, high float64) {
	low = math.Inf(1)
	for _, r := range s.results {
		rounds = max(rounds, r.Round)
		low, high = min(low, r.Metrics["load"]), max(high, r.Metrics["load"])
	}
	return rounds, low, high
}

func (s series) caption() string {
	rounds, low, high := s.rounds()
	return fmt.Sprintf("Medians of up to %d rounds, at load averages from %.0f to %.0f.\n\n", rounds, low, high)
}

// number rounds to three digits, or to two below 100, and separates thousands.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v >= 1000:
		unit := math.Pow(10, math.Floor(math.Log10(v))-2)
		n := int(math.Round(v/unit) * unit)
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	case v >= 10:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

var backlogUnits = []struct{ unit, title string }{
	{"events/s", "events/s"},
	{"CPU-s/Mevents", "CPU seconds per million events"},
	{"server-CPU-s/Mevents", "Postgres' CPU seconds per million events"},
	{"Kafka-CPU-s/Mevents", "Kafka's CPU seconds per million events"},
	{"peak-MB", "peak memory, MB"},
}

// backlogTable has a table for each unit: a row for each backlog, a column for each reader.
func backlogTable(all []result) string {
	s := of(all, "Backlog")
	if len(s.results) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(s.caption())
	for i, u := range backlogUnits {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "|%s|%s|\n|---|%s\n", u.title, strings.Join(s.readers, "|"), strings.Repeat("--:|", len(s.readers)))
		for _, w := range s.workloads {
			fmt.Fprintf(&b, "|%s|", w)
			for _, r := range s.readers {
				fmt.Fprintf(&b, "%s|", number(s.median(w, r, u.unit)))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// latencyTable has a row for each rate and reader.
func latencyTable(all []result) string {
	s := of(all, "Latency")
	if len(s.results) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(s.caption())
	b.WriteString("|events/s|reader|p50, ms|p99, ms|p99.9, ms|CPU, % of a core|peak memory, MB|\n|--:|---|--:|--:|--:|--:|--:|\n")
	for _, w := range s.workloads {
		for _, r := range s.readers {
			at := func(unit string) string { return number(s.median(w, r, unit)) }
			rate := w
			if asked, err := strconv.ParseFloat(w, 64); err == nil && s.median(w, r, "written/s") < .95*asked {
				rate += " (" + at("written/s") + " written)"
			}
			fmt.Fprintf(&b, "|%s|%s|%s|%s|%s|%s|%s|\n", rate, r, at("consumed-ms-p50"), at("consumed-ms-p99"), at("consumed-ms-p999"), at("CPU-%"), at("peak-MB"))
		}
	}
	return b.String()
}

// writePage replaces the tables of a page, and draws its picture.
func writePage(path string, all []result) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page := string(text)
	for name, table := range map[string]string{"backlog": backlogTable(all), "latency": latencyTable(all)} {
		if table == "" {
			continue
		}
		begins, ends := "<!-- written by go run ./scripts/bench: "+name+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(page, begins)
		_, after, ended := strings.Cut(rest, ends)
		if !ok || !ended {
			return fmt.Errorf("%s has no place for the table %s", path, name)
		}
		page = before + begins + "\n" + table + "\n" + ends + after
	}
	if s := of(all, "Backlog"); len(s.results) > 0 {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "pictures", "catch-up.svg"), []byte(bars(s, "events/s")), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(page), 0o644)
}

// bars draws a group of bars for each workload, with a bar for each reader.
func bars(s series, unit string) string {
	const left, width, thick, gap = 110, 720, 14, 16
	colors := []string{"#8b949e", "#0969da", "#8250df", "#bc4c00", "#e16f24"}
	most := 0.0
	for _, r := range s.results {
		most = max(most, r.Metrics[unit])
	}
	var b strings.Builder
	y := 34
	for i, r := range s.readers { // the legend
		fmt.Fprintf(&b, `<rect x="%d" y="8" width="10" height="10" fill="%s"/><text x="%d" y="17">%s</text>`+"\n", 10+i*150, colors[i%len(colors)], 24+i*150, r)
	}
	for _, w := range s.workloads {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, y+len(s.readers)*thick/2+4, w)
		for i, r := range s.readers {
			if v := s.median(w, r, unit); !math.IsNaN(v) {
				long := v / most * (width - left - 60)
				fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%s</text>`+"\n", left, y, long, thick-2, colors[i%len(colors)], left+long+4, y+thick-3, number(v))
			}
			y += thick
		}
		y += gap
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11" role="img" aria-labelledby="t">`+"\n<title id=\"t\">%s of each reader</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n", max(width, 20+150*len(s.readers)), y, unit, b.String())
}
