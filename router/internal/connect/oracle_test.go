package connect

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walpost/walpost/internal/localpg"
)

var (
	update      = flag.Bool("update", false, "with -oracle: write testdata anew from what it answers")
	oracle      = flag.String("oracle", "", "a java of 19 or newer, to ask the real converters; javac must be there too")
	oracleOlder = flag.String("oracle.older", "", "with -update: a java of 18 or older, for the numbers that it prints otherwise")
	oracleSeed  = flag.Uint64("oracle.seed", 0, "seed of the questions for -oracle; 0 takes one from the clock")
	oracleN     = flag.Int("oracle.n", 20000, "how many questions of each kind for -oracle")
)

// converters are those that Oracle.java asks, in its order.
var converters = []string{"string", "simple", "json", "json with schemas", "json numeric", "bytes", "binary", "binary string", "binary json"}

func newConverters() []Converter {
	plain := JSONOptions{ReplaceNullWithDefault: true}
	return []Converter{
		NewString(), NewSimpleHeader(), NewJSON(plain), NewJSON(JSONOptions{Schemas: true, ReplaceNullWithDefault: true}),
		NewJSON(JSONOptions{Schemas: true, NumericDecimals: true}), NewByteArray(), NewBinary(nil), NewBinary(NewString()), NewBinary(NewJSON(plain)),
	}
}

// An answer is what a converter gives, as testdata writes it: "= text", "q " and a quoted text, "null", or "! " and the error.
type answer string

func answerOf(b []byte, null bool, err error) answer {
	switch {
	case err != nil:
		return answer("! " + strconv.QuoteToGraphic(err.Error()))
	case null:
		return "null"
	}
	s := string(b)
	if q := strconv.QuoteToGraphic(s); q != `"`+strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), `"`, `\"`)+`"` || s != strings.TrimSpace(s) {
		return answer("q " + q)
	}
	return answer("= " + s)
}

// text returns the bytes of an answer that has some.
func (a answer) text() (string, bool) {
	if s, ok := strings.CutPrefix(string(a), "= "); ok {
		return s, true
	}
	if s, ok := strings.CutPrefix(string(a), "q "); ok {
		u, err := strconv.Unquote(s)
		return u, err == nil
	}
	return "", false
}

func (a answer) failed() bool { return strings.HasPrefix(string(a), "! ") }

// ask returns the answers of Oracle.java, run by the java of -oracle.
func ask(t *testing.T, questions []string) [][]answer {
	t.Helper()
	return askJava(t, *oracle, nil, questions)
}

// askJava asks Oracle.java, or RegistryOracle.java where there is a converter with a registry.
func askJava(t *testing.T, java string, c *registryConverter, questions []string) [][]answer {
	t.Helper()
	cache, err := localpg.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	libs, err := filepath.Glob(filepath.Join(cache, "connect-*-debezium-*", "lib"))
	if err != nil || len(libs) == 0 {
		t.Fatalf("no Kafka Connect in %s: the tests of internal/parity that start one download it (%v)", cache, err)
	}
	lib := libs[len(libs)-1]
	path := filepath.Join(lib, "*") + ":" + filepath.Join(filepath.Dir(lib), "plugins", "debezium", "*")
	classes, run := t.TempDir(), []string{"Oracle"}
	sources := []string{filepath.Join("testdata", "Oracle.java")}
	if c != nil {
		path, run = *c.classPath+":"+path, append([]string{"RegistryOracle", c.class, c.provider}, c.options...)
		sources = append(sources, filepath.Join("testdata", "RegistryOracle.java"))
	}
	if out, err := exec.Command("javac", append([]string{"--release", "17", "-cp", path, "-d", classes}, sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("javac: %v\n%s", err, out)
	}
	cmd := exec.Command(java, append([]string{"-Xss8m", "-Xmx1g", "-Duser.timezone=UTC", "-cp", classes + ":" + path}, run...)...)
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", java, err, complaints.String())
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if version, err := strconv.Atoi(lines[0]); err != nil || version < 19 && java == *oracle {
		t.Fatalf("-oracle is Java %s: its numbers are others than those of Java 19 and newer, which Debezium's images run", lines[0])
	}
	if lines = lines[1:]; len(lines) != len(questions) {
		t.Fatalf("%d answers to %d questions", len(lines), len(questions))
	}
	all := make([][]answer, 0, len(lines))
	for _, line := range lines {
		var as []answer
		for _, field := range strings.Split(line, "\t") {
			kind, text, _ := strings.Cut(field, " ")
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			switch kind {
			case "0":
				as = append(as, "null")
			case "!":
				as = append(as, answerOf(nil, false, throw("%s", b)))
			default:
				as = append(as, answerOf(b, false, nil))
			}
		}
		all = append(all, as)
	}
	return all
}

// address is how Java prints a byte[]: never twice the same.
var address = regexp.MustCompile(`\[B@[0-9a-f]+`)

// judge says whether our answer is Java's. The address of a byte[] stands for any text; a message may be ours where Java's says
// nothing but a class.
func judge(java, us answer) bool {
	if java == us {
		return true
	}
	if address.MatchString(string(java)) {
		parts := address.Split(string(java), -1)
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return regexp.MustCompile("^" + strings.Join(parts, `[A-Za-z0-9+/=]*`) + "$").MatchString(string(us))
	}
	return false
}

func valueQuestion(s *Schema, v any) string {
	return "value\t" + schemaNotation(s) + "\t" + valueNotation(s, v)
}

// ourValues answers as Oracle.java does.
func ourValues(s *Schema, v any) []answer {
	var as []answer
	for _, c := range newConverters() {
		as = append(as, answerOf(c.Append(nil, "topic", s, v)))
	}
	return as
}

// writeGolden writes questions and answers of several fields.
func writeGolden(t *testing.T, file, title string, questions []string, answers [][]answer, names []string) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n# go test ./router/internal/connect -run Goldens -update -oracle <a java of 19 or newer>\n", title)
	for i, q := range questions {
		fmt.Fprintf(&b, "\n%s\n", q)
		for k, a := range answers[i] {
			fmt.Fprintf(&b, "  %-18s%s\n", names[k], address.ReplaceAllString(string(a), "[B@0"))
		}
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readGolden calls f with each question and its answers.
func readGolden(t *testing.T, file string, names []string, f func(question string, answers []answer)) (n int) {
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	var question string
	var answers []answer
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "  "):
			if want := fmt.Sprintf("  %-18s", names[len(answers)]); !strings.HasPrefix(line, want) {
				t.Fatalf("%s: want %q here: %s", question, want, line)
			}
			if answers = append(answers, answer(line[20:])); len(answers) == len(names) {
				f(question, answers)
				n++
			}
		default:
			question, answers = line, nil
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestGoldensOfConverters holds the converters to what the real ones gave.
func TestGoldensOfConverters(t *testing.T) {
	file := filepath.Join("testdata", "converters.txt")
	if *update && *oracle != "" {
		questions := append([]string(nil), cornerValues...)
		for i, q := range questions {
			questions[i] = "value\t" + q
		}
		g := newGenerator(1)
		for len(questions) < 400 {
			s := g.schema(2)
			if q := valueQuestion(s, g.value(s)); len(q) < 600 {
				questions = append(questions, q)
			}
		}
		writeGolden(t, file, "What the converters of Kafka Connect 4.3 and Debezium 3.6.1 make of values.", questions, ask(t, questions), converters)
	}
	n := readGolden(t, file, converters, func(question string, answers []answer) {
		fields := strings.Split(question, "\t")
		s := parseSchema(t, []byte(fields[1]))
		compare(t, question, answers, ourValues(s, parseValue(t, s, []byte(fields[2]))))
	})
	if n < 400 {
		t.Errorf("only %d cases", n)
	}
}

func compare(t *testing.T, question string, java, us []answer) (wrong bool) {
	t.Helper()
	for i := range java {
		if !judge(java[i], us[i]) {
			t.Errorf("%s\n%s\n  Java: %.3000s\n  we:   %.3000s", question, converters[i], java[i], us[i])
			wrong = true
		}
	}
	return wrong
}

func seed(t *testing.T) uint64 {
	s := *oracleSeed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-oracle.seed %d", s)
	return s
}

// atRandom returns questions about values for an oracle, and our answers.
func atRandom(t *testing.T, random func(seed uint64) generator, answers func(*Schema, any) []answer) (questions []string, ours [][]answer) {
	t.Helper()
	g := random(seed(t))
	for range *oracleN {
		s := g.schema(1 + g.IntN(4))
		v := g.value(s)
		questions = append(questions, valueQuestion(s, v))
		ours = append(ours, answers(s, v))
	}
	return questions, ours
}

// TestConvertersAtRandom asks the real converters, where -oracle is given.
func TestConvertersAtRandom(t *testing.T) {
	if *oracle == "" {
		t.Skip("no -oracle; testdata/converters.txt holds what it said")
	}
	questions, ours := atRandom(t, newGenerator, ourValues)
	wrong := 0
	for i, java := range ask(t, questions) {
		if compare(t, questions[i], java, ours[i]) {
			if wrong++; wrong > 10 {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d values by %d converters", len(questions), len(converters))
}

// canonical is JSON without the order of members, nor that of the fields of a schema.
func canonical(text string) string {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return "no JSON: " + text
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
			if fields, ok := v["fields"].([]any); ok && v["type"] == "struct" {
				sort.Slice(fields, func(i, k int) bool { return fmt.Sprint(fields[i]) < fmt.Sprint(fields[k]) })
			}
		}
	}
	walk(v)
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
