package javaregex

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// A translation is a Java pattern in the syntax of one of the two engines.
type translation struct {
	pattern    string
	backtracks bool           // the pattern needs regexp2
	groups     int            // the number of capturing groups
	names      map[string]int // the numbers of the named groups

	// endAnchor is set if the pattern has a $ or \Z. In Java both also match before a line
	// terminator at the end of the value, but here they do not.
	endAnchor bool
	// wordAnchor is set if the pattern has a \b or \B. Outside ASCII, Java 19 changed what it
	// means.
	wordAnchor bool
	// looksBehind is set if the pattern has a look-behind. In Java a look-behind counts a character
	// above U+FFFF as two.
	looksBehind bool
}

// translate returns a pattern with the same meaning as the Java pattern. It prefers Go's own
// engine.
func translate(java string) (*translation, error) {
	in := tokens(java)
	t := translator{in: in}
	err := t.run()
	if err == nil {
		if _, wrong := syntax.Parse(t.out.String(), syntax.Perl); wrong != nil { // for example a{1001}
			err = errBacktracks
		}
	}
	if errors.Is(err, errBacktracks) {
		t = translator{in: in, translation: translation{backtracks: true}}
		err = t.run()
	}
	if err != nil {
		return nil, err
	}
	t.pattern = t.out.String()
	return &t.translation, nil
}

// errBacktracks means that only the backtracking engine can match the pattern.
var errBacktracks = errors.New("needs backtracking")

// A token is one character of a pattern.
type token struct {
	r      rune
	quoted bool // between \Q and \E: the character stands for itself
}

// tokens splits a pattern into characters and removes \Q and \E.
func tokens(java string) []token {
	var ts []token
	quoted := false
	for i, rs := 0, []rune(java); i < len(rs); i++ {
		escape := rs[i] == '\\' && i+1 < len(rs)
		switch {
		case quoted && escape && rs[i+1] == 'E':
			quoted = false
			i++
		case quoted:
			ts = append(ts, token{rs[i], true})
		case escape && rs[i+1] == 'Q':
			quoted = true
			i++
		case escape:
			ts = append(ts, token{r: rs[i]}, token{r: rs[i+1]})
			i++
		default:
			ts = append(ts, token{r: rs[i]})
		}
	}
	return ts
}

// A translator reads a pattern from left to right and writes the translation.
type translator struct {
	translation
	in  []token
	i   int // the index of the current token
	out strings.Builder

	fold, dotAll bool    // the flags i and s
	stack        []frame // the open groups
	look         int     // the number of open look-behinds
	closed       int     // the number of open look-arounds and atomic groups
	full         bool    // the current alternative cannot match the empty text
}

// A frame is an open group, with the state of the translator before the group.
type frame struct {
	start        int // the offset of the group's text in out
	fold, dotAll bool
	assertion    bool // the group is a look-around
	behind       bool // the group is a look-behind
	closed       bool // the group is a look-around or an atomic group
	groups       int  // the number of capturing groups before this group
	full         bool // translator.full before this group
	empty        bool // an alternative of the group can match the empty text
}

// An atom is a part of a pattern that a quantifier can follow.
type atom struct {
	start      int  // the offset of the atom's text in out
	assertion  bool // the atom matches no characters
	group      bool
	groups     int // the number of capturing groups in the atom
	matchEmpty bool
}

// unsupported is the error for n characters from the current one that cannot be translated.
func (t *translator) unsupported(what string, n int) error {
	return fmt.Errorf("%s (%q at character %d) is not supported: walpost has no counterpart with the same meaning",
		what, text(t.in[t.i:min(len(t.in), t.i+n)]), t.i+1)
}

// text is the characters of tokens.
func text(ts []token) string {
	var b strings.Builder
	for _, t := range ts {
		b.WriteRune(t.r)
	}
	return b.String()
}

// at returns the character n places after the current one, or 0 if there is none or it is quoted.
func (t *translator) at(n int) rune {
	if t.i+n >= len(t.in) || t.in[t.i+n].quoted {
		return 0
	}
	return t.in[t.i+n].r
}

// peek reports whether the characters from the current one on are those of s, none of them quoted.
func (t *translator) peek(s string) bool {
	for n, r := range []rune(s) {
		if t.at(n) != r {
			return false
		}
	}
	return true
}

// run translates the whole pattern.
func (t *translator) run() error {
	for t.i < len(t.in) {
		a := atom{start: t.out.Len()}
		switch c := t.at(0); c {
		case '|':
			t.out.WriteByte('|')
			t.i++
			t.alternative()
			continue
		case '(':
			if err := t.open(); err != nil {
				return err
			}
			continue
		case ')':
			if len(t.stack) == 0 {
				return t.unsupported("a ) without (", 1)
			}
			a = t.closeGroup()
		case '*', '+', '?', '{':
			return t.unsupported("a quantifier of nothing", 1)
		case '[':
			t.i++
			s, err := t.class(true)
			if err != nil {
				return err
			}
			s.write(&t.out)
		case '.':
			if t.dotAll {
				everything.write(&t.out)
			} else {
				terminators.negate().write(&t.out)
			}
			t.i++
		case '$':
			t.endAnchor, a.assertion = true, true
			t.out.WriteString(`\z`)
			t.i++
		case '^':
			a.assertion = true
			t.out.WriteString(`\A`)
			t.i++
		case '\\':
			var err error
			if err = t.escape(&a); err != nil {
				return err
			}
		default:
			t.literal(t.in[t.i].r)
			t.i++
		}
		empty, err := t.quantifier(a)
		if err != nil {
			return err
		}
		t.full = t.full || !empty
	}
	if len(t.stack) > 0 {
		return errors.New("a ( without )")
	}
	return nil
}

// literal writes one character that stands for itself.
func (t *translator) literal(r rune) {
	s := one(r)
	if t.fold {
		s = s.fold()
	}
	s.write(&t.out)
}

// alternative ends an alternative of the innermost group.
func (t *translator) alternative() {
	if n := len(t.stack); n > 0 && !t.full {
		t.stack[n-1].empty = true
	}
	t.full = false
}

// push opens a group.
func (t *translator) push(f frame) {
	t.stack = append(t.stack, f)
	t.full = false
}

// closeGroup reads the ) of the innermost group.
func (t *translator) closeGroup() atom {
	t.alternative()
	f := t.stack[len(t.stack)-1]
	t.stack = t.stack[:len(t.stack)-1]
	t.out.WriteByte(')')
	t.fold, t.dotAll, t.full = f.fold, f.dotAll, f.full
	if f.behind {
		t.look--
	}
	if f.closed {
		t.closed--
	}
	t.i++
	return atom{start: f.start, assertion: f.assertion, group: true, groups: t.groups - f.groups, matchEmpty: f.empty}
}

// Java keeps the text of such a group even if the match fails later; regexp2 does not.
const capturesInClosed = "a capturing group in a look-around or an atomic group"

// open reads the start of a group.
func (t *translator) open() (err error) {
	f := frame{start: t.out.Len(), fold: t.fold, dotAll: t.dotAll, groups: t.groups, full: t.full}
	capture := func(name string) {
		t.groups++
		if name != "" {
			if t.names == nil {
				t.names = map[string]int{}
			}
			t.names[name] = t.groups
		}
		if t.backtracks { // regexp2 would give named groups higher numbers than all others
			t.out.WriteString("(?<" + strconv.Itoa(t.groups) + ">")
		} else {
			t.out.WriteByte('(')
		}
	}
	around := func(syntax string) error {
		if !t.backtracks {
			return errBacktracks
		}
		t.out.WriteString(syntax)
		t.i += len(syntax)
		return nil
	}
	switch {
	case !t.peek("(?"):
		if t.closed > 0 {
			return t.unsupported(capturesInClosed, 1)
		}
		capture("")
		t.i++
	case t.peek("(?:"):
		t.out.WriteString("(?:")
		t.i += 3
	case t.peek("(?="), t.peek("(?!"):
		if t.look > 0 {
			return t.unsupported("a look-ahead in a look-behind", 3)
		}
		f.assertion, f.closed = true, true
		err = around(text(t.in[t.i : t.i+3]))
	case t.peek("(?<="), t.peek("(?<!"):
		f.assertion, f.behind, f.closed = true, true, true
		if err = around(text(t.in[t.i : t.i+4])); err == nil {
			t.look++
			t.looksBehind = true
		}
	case t.peek("(?>"):
		if t.look > 0 {
			return t.unsupported("an atomic group in a look-behind", 3)
		}
		f.closed = true
		err = around("(?>")
	case t.peek("(?<"):
		end := slices.IndexFunc(t.in[t.i:], func(k token) bool { return k.r == '>' })
		if end < 0 {
			return fmt.Errorf("group name without > at character %d", t.i+1)
		}
		name := text(t.in[t.i+3 : t.i+end])
		for i := range len(name) {
			c := name[i]
			if letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'; !letter && (i == 0 || c < '0' || c > '9') {
				return fmt.Errorf("group name %q: it must be letters and digits, and begin with a letter", name)
			}
		}
		if _, twice := t.names[name]; twice || name == "" {
			return fmt.Errorf("group name %q: the name is empty or occurs twice", name)
		}
		if t.closed > 0 {
			return t.unsupported(capturesInClosed, 3)
		}
		capture(name)
		t.i += end + 1
	default:
		return t.flags(f)
	}
	if err != nil {
		return err
	}
	if f.closed {
		t.closed++
	}
	t.push(f)
	return nil
}

// flags reads inline flags such as (?i), (?s-i) and (?i:…). The flags are not written: they change
// the characters that are written after them.
func (t *translator) flags(f frame) error {
	on := true
	for n := 2; ; n++ {
		switch c := t.at(n); c {
		case '-':
			if !on {
				return t.unsupported("an inline flag", n+1)
			}
			on = false
		case 'i':
			t.fold = on
		case 's':
			t.dotAll = on
		case ')':
			t.i += n + 1
			return nil
		case ':':
			t.out.WriteString("(?:")
			t.i += n + 1
			t.push(f)
			return nil
		default:
			return t.unsupported("an inline flag other than i and s", n+1)
		}
	}
}

// quantifier reads the quantifier of an atom, if there is one. It reports whether the atom with its
// quantifier can match the empty text.
func (t *translator) quantifier(a atom) (empty bool, err error) {
	var q string
	var least, n int
	var more bool
	switch c := t.at(0); c {
	case '*', '+', '?':
		q, n, more = string(c), 1, c != '?'
		if c == '+' {
			least = 1
		}
	case '{':
		if q, least, more, n = repetition(t.in[t.i:]); n == 0 {
			return false, t.unsupported("a { that is not a quantifier", 4)
		}
	default:
		return a.matchEmpty || a.assertion, nil
	}
	switch {
	case a.assertion:
		return false, t.unsupported("a quantifier of an anchor or a look-around", n)
	case more && a.matchEmpty && a.group:
		return false, t.unsupported("a repeated group that can match nothing", n)
	case t.look > 0 && (a.group || q == "*" || q == "+" || strings.HasSuffix(q, ",}")):
		return false, t.unsupported("this quantifier in a look-behind", n)
	}
	switch t.at(n) {
	case '+':
		if !t.backtracks {
			return false, errBacktracks
		}
		if t.look > 0 {
			return false, t.unsupported("a possessive quantifier in a look-behind", n+1)
		}
		if a.groups > 0 {
			return false, t.unsupported("a possessive quantifier of a group that captures", n+1)
		}
		out := t.out.String()
		t.out.Reset()
		t.out.WriteString(out[:a.start] + "(?>" + out[a.start:] + q + ")")
		n++
	case '?':
		t.out.WriteString(q + "?")
		n++
	default:
		t.out.WriteString(q)
	}
	t.i += n
	if c := t.at(0); c == '*' || c == '+' || c == '?' || c == '{' {
		return false, t.unsupported("a quantifier of a quantifier", 1)
	}
	return least == 0 || a.matchEmpty, nil
}

// repetition reads {n}, {n,} or {n,m} at the start of ts. more reports whether it allows more than
// one repetition. length is 0 if ts starts with none of the three.
func repetition(ts []token) (q string, least int, more bool, length int) {
	end := slices.IndexFunc(ts, func(k token) bool { return k.r == '}' })
	if end < 0 || slices.ContainsFunc(ts[:end], func(k token) bool { return k.quoted }) {
		return "", 0, false, 0
	}
	number := func(s string) (int, bool) {
		n, err := strconv.ParseUint(s, 10, 31) // no sign
		return int(n), err == nil
	}
	from, to, comma := strings.Cut(text(ts[1:end]), ",")
	least, ok := number(from)
	most := least
	switch {
	case !ok:
		return "", 0, false, 0
	case !comma:
		q = fmt.Sprintf("{%d}", least)
	case to == "":
		q, most = fmt.Sprintf("{%d,}", least), least+2
	default:
		if most, ok = number(to); !ok || most < least {
			return "", 0, false, 0
		}
		q = fmt.Sprintf("{%d,%d}", least, most)
	}
	return q, least, most > 1, end + 1
}
