package router

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/walpost/walpost/router/internal/connect"
)

// adjustSchema makes the name of a schema one that Avro allows, as Debezium's schema.name.adjustment.mode does
// (io.debezium.schema.SchemaNameAdjuster). It works on UTF-16, as Java does: a character beyond it counts as two.
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

// adjustment is what package connect calls field.name.adjustment.mode.
func adjustment(mode string) connect.NameAdjustment {
	switch lower(mode) {
	case "avro":
		return connect.AvroNames
	case "avro_unicode":
		return connect.AvroUnicodeNames
	}
	return connect.KeepNames
}

// maxTopicName is Kafka's limit.
const maxTopicName = 249

// schemaPrefix begins the names of a table's schemas: what the topic of its changes would be without the EventRouter
// (io.debezium.schema.AbstractTopicNamingStrategy.sanitizedTopicName).
func schemaPrefix(parts ...string) string {
	var some []string
	for _, p := range parts {
		if strings.TrimSpace(p) != "" {
			some = append(some, p)
		}
	}
	var b strings.Builder
	for _, c := range utf16.Encode([]rune(strings.Join(some, "."))) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' {
			b.WriteByte(byte(c))
		} else {
			b.WriteByte('_')
		}
	}
	return b.String()[:min(b.Len(), maxTopicName)]
}
