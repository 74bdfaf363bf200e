package router

import (
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/walpost/walpost/internal/lib/topicname"
	"github.com/walpost/walpost/router/internal/connect"
)

// adjustment is package connect's constant for a value of one of the two options
// ….name.adjustment.mode.
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
