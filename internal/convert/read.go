package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxInput is far above the size of any connector.
const maxInput = 8 << 20

// read returns the options of the input, whatever its format.
func read(text []byte, format Format) (*options, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	switch {
	case len(text) > maxInput:
		return nil, &SyntaxError{Text: fmt.Sprintf("the input is larger than %d MiB", maxInput>>20)}
	case !utf8.Valid(text):
		return nil, &SyntaxError{Text: "the input is not UTF-8"}
	case len(bytes.TrimSpace(text)) == 0:
		return nil, &SyntaxError{Text: "the input is empty"}
	}
	if format == "" || format == Auto {
		format = recognise(text)
	}
	switch format {
	case Connect:
		if first := text[firstByte(text)]; first != '{' && first != '[' && propertyLine.Match(text) { // connect-standalone takes properties
			list, err := readProperties(text)
			if err != nil {
				return nil, err
			}
			return newOptions(list), nil
		}
		return readConnect(text)
	case Server:
		return readServer(text)
	case Strimzi:
		return readStrimzi(text)
	case Auto: // recognise never returns it
	}
	return nil, &SyntaxError{Text: fmt.Sprintf("format must be one of auto, connect, server, strimzi (got %q)", format)}
}

func firstByte(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " \t\r\n")) }

var (
	yamlLine     = regexp.MustCompile(`(?m)^(?:---|(?:apiVersion|kind|metadata|spec)\s*:)`)
	serverLine   = regexp.MustCompile(`(?m)^\s*(?:(?:%[^.]*\.)?debezium\.|DEBEZIUM_)[A-Za-z]`)
	kubernetes   = regexp.MustCompile(`"kind"\s*:\s*"(?:KafkaConnector|KafkaConnectorList|List|Template)"`)
	propertyLine = regexp.MustCompile(`(?m)^connector\.class\s*[=:]`)
)

// recognise finds the format by content. The default is a connector, because its errors are the
// clearest.
func recognise(text []byte) Format {
	switch {
	case kubernetes.Match(text):
		return Strimzi
	case text[firstByte(text)] == '{':
		return Connect
	case serverLine.Match(text):
		return Server
	case yamlLine.Match(text):
		return Strimzi
	}
	return Connect
}

// A jsonReader reads the JSON of one connector.
type jsonReader struct {
	text []byte
	dec  *json.Decoder
}

// at is an error at an offset.
func (r *jsonReader) at(offset int64, format string, args ...any) *SyntaxError {
	offset = min(max(offset, 0), int64(len(r.text)))
	before := r.text[:offset]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return &SyntaxError{Line: line, Column: column, Text: fmt.Sprintf(format, args...)}
}

// broken is the error for invalid JSON. It repeats no part of the JSON, which may be a password.
func (r *jsonReader) broken(err error) *SyntaxError {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		text := "an unexpected character"
		if at := firstByte(r.text); at < len(r.text) && r.text[at] != '{' && r.text[at] != '[' {
			return &SyntaxError{Text: "this is neither JSON, nor properties, nor a KafkaConnector: " + fromConnect}
		}
		switch s := syntax.Error(); {
		case strings.HasPrefix(s, "unexpected end"):
			return r.at(int64(len(r.text)), "not JSON: the input ends too early")
		case strings.Contains(s, "after top-level value"):
			return r.at(syntax.Offset-1, "there is more text after the connector")
		case strings.Contains(s, "in string literal"):
			text = "a string has no end, or contains a character that must be escaped"
		case strings.Contains(s, "after object key:value pair"):
			text = "a comma or } is missing"
		case strings.Contains(s, "after object key"):
			text = "a colon is missing"
		case strings.Contains(s, "looking for beginning of object key"):
			text = "a name in double quotes is missing (perhaps there is an extra comma before it)"
		case strings.Contains(s, "looking for beginning of value"):
			text = "a value is missing: write text in double quotes"
		}
		return r.at(max(syntax.Offset-1, 0), "not JSON: %s", text)
	}
	return r.at(r.dec.InputOffset(), "not JSON")
}

// start is the offset of the next token. The decoder's offset is the end of the last one.
func (r *jsonReader) start() int64 {
	i := r.dec.InputOffset()
	for i < int64(len(r.text)) && strings.IndexByte(" \t\r\n,:", r.text[i]) >= 0 {
		i++
	}
	return i
}

// A member is one name of an object with its value: text, or a whole object.
type member struct {
	name   string
	offset int64
	value  string
	null   bool
	object []member
	other  string // a description if the value is an object or a list
}

const maxDepth = 16

// object reads the members of an object after its {, up to its end.
func (r *jsonReader) object(depth int) ([]member, *SyntaxError) {
	var members []member
	seen := map[string]bool{}
	for {
		at := r.start()
		token, err := r.dec.Token()
		if err != nil {
			return nil, r.broken(err)
		}
		if token == json.Delim('}') {
			return members, nil
		}
		name, _ := token.(string)
		if seen[name] {
			return nil, r.at(at, "%s occurs twice", printable(name))
		}
		seen[name] = true
		m := member{name: name, offset: r.start()}
		if token, err = r.dec.Token(); err != nil {
			return nil, r.broken(err)
		}
		m.offset = max(m.offset, at)
		switch v := token.(type) {
		case nil:
			m.null = true
		case bool:
			m.value = fmt.Sprint(v)
		case json.Number:
			m.value = v.String()
		case string:
			m.value = v
		case json.Delim:
			if depth == maxDepth {
				return nil, r.at(m.offset, "objects are nested too deeply")
			}
			if v == '{' {
				var wrong *SyntaxError
				if m.object, wrong = r.object(depth + 1); wrong != nil {
					return nil, wrong
				}
				m.other = "an object"
			} else {
				if err := r.skip(); err != nil {
					return nil, r.broken(err)
				}
				m.other = "a list"
			}
		}
		members = append(members, m)
	}
}

// skip reads to the end of a list.
func (r *jsonReader) skip() error {
	for depth := 1; depth > 0; {
		token, err := r.dec.Token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
	}
	return nil
}

// fromConnect says how to get an input that convert can read.
const fromConnect = "take the connector's options from Connect, with curl http://connect:8083/connectors/<name>/config, or write them into one JSON object"

// readConnect reads {"name": …, "config": {…}}, or the bare map that PUT …/config takes.
func readConnect(text []byte) (*options, error) {
	r := &jsonReader{text: text, dec: json.NewDecoder(bytes.NewReader(text))}
	r.dec.UseNumber()
	var whole json.RawMessage // json.Unmarshal has exact offsets of errors, unlike the decoder
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, r.broken(err)
	}
	at := r.start()
	token, err := r.dec.Token()
	if err != nil {
		return nil, r.broken(err)
	}
	if token != json.Delim('{') {
		return nil, r.at(at, "must be an object with the options of one connector: %s", fromConnect)
	}
	members, wrong := r.object(0)
	if wrong != nil {
		return nil, wrong
	}
	o := newOptions(nil)
	add := func(m member, label string) *SyntaxError {
		switch {
		case m.other != "":
			return r.at(m.offset, "%s must be a text, a number, true or false (got %s): %s", printable(label), m.other, fromConnect)
		case m.null:
			m.value = ""
		}
		line := r.at(m.offset, "").Line
		o.put(&entry{name: m.name, label: label, value: m.value, line: line})
		return nil
	}
	for _, m := range members {
		switch {
		case m.name == "config" && m.object != nil:
			for _, inner := range m.object {
				if o.byName[inner.name] != nil {
					if inner.name != "name" {
						return nil, r.at(inner.offset, "%s occurs twice", printable(inner.name))
					}
					continue // the config repeats the connector's name
				}
				if err := add(inner, inner.name); err != nil {
					return nil, err
				}
			}
		case wrapper[m.name] && (m.other != "" || m.name != "name"):
			o.put(&entry{name: wrapped + m.name, label: m.name, line: r.at(m.offset, "").Line, parts: []part{}})
		default:
			if o.byName[m.name] != nil {
				continue // the config has the name, too
			}
			if err := add(m, m.name); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

// wrapper are the fields around the config in GET /connectors/… and POST /connectors.
var wrapper = map[string]bool{"name": true, "tasks": true, "type": true, "initial_state": true}

// wrapped begins the names of fields around a config, to tell them from options.
const wrapped = "(around) "
