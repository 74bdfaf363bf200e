package connect

import (
	"fmt"
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
	if a.keeps() {
		return name
	}
	out := make([]byte, 0, len(name)+8)
	for i := 0; i < len(name); {
		r, n := decode(name[i:])
		units := []rune{r}
		if r > 0xFFFF {
			high, low := utf16.EncodeRune(r)
			units = []rune{high, low}
		}
		for k, u := range units {
			first := i == 0 && k == 0
			switch {
			case a.allows(u, first, dots):
				out = append(out, byte(u))
			case a == avroUnicodeNames && u <= 0xFF:
				out = fmt.Appendf(out, "_u00%x", u)
			case a == avroUnicodeNames:
				out = fmt.Appendf(out, "_u%x", u)
			default:
				out = append(out, '_')
				if first && unicode.IsDigit(u) {
					out = utf8.AppendRune(out, u)
				}
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
