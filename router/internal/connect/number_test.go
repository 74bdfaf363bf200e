package connect

import (
	"bufio"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func ourNumber(question string) string {
	kind, text, _ := strings.Cut(question, "\t")
	if kind == "float" {
		f, _ := strconv.ParseFloat(text, 32) //nolint:errcheck // beyond the range it is an infinity
		return string(appendFloat(nil, float32(f)))
	}
	f, _ := strconv.ParseFloat(text, 64) //nolint:errcheck // as above
	return string(appendDouble(nil, f))
}

func (g generator) number() string {
	if g.one(2) {
		return "float\t" + strings.ReplaceAll(strconv.FormatFloat(float64(g.float()), 'g', -1, 32), "Inf", "Infinity")
	}
	return "double\t" + strings.ReplaceAll(strconv.FormatFloat(g.double(), 'g', -1, 64), "Inf", "Infinity")
}

// TestGoldensOfNumbers holds the numbers to what Java 25 said. The file says too where Java 17 is of another opinion.
func TestGoldensOfNumbers(t *testing.T) {
	file := filepath.Join("testdata", "numbers.txt")
	if *update && *oracle != "" {
		var questions []string
		for _, n := range []string{
			"0", "-0", "1", "10", "100", "0.1", "0.001", "0.00099999999", "9999999", "9999999.999", "1e7", "1.5e300", "4.9e-324", "1e-323", "2e-323", "1.7976931348623157e308", "2.2250738585072014e-308",
			"1e23", "2e23", "8.41e21", "2e-3", "5e-324", "9007199254740993", "2.0e-3", "1.1e-3", "1e21", "123456789.123456789", "0.000244140625", "4.5035996273704955e15", "2.98023223876953125e-8",
			"1e-45", "2.8e-45", "3.4028235e38", "1.17549435e-38", "1.0e10", "3.3e33", "8.5e9", "1.1", "16777216", "33554432", "0.3", "1e22", "9.999999e-4",
		} {
			questions = append(questions, "double\t"+n, "float\t"+n)
		}
		g := newGenerator(1)
		for len(questions) < 500 {
			questions = append(questions, g.number())
		}
		java, older := ask(t, questions), make([][]answer, len(questions))
		if *oracleOlder != "" {
			older = askJava(t, *oracleOlder, nil, questions)
		}
		var b strings.Builder
		b.WriteString("# What Double.toString and Float.toString of Java 25 give, and of Java 17 where that differs.\n" +
			"# go test ./router/internal/connect -run Goldens -update -oracle <a java of 19 or newer> -oracle.older <a java of 18 or older>\n\n")
		for i, q := range questions {
			theirs, _ := java[i][0].text()
			fmt.Fprintf(&b, "%s → %s", strings.Replace(q, "\t", " ", 1), theirs)
			if older[i] != nil && older[i][0] != java[i][0] {
				old, _ := older[i][0].text()
				b.WriteString(", Java 17: " + old)
			}
			b.WriteByte('\n')
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, older := 0, 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		question, java, ok := strings.Cut(lines.Text(), " → ")
		if !ok {
			continue
		}
		java, old, differs := strings.Cut(java, ", Java 17: ")
		us := ourNumber(strings.Replace(question, " ", "\t", 1))
		if us != java {
			t.Errorf("%s: Java says %s, we say %s", question, java, us)
		}
		if n++; differs {
			if older++; us == old {
				t.Errorf("%s: %s is what Java 17 says", question, us)
			}
		}
	}
	if n < 500 || older < 10 {
		t.Errorf("only %d numbers, %d of them with another text in Java 17", n, older)
	}
}

// TestNumbersAtRandom asks a Java, where -oracle is given.
func TestNumbersAtRandom(t *testing.T) {
	if *oracle == "" {
		t.Skip("no -oracle; testdata/numbers.txt holds what it said")
	}
	g := newGenerator(seed(t))
	var questions []string
	for range 10 * *oracleN {
		questions = append(questions, g.number())
	}
	wrong := 0
	for i, java := range ask(t, questions) {
		if theirs, _ := java[0].text(); theirs != ourNumber(questions[i]) {
			t.Errorf("%s: Java says %s, we say %s", questions[i], theirs, ourNumber(questions[i]))
			if wrong++; wrong > 20 {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d numbers", len(questions))
}

// TestNumbersReadBack: whatever the digits, they are the number.
func TestNumbersReadBack(t *testing.T) {
	g := newGenerator(3)
	for range 50_000 {
		d := g.double()
		if back, err := strconv.ParseFloat(strings.Replace(string(appendDouble(nil, d)), "Infinity", "Inf", 1), 64); err != nil || back != d && !math.IsNaN(d) {
			t.Fatalf("%v becomes %s", d, string(appendDouble(nil, d)))
		}
		f := g.float()
		if back, err := strconv.ParseFloat(strings.Replace(string(appendFloat(nil, f)), "Infinity", "Inf", 1), 32); err != nil || float32(back) != f && f == f {
			t.Fatalf("%v becomes %s", f, string(appendFloat(nil, f)))
		}
	}
}

func TestDecimalsAppendToWhatIsThere(t *testing.T) {
	for _, c := range []struct {
		unscaled int64
		scale    int32
		want     string
	}{{-12345, 2, "-123.45"}, {5, 7, "5E-7"}, {5, 6, "0.000005"}, {-5, 6, "-0.000005"}, {0, 2, "0.00"}, {0, 7, "0E-7"}, {12, -3, "1.2E+4"}, {1, -1, "1E+1"}, {0, 0, "0"}} {
		u := &Unscaled{Value: big.NewInt(c.unscaled), Scale: c.scale}
		if got := string(u.append([]byte("-1."))); got != "-1."+c.want {
			t.Errorf("%d with scale %d: %s, want -1.%s", c.unscaled, c.scale, got, c.want)
		}
	}
}
