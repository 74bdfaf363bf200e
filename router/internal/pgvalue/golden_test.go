package pgvalue

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/walpost/walpost/cdc"
)

// runs are the modes that every row was sent through Debezium with: each value of each option at least once. No option has a say in
// what another one decides.
var runs = []Modes{
	{"adaptive", "precise", "bytes", "numeric", "json"},
	{"adaptive_time_microseconds", "string", "base64", "string", "map"},
	{"connect", "double", "base64-url-safe", "numeric", "json"},
	{"isostring", "precise", "hex", "string", "map"},
	{"microseconds", "string", "bytes", "numeric", "json"},
	{"nanoseconds", "double", "base64", "string", "map"},
}

// A goldenColumn is one column definition of cases.txt and what became of it.
type goldenColumn struct {
	definition string
	column     cdc.Column
	schema     []string // by run; "absent", or "" where no row of the column came through
	rows       []goldenRow
}

type goldenRow struct {
	sql   string
	raw   []byte // nil: NULL
	value []string
}

// readGolden reads what Debezium answered.
func readGolden(t testing.TB) (columns []goldenColumn) {
	f, err := os.Open("testdata/debezium/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var row *goldenRow
	for lines.Scan() {
		line := lines.Text()
		var c *goldenColumn
		if len(columns) > 0 {
			c = &columns[len(columns)-1]
		}
		kind, rest, _ := strings.Cut(strings.TrimPrefix(line, "  "), " ")
		switch kind {
		case "", "#":
		case "=":
			columns = append(columns, goldenColumn{definition: rest, schema: make([]string, len(runs))})
		case "column":
			if err := json.Unmarshal([]byte(rest), &c.column); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		case "text":
			c.rows = append(c.rows, goldenRow{value: make([]string, len(runs))})
			row = &c.rows[len(c.rows)-1]
			if rest != "NULL" {
				text, err := strconv.Unquote(rest)
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				row.raw = append([]byte{}, text...)
			}
		case "schema", "value":
			to := c.schema
			if kind == "value" {
				to = row.value
			}
			who, answer, _ := strings.Cut(rest, ": ")
			for _, run := range strings.Split(who, ",") {
				i, err := strconv.Atoi(run)
				if err != nil || i >= len(runs) {
					t.Fatal(line)
				}
				to[i] = answer
			}
		default:
			t.Fatalf("not understood: %s", line)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return columns
}

// TestDebeziumSaysTheSame holds every schema and value to what Debezium wrote, in every mode. A value that Debezium has no longer after
// a warning is nil, and one that it stops at is an error.
func TestDebeziumSaysTheSame(t *testing.T) {
	values, absent := compare(t, readGolden(t))
	if values < 4000 || absent < 100 {
		t.Errorf("%d values and %d columns without one were compared", values, absent)
	}
}

func compare(t *testing.T, columns []goldenColumn) (values, absent int) {
	for _, c := range columns {
		for run, m := range runs {
			column := c.column
			typ, err := Column(&column, m)
			if c.schema[run] == "absent" {
				if absent++; err == nil {
					t.Errorf("%s, run %d: Debezium leaves the column out", c.definition, run)
				} else if !strings.Contains(err.Error(), "column v is a ") {
					t.Errorf("%s, run %d: %v", c.definition, run, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s, run %d: %v", c.definition, run, err)
				continue
			}
			if got := renderSchema(typ.Schema); c.schema[run] != "" && got != c.schema[run] {
				t.Errorf("%s, run %d: the schema is\n\t%s, Debezium's\n\t%s", c.definition, run, got, c.schema[run])
				continue
			}
			for _, r := range c.rows {
				values++
				got := func() string {
					var v any
					if r.raw != nil {
						var err error
						if v, err = typ.Parse(r.raw); err != nil {
							return "!" + err.Error()
						}
					}
					if v == nil && typ.Schema.HasDefault {
						v = typ.Schema.Default
					}
					return renderValue(typ.Schema, v)
				}()
				want := r.value[run]
				switch {
				case strings.Contains(c.definition, "serial"), strings.Contains(c.definition, "IDENTITY"): // another number in each run
					if run > 0 {
						continue
					}
				case strings.HasPrefix(want, "died "), strings.Contains(want, "[Ljava.lang."):
					if !strings.HasPrefix(got, "!") {
						t.Errorf("%s, run %d: %q gives\n\t%s, Debezium\n\t%s", c.definition, run, r.raw, got, want)
					}
					continue
				}
				if got != want {
					t.Errorf("%s, run %d: %.60q gives\n\t%.300s, Debezium\n\t%.300s", c.definition, run, r.raw, got, want)
				}
				if typ.Text && r.raw != nil && want != quote(string(r.raw)) {
					t.Errorf("%s, run %d: Debezium does not take the text %q as it stands: %s", c.definition, run, r.raw, want)
				}
			}
		}
	}
	return values, absent
}
