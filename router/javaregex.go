package router

import (
	"errors"
	"fmt"
	"strings"
)

// translate turns a java.util.regex pattern into one of Go's syntax with the same meaning, or says why there is none.
// endAnchor says that the pattern has a $: Java's also matches before a final line terminator, Go's does not; the caller
// must not use the result on a value that ends in one.
//
// What differs (java.util.regex.Pattern's documentation against RE2's syntax): the dot excludes five line terminators and not
// one; \s has the vertical tab; \b, (?i) and the POSIX classes have other alphabets; classes can be nested and intersected;
// look-around, back references, possessive quantifiers and atomic groups have no counterpart.
func translate(java string) (pattern string, endAnchor bool, err error) {
	t := translator{in: java}
	if err := t.run(); err != nil {
		return "", false, err
	}
	return t.out.String(), t.end, nil
}

type translator struct {
	in  string
	i   int
	out strings.Builder
	end bool
}

var errUnsupported = errors.New("is not supported")

func (t *translator) unsupported(what string, n int) error {
	return fmt.Errorf("%s (%q at character %d) %w: it has no counterpart with the same meaning here",
		what, t.in[t.i:min(len(t.in), t.i+n)], t.i+1, errUnsupported)
}

func (t *translator) peek(s string) bool { return strings.HasPrefix(t.in[t.i:], s) }

func (t *translator) run() error {
	quantified := false // the last thing was a quantifier: + behind it makes it possessive
	for t.i < len(t.in) {
		was := quantified
		quantified = false
		switch c := t.in[t.i]; c {
		case '\\':
			if err := t.escape(false); err != nil {
				return err
			}
		case '[':
			if err := t.class(); err != nil {
				return err
			}
		case '(':
			if err := t.group(); err != nil {
				return err
			}
		case '.':
			t.out.WriteString(`[^\n\r\x{85}\x{2028}\x{2029}]`)
			t.i++
		case '$':
			t.end = true
			t.out.WriteString(`\z`)
			t.i++
		case '^':
			t.out.WriteString(`\A`)
			t.i++
		case '*', '+', '?':
			if was && c == '+' {
				return t.unsupported("a possessive quantifier", 1)
			}
			t.out.WriteByte(c)
			t.i++
			if !was || c != '?' {
				quantified = true
			}
		case '{':
			n := quantifier(t.in[t.i:])
			if n == 0 {
				return t.unsupported("a { that is not a quantifier", 4)
			}
			t.out.WriteString(t.in[t.i : t.i+n])
			t.i += n
			quantified = true
		default:
			t.out.WriteByte(c)
			t.i++
		}
	}
	return nil
}

// quantifier is the length of {n}, {n,} or {n,m} at the start of s, else 0.
func quantifier(s string) int {
	i, digits, comma := 1, 0, false
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c == ',' && !comma && digits > 0:
			comma = true
		case c == '}' && digits > 0:
			return i + 1
		default:
			return 0
		}
	}
	return 0
}

func (t *translator) group() error {
	switch {
	case !t.peek("(?"):
		t.out.WriteByte('(')
		t.i++
	case t.peek("(?:"):
		t.out.WriteString("(?:")
		t.i += 3
	case t.peek("(?=") || t.peek("(?!") || t.peek("(?<=") || t.peek("(?<!"):
		return t.unsupported("look-around", 4)
	case t.peek("(?>"):
		return t.unsupported("an atomic group", 3)
	case t.peek("(?<"):
		end := strings.IndexByte(t.in[t.i:], '>')
		if end < 0 {
			return fmt.Errorf("group name without > at character %d", t.i+1)
		}
		name := t.in[t.i+3 : t.i+end]
		for i := range len(name) {
			c := name[i]
			if letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'; !letter && (i == 0 || c < '0' || c > '9') {
				return fmt.Errorf("group name %q: it must be letters and digits, a letter first", name)
			}
		}
		t.out.WriteString("(?P<" + name + ">")
		t.i += end + 1
	default:
		return t.unsupported("an inline flag", 4)
	}
	return nil
}

// space is Java's \s: without flags it has the vertical tab, which RE2's has not.
const space = `\t\n\x0B\f\r `

// escape translates what begins with a backslash; in a class where inClass is set.
func (t *translator) escape(inClass bool) error {
	if t.i+1 == len(t.in) {
		return errors.New("nothing behind the last backslash")
	}
	c := t.in[t.i+1]
	write := func(s string, n int) error {
		t.out.WriteString(s)
		t.i += n
		return nil
	}
	switch {
	case c == 's' && inClass:
		return write(space, 2)
	case c == 's':
		return write("["+space+"]", 2)
	case c == 'S' && !inClass:
		return write("[^"+space+"]", 2)
	case strings.IndexByte("dDwW", c) >= 0, strings.IndexByte("tnrfa", c) >= 0:
		return write(t.in[t.i:t.i+2], 2)
	case (c == 'A' || c == 'z') && !inClass:
		return write(t.in[t.i:t.i+2], 2)
	case c == 'e':
		return write(`\x1B`, 2)
	case c == 'x' && len(t.in) >= t.i+4 && isHex(t.in[t.i+2:t.i+4]):
		return write(t.in[t.i:t.i+4], 4)
	case c == 'u' && len(t.in) >= t.i+6 && isHex(t.in[t.i+2:t.i+6]):
		if strings.EqualFold(t.in[t.i+2:t.i+3], "d") && t.in[t.i+3] >= '8' {
			return t.unsupported("half of a surrogate pair", 6)
		}
		return write(`\x{`+t.in[t.i+2:t.i+6]+`}`, 6)
	case c == 'Q':
		text, rest := t.in[t.i+2:], len(t.in)
		if end := strings.Index(text, `\E`); end >= 0 {
			text, rest = text[:end], t.i+2+end+2
		}
		for _, r := range text {
			if r < 0x80 && strings.ContainsRune(`\.+*?()|[]{}^$-`, r) {
				t.out.WriteByte('\\')
			}
			t.out.WriteRune(r)
		}
		t.i = rest
		return nil
	case (c == 'p' || c == 'P') && generalCategory(t.in[t.i+2:]) > 0:
		n := 2 + generalCategory(t.in[t.i+2:])
		return write(t.in[t.i:t.i+n], n)
	case c >= '1' && c <= '9' || c == 'k':
		return t.unsupported("a back reference", 3)
	case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '0':
		return t.unsupported("this escape", 2)
	case c >= 0x80:
		return write("", 1)
	}
	return write(t.in[t.i:t.i+2], 2)
}

func isHex(s string) bool {
	for i := range len(s) {
		if strings.IndexByte("0123456789abcdefABCDEF", s[i]) < 0 {
			return false
		}
	}
	return true
}

// generalCategory is the length of L, {L} or {Lu} at the start of s where that is a Unicode general category, else 0.
func generalCategory(s string) int {
	const major = "LMNZSPC"
	if len(s) > 0 && strings.IndexByte(major, s[0]) >= 0 {
		return 1
	}
	end := strings.IndexByte(s, '}')
	if len(s) == 0 || s[0] != '{' || end < 2 || end > 3 || strings.IndexByte(major, s[1]) < 0 {
		return 0
	}
	if end == 3 && (s[2] < 'a' || s[2] > 'z') {
		return 0
	}
	return end + 1
}

func (t *translator) class() error {
	t.out.WriteByte('[')
	t.i++
	if t.peek("^") {
		t.out.WriteByte('^')
		t.i++
	}
	if t.peek("]") {
		return t.unsupported("a ] at the start of a class", 1)
	}
	for t.i < len(t.in) {
		switch c := t.in[t.i]; {
		case c == ']':
			t.out.WriteByte(']')
			t.i++
			return nil
		case c == '[':
			return t.unsupported("a class within a class", 2)
		case t.peek("&&"):
			return t.unsupported("an intersection of classes", 2)
		case c == '\\':
			if err := t.escape(true); err != nil {
				return err
			}
		default:
			t.out.WriteByte(c)
			t.i++
		}
	}
	return errors.New("a class without ]")
}
