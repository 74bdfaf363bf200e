package connect

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A node is a value in a JSON document.
type node struct {
	kind    kind
	text    string  // of text
	int     int64   // of an integer; 1 for true
	double  float64 // of a double
	members []member
}

// A member is a member of an object, or an element of an array. An element has no name.
type member struct {
	name string
	node node
}

type kind uint8

const (
	null kind = iota
	boolean
	integer
	bigInteger
	double
	text
	array
	object
)

func (k kind) String() string {
	return [...]string{"null", "a boolean", "an integer", "a big integer", "a double", "a string", "an array", "an object"}[k]
}

// empty reports whether n is an empty array.
func (n *node) empty() bool { return n.kind == array && len(n.members) == 0 }

// The limits of Jackson (StreamReadConstraints), in units of UTF-16.
const (
	maxDepth  = 1000
	maxNumber = 1000
	maxName   = 50_000
	maxText   = 20_000_000
)

// parseJSON reads the value at the start of s as Jackson does. It ignores what follows the value.
// If two members have the same name, the value of the last one stands at the place of the first
// one.
func parseJSON(s string) (node, error) {
	p := parser{s: s}
	var n node
	err := p.value(&n, 0)
	if err != nil {
		err = fmt.Errorf("this JSON cannot be read as Jackson reads it: %w at byte %d", err, p.i)
	}
	return n, err
}

type parser struct {
	s string
	i int
}

var (
	errEnd    = errors.New("it ends")
	errSyntax = errors.New("syntax error")
)

// next skips white space and returns the byte after it.
func (p *parser) next() (byte, error) {
	for ; p.i < len(p.s); p.i++ {
		switch c := p.s[p.i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c, nil
		}
	}
	return 0, errEnd
}

// expect reads one byte behind white space, which must be c.
func (p *parser) expect(c byte) error {
	got, err := p.next()
	switch {
	case err != nil:
		return err
	case got != c:
		return errSyntax
	}
	p.i++
	return nil
}

// last reads the comma or the end after a member. It reports whether it is the end.
func (p *parser) last(end byte) (bool, error) {
	c, err := p.next()
	if err != nil {
		return false, err
	}
	if c != ',' && c != end {
		return false, errSyntax
	}
	p.i++
	return c == end, nil
}

func (p *parser) value(n *node, depth int) error {
	c, err := p.next()
	if err != nil {
		return err
	}
	switch {
	case c == '{' || c == '[':
		if depth++; depth > maxDepth {
			return fmt.Errorf("more than %d levels", maxDepth)
		}
		p.i++
		if c == '{' {
			return p.object(n, depth)
		}
		return p.array(n, depth)
	case c == '"':
		p.i++
		n.kind = text
		n.text, err = p.string(maxText)
		return err
	case c == '-' || c >= '0' && c <= '9':
		return p.number(n)
	case c == 't':
		n.kind, n.int = boolean, 1
		return p.word("true")
	case c == 'f':
		n.kind = boolean
		return p.word("false")
	case c == 'n':
		return p.word("null")
	}
	return errSyntax
}

func (p *parser) word(w string) error {
	if len(p.s)-p.i < len(w) || p.s[p.i:p.i+len(w)] != w {
		return errSyntax
	}
	p.i += len(w)
	return nil
}

func (p *parser) array(n *node, depth int) error {
	n.kind = array
	c, err := p.next()
	if err == nil && c == ']' {
		p.i++
		return nil
	}
	for {
		n.members = append(n.members, member{})
		if err = p.value(&n.members[len(n.members)-1].node, depth); err != nil {
			return err
		}
		if last, err := p.last(']'); last || err != nil {
			return err
		}
	}
}

func (p *parser) object(n *node, depth int) error {
	n.kind = object
	c, err := p.next()
	if err == nil && c == '}' {
		p.i++
		return nil
	}
	var at map[string]int // of members by name, once they are many
	for {
		if err := p.expect('"'); err != nil {
			return err
		}
		name, err := p.string(maxName)
		if err != nil {
			return err
		}
		if err = p.expect(':'); err != nil {
			return err
		}
		i := len(n.members)
		if at == nil && i == 16 {
			at = make(map[string]int)
			for i := range n.members {
				at[n.members[i].name] = i
			}
		}
		if at != nil {
			if before, there := at[name]; there {
				i = before
			} else {
				at[name] = i
			}
		} else {
			for before := range n.members {
				if n.members[before].name == name {
					i = before
				}
			}
		}
		if i == len(n.members) {
			n.members = append(n.members, member{name: name})
		}
		n.members[i].node = node{}
		if err = p.value(&n.members[i].node, depth); err != nil {
			return err
		}
		if last, err := p.last('}'); last || err != nil {
			return err
		}
	}
}

// digits skips digits and returns their number.
func (p *parser) digits() int {
	start := p.i
	for p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
		p.i++
	}
	return p.i - start
}

func (p *parser) number(n *node) error {
	start := p.i
	if p.s[p.i] == '-' {
		p.i++
	}
	first := p.i
	whole := p.digits()
	if whole == 0 || whole > 1 && p.s[first] == '0' {
		return errSyntax
	}
	n.kind = integer
	count, parts := whole, 1
	if p.i < len(p.s) && p.s[p.i] == '.' {
		p.i++
		n.kind, parts = double, parts+1
		if count += p.digits(); p.s[p.i-1] == '.' {
			return errSyntax
		}
	}
	if p.i < len(p.s) && (p.s[p.i] == 'e' || p.s[p.i] == 'E') {
		p.i++
		if p.i < len(p.s) && (p.s[p.i] == '+' || p.s[p.i] == '-') {
			p.i++
		}
		n.kind, parts = double, parts+1
		k := p.digits()
		if k == 0 {
			return errSyntax
		}
		count += k
	}
	if p.s[first] == '0' && n.kind == double {
		count -= 3 - parts // after a leading zero, Jackson counts -1 digits for each missing part
	}
	if count > maxNumber {
		return fmt.Errorf("a number of more than %d digits", maxNumber)
	}
	literal := p.s[start:p.i]
	var err error
	if n.kind == double {
		if n.double, err = strconv.ParseFloat(literal, 64); err != nil && !math.IsInf(n.double, 0) {
			return err
		}
		return nil
	}
	if n.int, err = strconv.ParseInt(literal, 10, 64); err != nil {
		n.kind = bigInteger
	}
	return nil
}

// string reads the rest of a string, behind its first quote: at most limit units of UTF-16. Half of
// a surrogate pair becomes three bytes: see surrogate.
func (p *parser) string(limit int) (string, error) {
	start := p.i
	for ; p.i < len(p.s); p.i++ {
		switch c := p.s[p.i]; {
		case c == '"':
			s := p.s[start:p.i]
			p.i++
			return s, checkLength(s, limit)
		case c == '\\':
			return p.escaped(start, limit)
		case c < 0x20:
			return "", errSyntax
		}
	}
	return "", errEnd
}

// escaped reads the rest of a string that starts at start, from the first escape on.
func (p *parser) escaped(start, limit int) (string, error) {
	buf := append(make([]byte, 0, p.i-start+64), p.s[start:p.i]...)
	for p.i < len(p.s) {
		c := p.s[p.i]
		p.i++
		switch {
		case c == '"':
			s := string(buf)
			return s, checkLength(s, limit)
		case c < 0x20:
			return "", errSyntax
		case c != '\\':
			buf = append(buf, c)
			continue
		}
		if p.i == len(p.s) {
			break
		}
		c = p.s[p.i]
		p.i++
		switch c {
		case '"', '\\', '/':
			buf = append(buf, c)
		case 'b', 'f', 'n', 'r', 't':
			buf = append(buf, controls[strings.IndexByte(escapes, c)])
		case 'u':
			r, err := p.hex4()
			if err != nil {
				return "", err
			}
			if utf16.IsSurrogate(r) {
				low := rune(0)
				if r < 0xDC00 && p.i+1 < len(p.s) && p.s[p.i] == '\\' && p.s[p.i+1] == 'u' {
					here := p.i
					p.i += 2
					if low, err = p.hex4(); err != nil {
						return "", err
					}
					if low < 0xDC00 || low > 0xDFFF {
						p.i, low = here, 0
					}
				}
				if low == 0 {
					buf = append(buf, 0xED, byte(0x80|r>>6&0x3F), byte(0x80|r&0x3F))
					continue
				}
				r = utf16.DecodeRune(r, low)
			}
			buf = utf8.AppendRune(buf, r)
		default:
			return "", errSyntax
		}
	}
	return "", errEnd
}

func (p *parser) hex4() (rune, error) {
	if len(p.s)-p.i < 4 {
		return 0, errEnd
	}
	r, err := strconv.ParseUint(p.s[p.i:p.i+4], 16, 16)
	if err != nil {
		return 0, errSyntax
	}
	p.i += 4
	return rune(r), nil
}

// checkLength returns an error if s has more than limit units of UTF-16.
func checkLength(s string, limit int) error {
	if len(s) <= limit {
		return nil
	}
	units := 0
	for _, r := range s {
		units++
		if r > 0xFFFF {
			units++
		}
	}
	if units > limit {
		return fmt.Errorf("a string of more than %d characters", limit)
	}
	return nil
}
