package javaregex

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	update   = flag.Bool("update", false, "with -java: write testdata/regex.txt anew")
	javaBin  = flag.String("java", "", "the path of a java to ask: for testdata/regex.txt with -update, else at random")
	javaSeed = flag.Uint64("java.seed", 0, "the seed of the questions for -java; 0 takes one from the clock")
	javaN    = flag.Int("java.n", 20000, "the number of questions for -java")
)

// A question is a kind and its fields. testdata/Oracle.java answers it.
type question []string

func (q question) String() string {
	s := q[0]
	for _, field := range q[1:] {
		s += " " + strconv.Quote(field)
	}
	return s
}

// askJava returns Java's answers; one that begins with "!" is an exception.
func askJava(t *testing.T, questions []question) []string {
	t.Helper()
	var in bytes.Buffer
	for _, q := range questions {
		fmt.Fprint(&in, q[0])
		for _, field := range q[1:] {
			fmt.Fprintf(&in, " %x", field)
		}
		in.WriteByte('\n')
	}
	cmd := exec.Command(*javaBin, "-Xss16m", filepath.Join("testdata", "Oracle.java"))
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", *javaBin, err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(questions) {
		t.Fatalf("%d answers to %d questions", len(lines), len(questions))
	}
	for i, line := range lines {
		if text, ok := strings.CutPrefix(line, "= "); ok {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			lines[i] = strconv.Quote(string(b))
		}
	}
	return lines
}

// ours answers as askJava does.
func ours(q question) string {
	text, err := replace(q[1], q[2], q[3])
	if err != nil {
		return "refused: " + err.Error()
	}
	return strconv.Quote(text)
}

// judge says what is wrong with our answer. We may refuse what Java answers, but must not answer
// differently.
func judge(q question, java, us string) string {
	if us == java || strings.HasPrefix(us, "refused: ") {
		return ""
	}
	return fmt.Sprintf("%s\n\tJava says %s\n\twe say    %s", q, java, us)
}

// TestJavaSaysTheSame compares our answers with the answers of Java in testdata/regex.txt.
func TestJavaSaysTheSame(t *testing.T) {
	file := filepath.Join("testdata", "regex.txt")
	if *update && *javaBin != "" {
		writeJavaGolden(t, file)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	total, refused := 0, 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		said, java, ok := strings.Cut(line, " → ")
		if !ok {
			t.Fatalf("not a question and an answer: %s", line)
		}
		q := parseQuestion(t, said)
		us := ours(q)
		if wrong := judge(q, java, us); wrong != "" {
			t.Error(wrong)
		}
		if total++; strings.HasPrefix(us, "refused: ") && !strings.HasPrefix(java, "!") {
			refused++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	// Refusing everything is never wrong, but these are patterns that people could write.
	if total < 800 || refused > total/10 {
		t.Errorf("%d questions; %d that Java answers are refused", total, refused)
	}
}

func parseQuestion(t *testing.T, s string) question {
	kind, rest, _ := strings.Cut(s, " ")
	q := question{kind}
	for rest != "" {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		field, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		q, rest = append(q, field), strings.TrimPrefix(rest[len(quoted):], " ")
	}
	return q
}

func writeJavaGolden(t *testing.T, file string) {
	random := rand.New(rand.NewPCG(1, 1))
	var questions []question
	for len(questions) < 1000 {
		q := regexQuestion(random)
		if len(questions)%8 > 0 { // most of them with a match, and known to us
			if us := ours(q); strings.HasPrefix(us, "refused") || us == strconv.Quote(q[3]) {
				continue
			}
		}
		questions = append(questions, q)
	}
	var b bytes.Buffer
	fmt.Fprintln(&b, "# What Java 17 says: go test ./internal/javaregex -run JavaSays -update -java <a java>")
	for i, answer := range askJava(t, questions) {
		fmt.Fprintf(&b, "%s → %s\n", questions[i], answer)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestJavaAtRandom compares our answers to random questions with those of the java that -java
// names.
func TestJavaAtRandom(t *testing.T) {
	if *javaBin == "" {
		t.Skip("no -java; testdata/regex.txt has the answers of one")
	}
	seed := *javaSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-java.seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	questions := make([]question, *javaN)
	for i := range questions {
		questions[i] = regexQuestion(random)
	}
	wrong, taken, matched := 0, 0, 0
	for i, java := range askJava(t, questions) {
		q := questions[i]
		us := ours(q)
		if !strings.HasPrefix(us, "refused") {
			taken++
			if java != strconv.Quote(q[3]) {
				matched++
			}
		}
		if text := judge(q, java, us); text != "" {
			if t.Error(text); wrong > 30 {
				t.Fatal("and so on")
			}
			wrong++
		}
	}
	t.Logf("%d of %d compared, the others refused; %d of them with a match", taken, len(questions), matched)
}

// regexQuestion makes a pattern of pieces that occur in patterns, a replacement and a value. Many
// patterns are invalid.
func regexQuestion(r *rand.Rand) question {
	pick := func(of []string) string { return of[r.IntN(len(of))] }
	// Most questions use pieces with a counterpart, so that there are answers to compare.
	tame := r.IntN(4) > 0
	quantifiers, odd, inClasses := quantifiers, odd, inClasses
	if tame {
		quantifiers, odd, inClasses = quantifiers[:12], odd[:19], inClasses[:29]
	}
	groups := 0
	var expr func(depth int) string
	expr = func(depth int) string {
		var b strings.Builder
		for range 1 + r.IntN(3) {
			switch n := r.IntN(20); {
			case n < 5 && depth > 0:
				opens := []string{"(", "(", "(?:", "(?<n" + strconv.Itoa(groups) + ">", "(?i:", "(?s:", "(?s-i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"}
				if tame {
					opens = opens[:7]
				}
				open := pick(opens)
				groups++
				b.WriteString(open + expr(depth-1) + ")")
			case n < 6 && depth > 0:
				b.WriteString(expr(depth-1) + "|" + expr(depth-1))
			case n < 9:
				b.WriteString("[" + pick([]string{"", "", "^"}) + pick(inClasses) + pick(append(inClasses, "", "", "")) + "]")
			case n < 10:
				b.WriteString(pick(odd))
			default:
				b.WriteString(pick(atoms))
			}
			if r.IntN(4) == 0 {
				b.WriteString(pick(quantifiers))
			}
		}
		return b.String()
	}
	regex := expr(3)
	if tame || r.IntN(4) == 0 {
		regex = pick([]string{"^", "", ".*?", "(.*)"}) + regex + pick([]string{"$", "", ".*", "(.*)"})
	}
	var value strings.Builder
	for range r.IntN(7) {
		value.WriteString(pick([]string{"a", "b", "c", "a", "b", "ab", "-", ".", "_", "1", "2", "A", "order", "\n", " ", "\v", "é", "😀", "\u0085", "\u2028", "]", "&", "{", "^", "\r\n"}))
	}
	return question{"regex", regex, pick(replacements), value.String()}
}

var (
	atoms        = []string{"a", "b", "c", "ab", "a", "b", ".", ".", "-", "_", `\.`, `\w`, `\d`, `\s`, `\W`, `\D`, `\S`, "1", "2", "é", "😀", "order", " ", `\-`, `\_`, "^", "$"}
	quantifiers  = []string{"*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,}", "{1,2}?", "{0}", "{02}", "*+", "++", "?+", "{1,2}+", "{2,1}", "{,2}", "**", "{2}{2}", "*{2}", "{1}?"}
	inClasses    = []string{"a", "b", "a-c", "0-9", "a-z", "-", ".", "_", `\w`, `\d`, `\s`, `\D`, `\W`, `\-`, `\]`, `\[`, `\^`, "^", "é", "😀", "&", `\x41-\x43`, " ", "{", "$", "|", "#", `\Qa-c\E`, `a-`, "&&b", "[b]", `\n`, `+--`, "z-a", `\u0061`, "&&", "&&[^b]", "&&[a-c]", "&&[^b]&&[^1]", "[^a]", `\p{Lu}`, `\P{Digit}`, `\h`, `\v`, "A-Z", `\011`, "a-"}
	odd          = []string{"(?i)", "(?-i)", `\b`, `(?i)\p{Alpha}`, `(?i:[^\p{Lm}-])`, `\P{Upper}`, `\Qa.b\E`, `\h`, `\p{L}`, `\p{Alpha}`, `\p{Lu}`, `\P{L}`, "(?s).", "()", "(|a)", `\Q\E`, `\Q-`, `\x41`, `\A`, `\1`, `\2`, `\k<n0>`, "(?=a)", "(?!a)", "(?>a)", "(?<=a)", "(?<!b)", "(?>a|ab)", `(?i:[^\p{Lt}-])`, `(?i)\P{Upper}`, `\R`, `\n`, `\t`, `\u0061`, `\pL`, `\z`, `\B`, `\Z`, `\V`, `\v`, `\H`, `\p{Punct}`, `\P{Alpha}`, `\p{IsL}`, `\x{1F600}`, `\011`, `\u00e9`, "]", "}", "{", "{2}", `\0101`, `\e`, `\a`, `\cA`, "&", "&&", `\ `, `\é`, "#", "(?m)^", `\p{IsLatin}`, `\N`, `\x{61}`}
	replacements = []string{"x", "$0", "<$1>", "$1$2", "$12", "${n0}", "${n1}.t", `\$1`, `\\`, "$", `\`, "${", "${}", "$a", "${n0", "a\\bc", "$9", "$01", "é$0", ""}
)
