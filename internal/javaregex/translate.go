package javaregex

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A translator reads a Java pattern from left to right and writes one for Go's engine. It keeps the
// flags i and s itself, because Go's i also folds characters outside ASCII, and its dot matches
// other line terminators.
type translator struct {
	re    Regexp
	rest  string // not read yet
	out   strings.Builder
	flags flags
	open  []group
}

type flags struct{ fold, dotAll bool }

// A group is a group that is open, with the flags to go back to.
type group struct {
	start int // the offset in out
	flags flags
}

var quotation = regexp.MustCompile(`(?s)\\Q(.*?)(?:\\E|\z)|\\.|[^\\]+`)

// unquote replaces the text between \Q and \E by escapes.
func unquote(java string) string {
	return quotation.ReplaceAllStringFunc(java, func(part string) string {
		quoted, ok := strings.CutPrefix(part, `\Q`)
		if !ok {
			return part
		}
		var b strings.Builder
		for _, r := range strings.TrimSuffix(quoted, `\E`) {
			fmt.Fprintf(&b, `\x{%x}`, r)
		}
		return b.String()
	})
}

// unsupported is the error for a part of the pattern.
func unsupported(part string) error {
	return fmt.Errorf("%q is not supported: walpost has no counterpart with the same meaning in Java", part)
}

// next takes n bytes.
func (t *translator) next(n int) string {
	s := t.rest[:n]
	t.rest = t.rest[n:]
	return s
}

// run translates the whole pattern.
func (t *translator) run() error {
	for t.rest != "" {
		start := t.out.Len()
		switch t.rest[0] {
		case '|':
			t.out.WriteString(t.next(1))
			continue
		case '(':
			if err := t.openGroup(); err != nil {
				return err
			}
			continue
		case ')':
			if len(t.open) == 0 {
				return fmt.Errorf("a ) without ( before %q", t.rest)
			}
			last := len(t.open) - 1
			start, t.flags, t.open = t.open[last].start, t.open[last].flags, t.open[:last]
			t.out.WriteString(t.next(1))
		case '[':
			if err := t.class(); err != nil {
				return err
			}
		case '.':
			t.next(1)
			if t.flags.dotAll {
				t.out.WriteString(`(?s:.)`)
			} else {
				t.out.WriteString(`[^` + lineTerminators + `]`)
			}
		case '^':
			t.next(1)
			t.out.WriteString(`\A`)
		case '$':
			t.next(1)
			t.re.endAnchor = true
			t.out.WriteString(`\z`)
		case '*', '+', '?', '{':
			return fmt.Errorf("a quantifier of nothing: %q", t.rest)
		default:
			if anchor := anchors.FindString(t.rest); anchor != "" {
				t.anchor(t.next(len(anchor)))
				break
			}
			m, err := t.member()
			if err != nil {
				return err
			}
			t.out.WriteString("[" + m.text(t.flags.fold) + "]")
		}
		if err := t.quantifier(start); err != nil {
			return err
		}
	}
	if len(t.open) > 0 {
		return errors.New("a ( without )")
	}
	return nil
}

var anchors = regexp.MustCompile(`^\\[AzZbB]`)

func (t *translator) anchor(s string) {
	switch s {
	case `\Z`:
		s, t.re.endAnchor = `\z`, true
	case `\b`, `\B`:
		t.re.wordAnchor = true
	}
	t.out.WriteString(s)
}

var opening = regexp.MustCompile(`^\((?:\?(?:(?P<on>[is]*)(?:-(?P<off>[is]+))?(?P<end>[:)])|<(?P<name>[A-Za-z][A-Za-z0-9]*)>))?`)

// special is the start of a group that is not supported.
var special = regexp.MustCompile(`(?s)^\(\?(?:<[=!]|.|)`)

// openGroup reads the start of a group, or inline flags.
func (t *translator) openGroup() error {
	m := opening.FindStringSubmatch(t.rest)
	on, off, end, name := m[1], m[2], m[3], m[4]
	if m[0] == "(" && strings.HasPrefix(t.rest, "(?") {
		return unsupported(special.FindString(t.rest))
	}
	if name != "" && strings.Contains(t.out.String(), "(?P<"+name+">") {
		return fmt.Errorf("the group name %q occurs twice", name)
	}
	t.next(len(m[0]))
	if end != ")" {
		t.open = append(t.open, group{t.out.Len(), t.flags})
	}
	for flag, set := range map[string]*bool{"i": &t.flags.fold, "s": &t.flags.dotAll} {
		*set = (*set || strings.Contains(on, flag)) && !strings.Contains(off, flag)
	}
	switch {
	case name != "":
		t.out.WriteString("(?P<" + name + ">")
	case end == ":":
		t.out.WriteString("(?:")
	case end == "":
		t.out.WriteByte('(')
	}
	return nil
}

var repetition = regexp.MustCompile(`^(?:[*+?]|\{(?:0|[1-9][0-9]*)(?:,(?:0|[1-9][0-9]*)?)?\})`) // Go reads {02} as text

// quantifier reads the quantifier of what begins at start in out, if there is one.
func (t *translator) quantifier(start int) error {
	q := repetition.FindString(t.rest)
	if q == "" {
		if strings.HasPrefix(t.rest, "{") {
			return unsupported(t.rest)
		}
		return nil
	}
	text := t.out.String()[start:]
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return err
	}
	outer := 1 // a group with a number may be repeated itself
	if strings.HasPrefix(text, "(?:") {
		outer = 0
	}
	switch {
	case q == "?":
	case matchesNothing(re): // Java ends such a loop in another way
		return fmt.Errorf("%w: what is repeated can match nothing", unsupported(q))
	case re.MaxCap() > outer: // Java keeps the text of such a group even if the match fails later
		return fmt.Errorf("%w: a group in what is repeated has a number: begin it with (?: instead", unsupported(q))
	}
	t.out.WriteString(t.next(len(q)))
	if strings.HasPrefix(t.rest, "?") {
		t.out.WriteString(t.next(1))
	}
	if t.rest != "" && strings.ContainsRune("*+?{", rune(t.rest[0])) {
		return unsupported(q + t.rest[:1])
	}
	return nil
}

// matchesNothing reports whether an expression can match the empty text.
func matchesNothing(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral, syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL, syntax.OpNoMatch:
		return false
	case syntax.OpCapture, syntax.OpPlus:
		return matchesNothing(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || matchesNothing(re.Sub[0])
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !matchesNothing(sub) })
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, matchesNothing)
	default: // *, ?, anchors
		return true
	}
}

// class translates a character class.
func (t *translator) class() error {
	whole := t.rest
	read := func(more int) string { return whole[:len(whole)-len(t.rest)+more] }
	t.out.WriteString(t.next(1))
	if strings.HasPrefix(t.rest, "^") {
		t.out.WriteString(t.next(1))
	}
	for first := true; ; first = false {
		switch {
		case t.rest == "":
			return fmt.Errorf("a class without ]: %q", whole)
		case t.rest[0] == ']' && !first:
			t.out.WriteString(t.next(1))
			return nil
		case strings.ContainsRune("[]", rune(t.rest[0])):
			return unsupported(read(1))
		case strings.HasPrefix(t.rest, "&&"):
			return unsupported(read(2))
		}
		from, err := t.member()
		if err != nil {
			return err
		}
		if len(t.rest) > 1 && t.rest[0] == '-' && t.rest[1] != ']' {
			t.next(1)
			to, err := t.member()
			if err != nil {
				return err
			}
			if from.set != "" || to.set != "" || to.r < from.r {
				return unsupported(read(0))
			}
			t.out.WriteString(ranges(from.r, to.r, t.flags.fold))
			continue
		}
		t.out.WriteString(from.text(t.flags.fold))
	}
}

// A member is a character, or an escape that stands for several.
type member struct {
	r   rune
	set string // inside a class
}

// text is the member inside a class.
func (m member) text(fold bool) string {
	if m.set != "" {
		return m.set
	}
	return ranges(m.r, m.r, fold)
}

// ranges are the characters between two, inside a class. Java's flag i adds the other case of the
// letters of ASCII.
func ranges(from, to rune, fold bool) string {
	text := fmt.Sprintf(`\x{%x}-\x{%x}`, from, to)
	for _, letters := range []struct{ first, last, other rune }{{'A', 'Z', 'a'}, {'a', 'z', 'A'}} {
		if a, z := max(from, letters.first), min(to, letters.last); fold && a <= z {
			shift := letters.other - letters.first
			text += fmt.Sprintf(`%c-%c`, a+shift, z+shift)
		}
	}
	return text
}

// sets are the escapes that stand for several characters, and those of control characters that Go
// has, too. They stand inside a class.
var sets = map[string]string{
	`\d`: `\d`, `\D`: `\D`, `\w`: `\w`, `\W`: `\W`, `\s`: `[:space:]`, `\S`: `[:^space:]`,
	`\h`: `\t \x{a0}\x{1680}\x{180e}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}`,
	`\t`: `\t`, `\n`: `\n`, `\r`: `\r`, `\f`: `\f`, `\a`: `\a`,
}

var (
	escape   = regexp.MustCompile(`(?s)^\\.?`)
	byItself = regexp.MustCompile(`(?s)^\\[^A-Za-z0-9]`)
	byNumber = regexp.MustCompile(`^\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|x\{([0-9A-Fa-f]{1,6})\}|0([0-3]?[0-7]{1,2}))`)
	property = regexp.MustCompile(`^\\([pP])(?:\{(\w+)\}|(\w))`)

	// posix are the properties of ASCII characters, which have the same names here.
	posix = regexp.MustCompile(`^(?:Lower|Upper|ASCII|Alpha|Digit|Alnum|Punct|Graph|Print|Blank|Cntrl|XDigit|Space)$`)
	// categories has no Cn and no C, because they depend most on the version of Unicode.
	categories = regexp.MustCompile(`^(?:[LMNPSZ][a-z]?|Cc|Cf)$`)
	// cased are the properties that mean something else with the flag i, since Java 16.
	cased = regexp.MustCompile(`^(?:Lower|Upper|Lu|Ll|Lt)$`)
)

// member reads a character or an escape, inside or outside a class.
func (t *translator) member() (member, error) {
	e, number, named := escape.FindString(t.rest), byNumber.FindStringSubmatch(t.rest), property.FindStringSubmatch(t.rest)
	switch {
	case e == "", byItself.MatchString(e):
		t.rest = strings.TrimPrefix(t.rest, `\`)
		r, n := utf8.DecodeRuneInString(t.rest)
		t.next(n)
		return member{r: r}, nil
	case sets[e] != "":
		t.next(len(e))
		return member{set: sets[e]}, nil
	case number != nil:
		base := 16
		if number[4] != "" {
			base = 8
		}
		n, err := strconv.ParseInt(strings.Join(number[1:], ""), base, 32)
		if err != nil || !utf8.ValidRune(rune(n)) { // half of a surrogate pair is no character here
			return member{}, unsupported(number[0])
		}
		t.next(len(number[0]))
		return member{r: rune(n)}, nil
	case named != nil:
		negate, name := named[1] == "P", named[2]+named[3]
		set := `\` + named[1] + "{" + name + "}"
		if posix.MatchString(name) {
			set = map[bool]string{false: "[:", true: "[:^"}[negate] + strings.ToLower(name) + ":]"
		} else if !categories.MatchString(name) {
			return member{}, unsupported(named[0])
		}
		if t.flags.fold && cased.MatchString(name) {
			return member{}, unsupported(named[0])
		}
		t.next(len(named[0]))
		return member{set: set}, nil
	case e == `\`:
		return member{}, errors.New("nothing follows the last backslash")
	}
	return member{}, unsupported(e)
}
