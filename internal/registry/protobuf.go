package registry

import (
	"regexp"
	"strings"
)

// protobufToken is a comment, a text, a word or a character of a .proto file.
var protobufToken = regexp.MustCompile(`//[^\n]*|(?s:/\*.*?\*/)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[\w.]+|\S`)

// canonicalProtobuf returns a .proto file without comments, and with one space between its words.
func canonicalProtobuf(text string) (string, error) {
	var out strings.Builder
	for _, token := range protobufToken.FindAllString(text, -1) {
		if !strings.HasPrefix(token, "//") && !strings.HasPrefix(token, "/*") {
			out.WriteString(token)
			out.WriteByte(' ')
		}
	}
	return out.String(), nil
}
