// Package show has the forms in which the commands print what they found: as text for a person, and as JSON for a program. It finds
// nothing and decides nothing.
package show

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
)

// OneLine is a text with its line breaks and tabs, as errors of several addresses have, as spaces.
// A line that is there twice in a row, as for two attempts with one address, is there once.
func OneLine(text string) string {
	lines := slices.Compact(strings.Split(text, "\n"))
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

// Print prints v as JSON, or text, which says the same to a person.
func Print(w io.Writer, asJSON bool, v any, text string) error {
	if asJSON {
		return writeJSON(w, v, "  ")
	}
	_, err := io.WriteString(w, text)
	return err
}

func writeJSON(w io.Writer, v any, indent string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(v)
}

// shown is bytes for a terminal, so that nothing is mistaken for something else: text as it is, text with characters that do
// not print, or that could be taken for one of the following, quoted as Go does; (null), (empty), and hexadecimal digits.
func shown(b []byte) string {
	switch {
	case b == nil:
		return "(null)"
	case len(b) == 0:
		return "(empty)"
	case !utf8.Valid(b):
		return fmt.Sprintf("(hex, %d bytes) %s", len(b), hex.EncodeToString(b))
	}
	s := string(b)
	plain := s[0] != '(' && s[0] != ' ' && s[len(s)-1] != ' '
	for _, r := range s {
		plain = plain && strconv.IsPrint(r)
	}
	if plain {
		return s
	}
	return "(quoted) " + strconv.Quote(s)
}

// A header is a header of a record, for programs.
type header struct {
	Key      string  `json:"key"`
	Value    *string `json:"value"`
	ValueB64 *string `json:"value_base64,omitempty"`
}

// headersOf are headers for programs. A list without headers is empty, and not null.
func headersOf(headers []cdc.Header) []header {
	all := []header{}
	for _, h := range headers {
		text, b64 := textOrBase64(h.Value)
		all = append(all, header{Key: h.Key, Value: text, ValueB64: b64})
	}
	return all
}

// textOrBase64 is a value for programs: text, or in base64 if it is not UTF-8.
func textOrBase64(b []byte) (text, b64 *string) {
	if b == nil {
		return nil, nil
	}
	if s := string(b); utf8.ValidString(s) {
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}

// dash is a word for a terminal, and "-" for none.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return shown([]byte(text))
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:,@%+-]+$`)

// ShellWord quotes a word where a shell would not take it as it is.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
