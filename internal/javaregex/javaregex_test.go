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
		// Look-around, back references, atomic groups and possessive quantifiers take the other
		// engine.
		{`(?!internal)(.*)`, "t.$1", "order", "t.order"},
		{`(?!internal)(.*)`, "t.$1", "internal.x", "internal.x"},
		{`(.*)(?<!-v1)`, "t.$1", "order-v2", "t.order-v2"},
		{`(.*)(?<!-v1)`, "t.$1", "order-v1", "order-v1"},
		{`(?<a>\w)(.)\1\k<a>`, "$2${a}", "a-aa", "-a"},
		{`(a++)b?`, "<$1>", "aab", "<aa>"},
		{`a*+a`, "x", "aaa", "aaa"},
		{`(?>a|ab)c`, "x", "abc", "abc"},
		{`(?=.*é)(.*)`, "<$1>", "😀é", "<😀é>"},
		{`(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10`, "$10", "abcdefghijj", "j"},
		{`(a)\11`, "$1", "aa1", "a"},               // as many digits as there are groups
		{`(?<n>b)?(a)\2`, "$1${n}-$2", "aa", "-a"}, // named groups count with the others
		{`(?i)(order)(?-i)X`, "$1", "oRdErX", "oRdEr"},
		{`(?i)[a-c&&[^b]]+`, "x", "aC", "x"},
		{`(?i)k`, "x", "\u212a", "\u212a"},
		{`(?i)order-(\p{Alpha}+)`, "$1", "ORDER-New", "New"},
		{`(?i)\p{Lower}`, "x", "A", "x"}, // since Java 16
		{`(?i)[\p{Lu}]+`, "x", "äÄǅ", "x"},
		{`(?i)\P{IsLt}`, "x", "ä", "ä"},
		{`(?i)\p{IsGreek}\p{Digit}`, "x", "λ1", "x"},
		{`(?s).`, "x", "\n", "x"},
		{`[a-z&&[^aeiou]]+`, "x", "xyz", "x"},
		{`[a-c[x-z]]+`, "x", "ax", "x"},
		{`\p{Alpha}+`, "x", "ab", "x"},
		{`\bx\b`, "y", "x", "y"},
		{`a\Z`, "y", "a", "y"},
		{`a{1001}`, "y", strings.Repeat("a", 1001), "y"},
		{`\R`, "y", "\r\n", "y"},
		{`\0101\x{42}`, "y", "AB", "y"},
	} {
		if got, err := replace(c.regex, c.replacement, c.value); got != c.want || err != nil {
			t.Errorf("%q → %q of %q: %q, %v; want %q", c.regex, c.replacement, c.value, got, err, c.want)
		}
	}
}

func TestPatternWithoutACounterpartIsRefused(t *testing.T) {
	for regex, want := range map[string]string{
		"(?m)^a": "inline flag", "(?u)a": "inline flag", "(?x) a": "inline flag", `\G`: "escape", `\X`: "escape", `\N{SPACE}`: "escape", `\b{g}`: "escape", `\8`: "is not before it",
		`\1(a)`: "is not before it", `(a\1)`: "the group around it", `(?i)(a)\1`: "flag i", `(?<=(a))b`: "look-around", `(?!(a))b`: "look-around", `(?=(a))b`: "look-around", `(?>(a)b)`: "atomic", `(a)*+`: "possessive", `(?<=a+)b`: "look-behind",
		`(?<=(?:ab){2})`: "look-behind", `(a*)*`: "can match nothing", `(?:a?)+`: "can match nothing", `(?:(a)|b?){2,}`: "can match nothing", `^*`: "quantifier of an anchor", `\R+`: "quantifier of", "a**": "quantifier of a quantifier",
		"[a&&b&&c]": "intersection", "[a&&[b]c]": "intersection", "[a&&]": "intersection", `[\w-z]`: "start of a range", "[z-a]": "range", `\p{C}`: "property", `\p{InGreek}`: "property",
		`x{,3}`: "quantifier", "x{3,2}": "quantifier", "[]a]": "start of a class", "*a": "of nothing", "(": "without )", ")": "without (", "[a": "without ]", `a\`: "last backslash",
		"(?<1a>b)": "group name", "(?<a>b)(?<a>c)": "twice", `\uD83D`: "escape", `\q`: "escape", `\p{Lu`: "without }",
	} {
		if _, err := Compile(regex); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", regex, err, want)
		}
	}
	for repl, want := range map[string]string{
		"$": "follows the last $", `\`: "last backslash", "$2": "no group 2", "${x}": `called "x"`, "${x": "without }", "$x": "not a group",
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

// A database with the encoding SQL_ASCII gives whatever bytes were written. Neither engine of
// regular expressions is trusted with them.
func TestValueThatIsNotUTF8IsRefused(t *testing.T) {
	for _, regex := range []string{"0.++", ".*"} {
		if got, err := replace(regex, "0", "0>\b\x9ah2"); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
			t.Errorf("%s: %q, %v", regex, got, err)
		}
	}
}

// A regex that backtracks for ever must not hold the relay for ever.
func TestCatastrophicBacktrackingEnds(t *testing.T) {
	if got, err := replace(`(?:(?:x+x+)+)(?=y)z`, "y", strings.Repeat("x", 64)); err == nil || !strings.Contains(err.Error(), "timeout") {
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
