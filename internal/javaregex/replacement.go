package javaregex

import (
	"fmt"
	"strings"
)

// A Replacement is the compiled replacement of java.util.regex.Matcher.replaceFirst.
type Replacement struct{ pieces []piece }

// A piece is the text of a group, or plain text if group is negative.
type piece struct {
	group int
	text  string
}

// Replacement compiles a replacement. In a replacement \c is the character c, and ${name} is the
// group with that name. $d is the group with the number d, and takes further digits as long as
// such a group exists.
func (re *Regexp) Replacement(s string) (*Replacement, error) {
	var pieces []piece
	var text strings.Builder
	fail := func(format string, args ...any) (*Replacement, error) {
		return nil, fmt.Errorf("%q: "+format, append([]any{s}, args...)...)
	}
	flush := func() {
		if text.Len() > 0 {
			pieces = append(pieces, piece{group: -1, text: text.String()})
			text.Reset()
		}
	}
	group := func(n int) {
		flush()
		pieces = append(pieces, piece{group: n})
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			if i++; i == len(s) {
				return fail("nothing follows the last backslash")
			}
			text.WriteByte(s[i])
		case c != '$':
			text.WriteByte(c)
		case i+1 == len(s):
			return fail("nothing follows the last $ (write \\$ for a dollar sign)")
		case s[i+1] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return fail("${ without }")
			}
			name := s[i+2 : i+end]
			n := re.names[name]
			if n == 0 {
				return fail("the regular expression has no group called %q", name)
			}
			group(n)
			i += end
		case isDigit(s[i+1]):
			i++
			n := int(s[i] - '0')
			if n > re.groups {
				return fail("the regular expression has no group %d", n)
			}
			for i+1 < len(s) && isDigit(s[i+1]) && n*10+int(s[i+1]-'0') <= re.groups {
				i++
				n = n*10 + int(s[i]-'0')
			}
			group(n)
		default:
			return fail("%q is not a group (write \\$ for a dollar sign)", s[i:i+2])
		}
	}
	flush()
	return &Replacement{pieces}, nil
}

// Glob is what the replacement gives, with * for each group.
func (r *Replacement) Glob() string {
	var b strings.Builder
	for _, p := range r.pieces {
		if p.group < 0 {
			b.WriteString(p.text)
		} else {
			b.WriteByte('*')
		}
	}
	return b.String()
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
