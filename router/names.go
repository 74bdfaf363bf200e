package router

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/walpost/walpost/internal/topicname"
	"github.com/walpost/walpost/router/internal/connect"
)

// adjustSchema changes the name of a schema so that Avro allows it. It follows Debezium's
// schema.name.adjustment.mode (io.debezium.schema.SchemaNameAdjuster). As in Java, a character
// above U+FFFF counts as two.
func adjustSchema(mode, name string) string {
	if mode != "avro" && mode != "avro_unicode" {
		return name
	}
	var b strings.Builder
	for i, c := range utf16.Encode([]rune(name)) {
		switch letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' && mode == "avro"; {
		case letter, i > 0 && (c >= '0' && c <= '9' || c == '.'):
			b.WriteByte(byte(c))
		case mode == "avro_unicode":
			hex := fmt.Sprintf("%x", c)
			if len(hex) <= 2 {
				hex = "00" + hex
			}
			b.WriteString("_u" + hex)
		case i == 0 && unicode.IsDigit(rune(c)):
			b.WriteString("_" + string(rune(c)))
		default:
			b.WriteByte('_')
		}
	}
	return b.String()
}

// adjustment is package connect's constant for a field.name.adjustment.mode.
func adjustment(mode string) connect.NameAdjustment {
	switch lower(mode) {
	case "avro":
		return connect.AvroNames
	case "avro_unicode":
		return connect.AvroUnicodeNames
	}
	return connect.KeepNames
}

// schemaPrefix is the start of the names of a table's schemas. Without the EventRouter, it would be
// the topic of the table (io.debezium.schema.AbstractTopicNamingStrategy.sanitizedTopicName).
func schemaPrefix(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return strings.TrimSpace(p) == "" })
	var b strings.Builder
	for _, c := range utf16.Encode([]rune(strings.Join(parts, "."))) {
		if c < utf8.RuneSelf && topicname.Allowed(byte(c)) {
			b.WriteByte(byte(c))
		} else {
			b.WriteByte('_')
		}
	}
	return b.String()[:min(b.Len(), topicname.MaxLength)]
}
