package input

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
)

// readProperties reads Java's properties as java.util.Properties.load does: three separators,
// escapes and continued lines. It refuses a key that occurs twice; Java silently uses the last
// value.
func readProperties(text []byte) ([]*Entry, *SyntaxError) {
	var list []*Entry
	seen := map[string]int{}
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text)), "\n")
	for i := 0; i < len(lines); i++ {
		line, number := strings.TrimLeft(lines[i], " \t\f"), i+1
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for goesOn(line) {
			line = line[:len(line)-1]
			if i++; i == len(lines) {
				break
			}
			line += strings.TrimLeft(lines[i], " \t\f")
		}
		m := property.FindStringSubmatch(line)
		key, ok := unescape(m[1])
		value, valid := unescape(m[2])
		if !ok || !valid {
			return nil, &SyntaxError{Line: number, Text: `four hexadecimal digits must follow \u`}
		}
		if first, twice := seen[key]; twice {
			return nil, &SyntaxError{Line: number, Text: Printable(key) + " occurs twice (first on line " + strconv.Itoa(first) + ")"}
		}
		seen[key] = number
		list = append(list, &Entry{Name: key, Label: key, Value: value})
	}
	return list, nil
}

// goesOn reports whether the line ends in an odd number of backslashes.
func goesOn(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

var (
	// property is a key up to the first =, : or blank without a backslash before it, and a value.
	property = regexp.MustCompile(`(?s)^((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)$`)
	escapes  = regexp.MustCompile(`(?s)\\u(?:[0-9A-Fa-f]{4}(?:\\u[0-9A-Fa-f]{4})*)?|\\.?`)
	blanks   = map[string]string{`\t`: "\t", `\n`: "\n", `\r`: "\r", `\f`: "\f"}
)

// unescape replaces escapes. ok is false if a \u lacks its four digits.
func unescape(s string) (text string, ok bool) {
	ok = true
	return escapes.ReplaceAllStringFunc(s, func(escape string) string {
		digits, unicode := strings.CutPrefix(escape, `\u`)
		if !unicode {
			return cmp.Or(blanks[escape], escape[1:])
		}
		var units []uint16 // two of them can be one character
		for _, four := range strings.Split(digits, `\u`) {
			n, err := strconv.ParseUint(four, 16, 16)
			units, ok = append(units, uint16(n)), ok && err == nil
		}
		return string(utf16.Decode(units))
	}), ok
}
