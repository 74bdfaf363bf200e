package javaregex

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// A set is a set of characters as sorted ranges that do not touch. It is the meaning of a character
// class in a Java pattern. Both engines get the characters of the set, so their own classes do not
// matter.
type set []span

// A span is a range of characters, including both ends.
type span struct{ from, to rune }

const maxRune = 0x10FFFF

// setOf returns the set of the characters in any spans.
func setOf(spans ...span) set {
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	var s set
	for _, r := range spans {
		if n := len(s); n > 0 && r.from <= s[n-1].to+1 {
			s[n-1].to = max(s[n-1].to, r.to)
		} else {
			s = append(s, r)
		}
	}
	return s
}

func (s set) union(o set) set { return setOf(append(slices.Clone(s), o...)...) }

func (s set) negate() set {
	var out set
	next := rune(0)
	for _, r := range s {
		if r.from > next {
			out = append(out, span{next, r.from - 1})
		}
		next = r.to + 1
	}
	if next <= maxRune {
		out = append(out, span{next, maxRune})
	}
	return out
}

func (s set) intersect(o set) set { return s.negate().union(o.negate()).negate() }

// fold adds the other case of each ASCII letter, as Java's CASE_INSENSITIVE does.
func (s set) fold() set {
	spans := slices.Clone(s)
	for _, r := range s {
		for c := max(r.from, 'A'); c <= min(r.to, 'z'); c++ {
			if c <= 'Z' || c >= 'a' {
				spans = append(spans, span{c ^ 0x20, c ^ 0x20})
			}
		}
	}
	return setOf(spans...)
}

// write writes the set as a character class that both engines read alike.
func (s set) write(b *strings.Builder) {
	switch {
	case len(s) == 0:
		b.WriteString(`[^\x00-` + string(rune(maxRune)) + `]`)
		return
	case len(s) == 1 && s[0].from == s[0].to:
		writeLiteral(b, s[0].from)
		return
	}
	b.WriteByte('[')
	for _, r := range s {
		writeLiteral(b, r.from)
		if r.to > r.from {
			b.WriteByte('-')
			writeLiteral(b, r.to)
		}
	}
	b.WriteByte(']')
}

// writeLiteral writes one character, inside or outside a class. It escapes by number because
// regexp2 does not accept \- as the end of a range.
func writeLiteral(b *strings.Builder, r rune) {
	if r < 0x80 && !isWord(r) {
		fmt.Fprintf(b, `\x%02X`, r)
	} else {
		b.WriteRune(r)
	}
}

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_'
}

func one(r rune) set { return set{{r, r}} }

var (
	digits      = setOf(span{'0', '9'})
	upper       = setOf(span{'A', 'Z'})
	lowerCase   = setOf(span{'a', 'z'})
	alpha       = upper.union(lowerCase)
	alnum       = alpha.union(digits)
	word        = alnum.union(one('_'))
	spaces      = setOf(span{'\t', '\r'}, span{' ', ' '})
	horizontal  = setOf(span{'\t', '\t'}, span{' ', ' '}, span{0xA0, 0xA0}, span{0x1680, 0x1680}, span{0x180e, 0x180e}, span{0x2000, 0x200a}, span{0x202f, 0x202f}, span{0x205f, 0x205f}, span{0x3000, 0x3000})
	vertical    = setOf(span{'\n', '\r'}, span{0x85, 0x85}, span{0x2028, 0x2029})
	terminators = setOf(span{'\n', '\n'}, span{'\r', '\r'}, span{0x85, 0x85}, span{0x2028, 0x2029})
	everything  = set{{0, maxRune}}
)

// posix are the classes \p{…} that contain only ASCII characters.
var posix = map[string]set{
	"Lower": lowerCase, "Upper": upper, "ASCII": {{0, 0x7f}}, "Alpha": alpha, "Digit": digits, "Alnum": alnum,
	"Punct": set{{'!', '~'}}.intersect(alnum.negate()), "Graph": {{'!', '~'}}, "Print": {{' ', '~'}},
	"Blank": setOf(span{'\t', '\t'}, span{' ', ' '}), "Cntrl": setOf(span{0, 0x1f}, span{0x7f, 0x7f}),
	"XDigit": setOf(span{'0', '9'}, span{'A', 'F'}, span{'a', 'f'}), "Space": spaces,
}

// categories are the general categories that mean the same in Java and here. Cn and C are missing
// because unassigned characters depend on the version of Unicode.
var categories = strings.Fields("L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf")

// cased are the properties that the flag i changes, since Java 16: each means all of them then. The
// flag changes no other property.
var cased = map[string]string{"Lower": "Alpha", "Upper": "Alpha", "Lu": "LC", "Ll": "LC", "Lt": "LC"}

// property returns the set of \p{name}, and false if the property is not supported. fold is the
// flag i.
func property(name string, fold bool) (set, bool) {
	bare, is := strings.CutPrefix(name, "Is")
	if all := cased[bare]; fold && all == "LC" {
		return tableSet(unicode.Lu).union(tableSet(unicode.Ll)).union(tableSet(unicode.Lt)), true
	} else if fold && all != "" && !is {
		return posix[all], true
	}
	if s, ok := posix[name]; ok {
		return s, true
	}
	if slices.Contains(categories, bare) {
		return tableSet(unicode.Categories[bare]), true
	}
	if t, ok := unicode.Scripts[bare]; is && ok {
		return tableSet(t), true
	}
	return nil, false
}

// tableSet is the set of a table of package unicode.
func tableSet(t *unicode.RangeTable) set {
	var spans []span
	add := func(from, to, stride rune) {
		if stride == 1 {
			spans = append(spans, span{from, to})
			return
		}
		for c := from; c <= to; c += stride {
			spans = append(spans, span{c, c})
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return setOf(spans...)
}
