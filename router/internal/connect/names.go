package connect

import (
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A NameAdjustment changes the names of fields and schemas into names that Avro allows (Debezium's
// field.name.adjustment.mode and schema.name.adjustment.mode). With none, names stay; with avro, _ replaces
// a character that is not allowed; with avro_unicode, _u and its code replace it, and _ is not allowed.
type NameAdjustment string

const (
	avroNames        NameAdjustment = "avro"
	avroUnicodeNames NameAdjustment = "avro_unicode"
)

func (a NameAdjustment) keeps() bool { return a != avroNames && a != avroUnicodeNames }

// Adjust returns the adjusted name of a field.
func (a NameAdjustment) Adjust(name string) string { return a.adjust(name, false) }

// AdjustSchema returns the adjusted name of a schema, which may contain dots.
func (a NameAdjustment) AdjustSchema(name string) string { return a.adjust(name, true) }

// adjust counts a character above U+FFFF as two, as Java does.
func (a NameAdjustment) adjust(name string, dots bool) string {
	if a.keeps() || name == "" {
		return name
	}
	fits := true
	for i := range len(name) {
		if !a.allows(rune(name[i]), i == 0, dots) {
			fits = false
			break
		}
	}
	if fits {
		return name
	}
	out := make([]byte, 0, len(name)+8)
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if r == utf8.RuneError && n == 1 && surrogate([]byte(name[i:min(i+3, len(name))])) {
			r, n = rune(name[i+1]&0x3F)<<6|rune(name[i+2]&0x3F)|0xD000, 3
		}
		units := [2]rune{r}
		count := 1
		if r > 0xFFFF {
			units[0], units[1] = utf16.EncodeRune(r)
			count = 2
		}
		for k, u := range units[:count] {
			first := i == 0 && k == 0
			switch {
			case a.allows(u, first, dots):
				out = append(out, byte(u))
			case a == avroNames:
				out = append(out, '_')
				if first && unicode.IsDigit(u) {
					out = utf8.AppendRune(out, u)
				}
			default:
				hex := strconv.FormatInt(int64(u), 16)
				if out = append(out, "_u"...); len(hex) <= 2 {
					out = append(out, "00"...)
				}
				out = append(out, hex...)
			}
		}
		i += n
	}
	return string(out)
}

// allows reports whether the adjustment keeps a unit of UTF-16.
func (a NameAdjustment) allows(u rune, first, dots bool) bool {
	return u >= 'a' && u <= 'z' || u >= 'A' && u <= 'Z' || u == '_' && a == avroNames ||
		!first && (u >= '0' && u <= '9' || u == '.' && dots)
}
