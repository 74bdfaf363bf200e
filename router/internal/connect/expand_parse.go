package connect

import (
	"encoding/json"
	"errors"
	"fmt"
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

var errNotExpandable = errors.New("it does not begin with { or [")

// parseJSON reads the object or array at the start of s as Jackson does. It ignores what follows. If two
// members have the same name, the value of the last one stands at the place of the first one.
func parseJSON(s string) (n node, err error) {
	if s == "" || s[0] != '{' && s[0] != '[' {
		return n, errNotExpandable
	}
	var first json.RawMessage
	if json.NewDecoder(strings.NewReader(s)).Decode(&first) != nil {
		return n, errors.New("it is not JSON") // the decoder's error has a part of the document
	}
	p := parser{s: s}
	return n, p.value(&n, 0)
}

// A parser reads a text that begins with a valid object or array.
type parser struct {
	s string
	i int
}

// next goes to the first byte of the next value or to a closing bracket, and returns it.
func (p *parser) next() byte {
	for strings.IndexByte(" \t\r\n,:", p.s[p.i]) >= 0 {
		p.i++
	}
	return p.s[p.i]
}

func (p *parser) value(n *node, depth int) (err error) {
	switch first := p.next(); first {
	case '{', '[':
		if depth == maxDepth {
			return fmt.Errorf("it has more than %d levels", maxDepth)
		}
		p.i++
		return p.members(n, first == '{', depth+1)
	case '"':
		n.kind = text
		n.text, err = p.string(maxText)
	case 't':
		n.kind, n.int = boolean, 1
		p.i += len("true")
	case 'f':
		n.kind = boolean
		p.i += len("false")
	case 'n':
		p.i += len("null")
	default:
		err = p.number(n)
	}
	return err
}

// members reads the rest of an object or array.
func (p *parser) members(n *node, isObject bool, depth int) (err error) {
	n.kind = array
	var at map[string]int // of members by name
	if isObject {
		n.kind, at = object, map[string]int{}
	}
	for {
		if c := p.next(); c == ']' || c == '}' {
			p.i++
			return nil
		}
		var m member
		if isObject {
			if m.name, err = p.string(maxName); err != nil {
				return err
			}
		}
		if err := p.value(&m.node, depth); err != nil {
			return err
		}
		if i, twice := at[m.name]; twice {
			n.members[i] = m
			continue
		}
		if isObject {
			at[m.name] = len(n.members)
		}
		n.members = append(n.members, m)
	}
}

func (p *parser) number(n *node) error {
	start, digits, parts := p.i, 0, 1
	for ; strings.IndexByte("+-.0123456789eE", p.s[p.i]) >= 0; p.i++ {
		switch p.s[p.i] {
		case '+', '-':
		case '.', 'e', 'E':
			parts++
		default:
			digits++
		}
	}
	literal := p.s[start:p.i]
	if parts > 1 && strings.TrimPrefix(literal, "-")[0] == '0' {
		digits -= 3 - parts // after a leading zero, Jackson counts -1 digits for each missing part
	}
	if digits > maxNumber {
		return fmt.Errorf("it has a number of more than %d digits", maxNumber)
	}
	var err error
	if n.kind = double; parts > 1 {
		n.double, _ = strconv.ParseFloat(literal, 64) // a number that is too large is infinite
	} else if n.int, err = strconv.ParseInt(literal, 10, 64); err != nil {
		n.kind = bigInteger
	} else {
		n.kind = integer
	}
	return nil
}

// string reads a string of at most limit units of UTF-16.
func (p *parser) string(limit int) (string, error) {
	start := p.i + 1
	for p.i = start; p.s[p.i] != '"'; p.i++ {
		if p.s[p.i] == '\\' {
			p.i++
		}
	}
	s := unescape(p.s[start:p.i])
	p.i++
	if len(s) > limit && len(utf16.Encode([]rune(s))) > limit {
		return "", fmt.Errorf("it has a string of more than %d characters", limit)
	}
	return s, nil
}

// unescape returns what stands for s, the inside of a JSON string. Half of a surrogate pair becomes three
// bytes: see surrogate.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		i++
		if control := strings.IndexByte(escapes, s[i]); control >= 0 {
			b = append(b, controls[control])
			continue
		} else if s[i] != 'u' {
			b = append(b, s[i])
			continue
		}
		r := hex4(s[i+1:])
		i += 4
		if low, ok := strings.CutPrefix(s[i+1:], `\u`); ok && utf16.IsSurrogate(r) {
			if pair := utf16.DecodeRune(r, hex4(low)); pair != utf8.RuneError {
				r = pair
				i += 6
			}
		}
		if utf16.IsSurrogate(r) {
			b = append(b, 0xED, byte(0x80|r>>6&0x3F), byte(0x80|r&0x3F))
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return string(b)
}

// hex4 reads the four hexadecimal digits that s begins with.
func hex4(s string) rune {
	n, _ := strconv.ParseUint(s[:4], 16, 16) // valid JSON has them
	return rune(n)
}
