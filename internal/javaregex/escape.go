package javaregex

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// escape translates an escape outside a class.
func (t *translator) escape(a *atom) error {
	anchor := func(s string, n int) error {
		a.assertion = true
		t.out.WriteString(s)
		t.i += n
		return nil
	}
	switch c := t.at(1); {
	case c == 'A' || c == 'z':
		return anchor(`\`+string(c), 2)
	case c == 'Z':
		t.endAnchor = true
		return anchor(`\z`, 2)
	case (c == 'b' || c == 'B') && t.at(2) != '{':
		t.wordAnchor = true
		return anchor(`\`+string(c), 2)
	case c == 'R':
		if t.look > 0 {
			return t.unsupported("this escape in a look-behind", 2)
		}
		t.out.WriteString(`(?:\r\n|`)
		vertical.write(&t.out)
		t.out.WriteByte(')')
		t.i += 2
		if q := t.at(0); q == '*' || q == '+' || q == '?' || q == '{' {
			return t.unsupported("a quantifier of \\R", 1)
		}
		return nil
	case c >= '1' && c <= '9' || c == 'k':
		a.matchEmpty = true
		return t.reference()
	}
	s, isClass, err := t.character()
	if err != nil {
		return err
	}
	if t.fold && !isClass {
		s = s.fold()
	}
	s.write(&t.out)
	return nil
}

// reference translates a back reference: \1 or \k<name>.
func (t *translator) reference() error {
	const what = "a back reference"
	n, length := 0, 2
	if t.at(1) == 'k' {
		end := slices.IndexFunc(t.in[t.i:], func(k token) bool { return k.r == '>' })
		if t.at(2) != '<' || end < 0 {
			return t.unsupported(what, 3)
		}
		n, length = t.names[text(t.in[t.i+3:t.i+end])], end+1
	} else {
		n = int(t.at(1) - '0')
		for c := t.at(length); c >= '0' && c <= '9' && 10*n+int(c-'0') <= t.groups; c = t.at(length) {
			n = 10*n + int(c-'0')
			length++
		}
	}
	switch {
	case n == 0 || n > t.groups:
		return t.unsupported("a reference to a group that is not before it", length)
	case t.fold:
		return t.unsupported(what+" with the flag i", length)
	case t.look > 0:
		return t.unsupported(what+" in a look-behind", length)
	case !t.backtracks:
		return errBacktracks
	}
	if slices.ContainsFunc(t.stack, func(f frame) bool { return strings.HasPrefix(t.out.String()[f.start:], "(?<"+strconv.Itoa(n)+">") }) {
		return t.unsupported("a reference to the group around it", length)
	}
	t.out.WriteString(`\k<` + strconv.Itoa(n) + `>`)
	t.i += length
	return nil
}

// classes are the escapes that stand for a class.
var classes = map[rune]set{
	'd': digits, 'D': digits.negate(), 'w': word, 'W': word.negate(), 's': spaces, 'S': spaces.negate(),
	'h': horizontal, 'H': horizontal.negate(), 'v': vertical, 'V': vertical.negate(),
}

// controls are the escapes that stand for a control character.
var controls = map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f', 'a': '\a', 'e': 0x1B}

// character reads an escape that stands for one character or for a class, inside or outside a
// class.
func (t *translator) character() (s set, isClass bool, err error) {
	if t.i+1 == len(t.in) {
		return nil, false, errors.New("nothing follows the last backslash")
	}
	c := t.in[t.i+1].r
	take := func(n int, s set, class bool) (set, bool, error) {
		t.i += n
		return s, class, nil
	}
	if s, ok := classes[c]; ok {
		return take(2, s, true)
	}
	if r, ok := controls[c]; ok {
		return take(2, one(r), false)
	}
	switch c {
	case 'c':
		if r := t.at(2); r > 0 && r < 0x80 {
			return take(3, one(r^64), false)
		}
	case 'x', 'u':
		if n, length := t.hex(c); length > 0 {
			return take(length, one(n), false)
		}
	case '0':
		n, length := rune(0), 2
		for d := t.at(length); d >= '0' && d <= '7' && length < 5 && 8*n+d-'0' <= 0o377; d = t.at(length) {
			n = 8*n + d - '0'
			length++
		}
		if length > 2 {
			return take(length, one(n), false)
		}
	case 'p', 'P':
		name, length := string(t.at(2)), 3
		if name == "{" {
			end := slices.IndexFunc(t.in[t.i:], func(k token) bool { return k.r == '}' })
			if end < 0 {
				return nil, false, fmt.Errorf(`\%c{ without } at character %d`, c, t.i+1)
			}
			name, length = text(t.in[t.i+3:t.i+end]), end+1
		}
		s, ok := property(name, t.fold)
		if !ok {
			return nil, false, t.unsupported("this property", length)
		}
		if c == 'P' {
			s = s.negate()
		}
		return take(length, s, true)
	default:
		if !isWord(c) || c == '_' {
			return take(2, one(c), false)
		}
	}
	return nil, false, t.unsupported("this escape", 2)
}

// hex reads \xhh, \x{h…} and \uhhhh. length is 0 if the escape is invalid.
func (t *translator) hex(c rune) (n rune, length int) {
	from, to := 2, 4
	switch {
	case c == 'u':
		to = 6
	case t.at(2) == '{':
		from = 3
		for to = from; t.at(to) != '}' && to < from+6; to++ {
			if t.at(to) == 0 {
				return 0, 0
			}
		}
		if t.at(to) != '}' {
			return 0, 0
		}
	}
	if t.i+to > len(t.in) {
		return 0, 0
	}
	v, err := strconv.ParseUint(text(t.in[t.i+from:t.i+to]), 16, 32)
	if err != nil || v > maxRune || v >= 0xD800 && v < 0xE000 {
		return 0, 0 // half of a surrogate pair is no character here
	}
	if from == 3 {
		to++
	}
	return rune(v), to
}
