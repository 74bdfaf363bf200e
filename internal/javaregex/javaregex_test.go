package javaregex

import (
	"strings"
	"testing"
)

// replace compiles a pattern and a replacement and applies them to a value.
func replace(regex, replacement, value string) (string, error) {
	re, err := Compile(regex)
	if err != nil {
		return "", err
	}
	r, err := re.Replacement(replacement)
	if err != nil {
		return "", err
	}
	return re.ReplaceIfMatches(value, r)
}

// The wanted texts are what java.util.regex returns for matches() and then replaceFirst().
func TestPatternsMeanWhatTheyMeanInJava(t *testing.T) {
	for _, c := range []struct{ regex, replacement, value, want string }{
		{"(?<routedByValue>.*)", "outbox.event.${routedByValue}", "User", "outbox.event.User"},
		{"(.*)", "$1$1", "ab", "abab"},
		{"(a)(b)", "$21", "ab", "b1"},      // there is no group 21: $2, then 1
		{"(a)(b)", `\$1\\x`, "ab", `$1\x`}, // escaped
		{"(a)|(b)", "<$1$2>", "b", "<b>"},  // a group that took no part is empty
		{"^(.*)$", "x.$1", "ab", "x.ab"},
		{`a\.b`, "x", "a.b", "x"},
		{`[\s]x`, "y", "\x0Bx", "y"}, // Java's \s has the vertical tab
		{`\sx`, "y", "\x0Bx", "y"},
		{`.`, "y", "\u2028", "\u2028"}, // a line terminator is not in the dot
		{`\Qa.b\E.*`, "y", "a.bc", "y"},
		{`\Qa.b\E.*`, "y", "axbc", "axbc"},
		{`a{2}`, "y", "aa", "y"},
		{`\u0061+`, "y", "aaa", "y"},
		{`\p{Lu}.*`, "y", "Äb", "y"},
		{`[^a-c]+`, "y", "xyz", "y"},
		{``, "y", "abc", "abc"},
		{`(.*?)-.*`, "$1", "a-b-c", "a"},
		{`.*?`, "y", "abc", "yabc"}, // find() takes the empty match first
		{`(?i)(order)(?-i)X`, "$1", "oRdErX", "oRdEr"},
		{`(?i)k`, "x", "\u212a", "\u212a"}, // the sign of kelvin is a K for Go
		{`(?i)[^k]`, "x", "\u212a", "x"},
		{`(?i)[X-c]+`, "x", "xzAC_", "x"},
		{`(?i)ä`, "x", "Ä", "Ä"},
		{`(?i)k(?s-i:k.)(?-s).k`, "x", "Kk\n.K", "x"},
		{`\h\S`, "x", "\u00a0\u00a0", "x"},
		{`(?i)order-(\p{Alpha}+)`, "$1", "ORDER-New", "New"},
		{`(?s).`, "x", "\n", "x"},
		{`\p{Alpha}+`, "x", "ab", "x"},
		{`\bx\b`, "y", "x", "y"},
		{`a\Z`, "y", "a", "y"},
		{`\0101\x{42}`, "y", "AB", "y"},
	} {
		if got, err := replace(c.regex, c.replacement, c.value); got != c.want || err != nil {
			t.Errorf("%q → %q of %q: %q, %v; want %q", c.regex, c.replacement, c.value, got, err, c.want)
		}
	}
}

// The error names the part that has no counterpart.
func TestPatternWithoutACounterpartIsRefused(t *testing.T) {
	for regex, want := range map[string]string{
		"(?=a)b": "(?=a", "(?!a)b": "(?!a", "a(?<=a)": "(?<=", "a(?<!b)": "(?<!", "(?>a)b": "(?>a",
		`(a)\1`: `\\1`, `(?<n>a)\k<n>`: `\\k`, "xa++": "++", "a*+": "*+", "a?+": "?+", "a{2}+": "{2}+", "a**": "**",
		"x[a&&b]": `"[a&&"`, "[a-c[x-z]]": `"[a-c["`, "[]a]": `"[]"`, `[\w-z]`: `"[\\w-z"`, "[z-a]": `"[z-a"`,
		"(?m)^a": "(?m", "(?u)a": "(?u", "(?x) a": "(?x", `\G`: `\\G`, `\X`: `\\X`, `\N{SPACE}`: `\\N`, `\b{g}`: "{g}", `\R`: `\\R`, `\v`: `\\v`, `\H`: `\\H`, `\q`: `\\q`, `\cA`: `\\c`, `\uD83D`: `\\uD83D`,
		`\p{C}`: `\\p{C}`, `\p{InGreek}`: `\\p{InGreek}`, `\p{IsGreek}`: `\\p{IsGreek}`, `(?i)\p{Lu}`: `\\p{Lu}`, `(?i)\P{Lower}`: `\\P{Lower}`,
		`(a*)*`: `"*"`, `(?:a?)+`: `"+"`, `(?:(a)|b?){2,}`: `"{2,}"`, `^*`: `"*"`,
		`x{,3}`: "{,3}", "x{02}": "{02}", "x{3,2}": "{3,2}", "a{1001}": "{1001}", "*a": "*a",
		"(": "without )", ")": "without (", "[a": "without ]", `a\`: "last backslash", "(?<1a>b)": "(?<", "(?<a_b>b)": "(?<", "(?<a>b)(?<a>c)": "twice", "(?:(b))*": "begin it with", "((a)b){2}": "begin it with", `\p{Lu`: `\\p`,
	} {
		if _, err := Compile(regex); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %s", regex, err, want)
		}
	}
	for repl, want := range map[string]string{
		"$": "no group follows", `\`: "last backslash", "$2": "no group 2", "${x}": `called "x"`, "${x": "no group follows", "$x": "no group follows",
	} {
		if _, err := replace("(a)", repl, "a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("replacement %q: %v, want an error with %q", repl, err, want)
		}
	}
}

func TestValueThatEndsInALineTerminatorAndDollar(t *testing.T) {
	if got, err := replace(`[\s\w]*?$`, "x", "a\n"); err == nil || !strings.Contains(err.Error(), "line terminator") {
		t.Errorf("%q, %v; Java's $ means something else there", got, err)
	}
}

func TestWordBoundaryBeyondASCIIIsAnError(t *testing.T) {
	if got, err := replace(`\bx.*`, "y", "xé"); err == nil || !strings.Contains(err.Error(), "not ASCII") {
		t.Errorf("%q, %v; what \\b means there depends on the version of Java", got, err)
	}
}

// A database with the encoding SQL_ASCII gives whatever bytes were written.
func TestValueThatIsNotUTF8IsRefused(t *testing.T) {
	if got, err := replace(".*", "0", "0>\b\x9ah2"); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzReplace(f *testing.F) {
	for _, s := range []string{`(?<routedByValue>.*)`, `(\w+)-(\d+)`, `[a-z&&[^b]]`, `\Q.\E`, `a{2,3}?`} {
		f.Add(s, "$1", "order")
	}
	f.Fuzz(func(t *testing.T, regex, replacement, value string) {
		a, errA := replace(regex, replacement, value)
		b, errB := replace(regex, replacement, value)
		if a != b || (errA == nil) != (errB == nil) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}
