// Package javaproperties reads Java's properties.
package javaproperties

import (
	"cmp"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
)

// A Property is a line of the text, the first one if it goes on.
type Property struct {
	Key, Value string
	Line       int
}

// Load reads properties as java.util.Properties.load does: three separators, escapes and continued
// lines. A key that occurs twice is in the list twice; Java silently uses the last value. With an
// error, the last property has only the line that is wrong.
func Load(text []byte) (list []Property, err error) {
	lines := strings.Split(newlines.Replace(string(text)), "\n")
	for i := 0; i < len(lines); i++ {
		line, number := strings.TrimLeft(lines[i], blank), i+1
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for goesOn(line) {
			line = line[:len(line)-1]
			if i++; i == len(lines) {
				break
			}
			line += strings.TrimLeft(lines[i], blank)
		}
		key, value := cut(line)
		key, ok := unescape(key)
		value, valid := unescape(value)
		if !ok || !valid {
			return append(list, Property{Line: number}), errors.New(`four hexadecimal digits must follow \u`)
		}
		list = append(list, Property{key, value, number})
	}
	return list, nil
}

// goesOn reports whether the line ends in an odd number of backslashes.
func goesOn(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// cut returns the key up to the first =, : or blank without a backslash before it, and the value.
func cut(line string) (key, value string) {
	i := 0
	for ; i < len(line) && strings.IndexByte("=:"+blank, line[i]) < 0; i++ {
		if line[i] == '\\' {
			i++
		}
	}
	i = min(i, len(line))
	value = strings.TrimLeft(line[i:], blank)
	if value != "" && (value[0] == '=' || value[0] == ':') {
		value = strings.TrimLeft(value[1:], blank)
	}
	return line[:i], value
}

const blank = " \t\f"

var (
	newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")
	escapes  = regexp.MustCompile(`(?s)\\u(?:[0-9A-Fa-f]{4}(?:\\u[0-9A-Fa-f]{4})*)?|\\.?`)
	blanks   = map[string]string{`\t`: "\t", `\n`: "\n", `\r`: "\r", `\f`: "\f"}
)

// unescape replaces escapes. ok is false if a \u lacks its four digits.
func unescape(s string) (text string, ok bool) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, true
	}
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
