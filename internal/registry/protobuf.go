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

var (
	// protobufPlace is where Confluent's registry found a difference: the names of the messages, and a number.
	protobufPlace   = regexp.MustCompile(`#/([\w/]+)/([0-9]+)'`)
	protobufMessage = regexp.MustCompile(`^( *)message (\w+) \{`)
	protobufField   = regexp.MustCompile(`^ *(?:repeated |optional )?[\w.]+ (\w+) = ([0-9]+)`)
)

// protobufFieldAt is the name of the field at a place in a schema that a converter printed, after the names of the messages in the
// first one.
func protobufFieldAt(schema string, place []string) string {
	var in []string
	for line := range strings.Lines(schema) {
		if m := protobufMessage.FindStringSubmatch(line); m != nil {
			in = append(in[:min(len(m[1])/2, len(in))], m[2])
		} else if f := protobufField.FindStringSubmatch(line); f != nil && f[2] == place[2] && strings.Join(in, "/") == place[1] {
			return strings.Join(append(in[1:], f[1]), ".")
		}
	}
	return ""
}
