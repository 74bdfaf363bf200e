// Package input reads the options of a Debezium connector from any of the forms in which people keep them: the JSON of Kafka
// Connect, Java properties, Debezium Server's application.properties, or a Strimzi KafkaConnector. It knows nothing of walpost.
package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A Format is a kind of input.
type Format string

// The formats. With Auto, the content decides.
const (
	Auto    Format = "auto"
	Connect Format = "connect"
	Server  Format = "server"
	Strimzi Format = "strimzi"
)

// A SyntaxError means that the input cannot be read or contradicts itself.
type SyntaxError struct {
	Line, Column int // from 1; 0 if not known
	Text         string
}

func (e *SyntaxError) Error() string {
	switch {
	case e.Line == 0:
		return e.Text
	case e.Column == 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.Text)
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Text)
}

// Misconfigured is true: see package fault.
func (*SyntaxError) Misconfigured() bool { return true }

// maxInput is far above the size of any connector.
const maxInput = 8 << 20

// Read returns the options of the input, whatever its format.
func Read(text []byte, format Format) (*Options, error) {
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

// A jsonReader reads the JSON of one connector as nodes of YAML, which have a place.
type jsonReader struct {
	text             []byte
	dec              *json.Decoder
	at, line, column int // where the newest node is
}

// readJSON reads one value of JSON.
func readJSON(text []byte) (*yaml.Node, *SyntaxError) {
	r := &jsonReader{text: text, dec: json.NewDecoder(bytes.NewReader(text))}
	r.dec.UseNumber()
	var whole json.RawMessage // json.Unmarshal has exact offsets of errors, unlike the decoder
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, r.broken(err)
	}
	return r.node(0)
}

// place is a node at an offset.
func (r *jsonReader) place(offset int) *yaml.Node {
	if offset = min(max(offset, 0), len(r.text)); offset < r.at || r.line == 0 {
		r.at, r.line, r.column = 0, 1, 1
	}
	passed := r.text[r.at:offset]
	if end := bytes.LastIndexByte(passed, '\n'); end >= 0 {
		r.line, r.column, passed = r.line+bytes.Count(passed, []byte("\n")), 1, passed[end+1:]
	}
	r.at, r.column = offset, r.column+utf8.RuneCount(passed)
	return &yaml.Node{Kind: yaml.ScalarNode, Line: r.line, Column: r.column}
}

// jsonFaults are the texts for the errors of encoding/json.
var jsonFaults = []struct{ has, text string }{
	{"in string literal", "a string has no end, or contains a character that must be escaped"},
	{"after object key:value pair", "a comma or } is missing"},
	{"after object key", "a colon is missing"},
	{"looking for beginning of object key", "a name in double quotes is missing (perhaps there is an extra comma before it)"},
	{"looking for beginning of value", "a value is missing: write text in double quotes"},
	{"", "an unexpected character"},
}

// broken is the error for invalid JSON. It repeats no part of the JSON, which may be a password.
func (r *jsonReader) broken(err error) *SyntaxError {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return &SyntaxError{Text: "not JSON"}
	}
	if at := firstByte(r.text); at < len(r.text) && r.text[at] != '{' && r.text[at] != '[' {
		return &SyntaxError{Text: "this is neither JSON, nor properties, nor a KafkaConnector: " + fromConnect}
	}
	n, fault := r.place(int(syntax.Offset)-1), syntax.Error()
	switch {
	case strings.HasPrefix(fault, "unexpected end"):
		return wrongAt(r.place(len(r.text)), "not JSON: the input ends too early")
	case strings.Contains(fault, "after top-level value"):
		return wrongAt(n, "there is more text after the connector")
	}
	for _, known := range jsonFaults {
		if strings.Contains(fault, known.has) {
			return wrongAt(n, "not JSON: %s", known.text)
		}
	}
	return nil // the last one of jsonFaults fits always
}

const maxDepth = 16

// node reads the next value. An object must not have a name twice.
func (r *jsonReader) node(depth int) (*yaml.Node, *SyntaxError) {
	i := int(r.dec.InputOffset()) // the end of the last token
	for i < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[i]) >= 0 {
		i++
	}
	n := r.place(i)
	token, err := r.dec.Token()
	switch {
	case err != nil:
		return nil, r.broken(err)
	case token == json.Delim('{'):
		n.Kind = yaml.MappingNode
	case token == json.Delim('['):
		n.Kind = yaml.SequenceNode
	case token == nil:
		return n, nil
	default:
		n.Value = fmt.Sprint(token)
		return n, nil
	}
	if depth > maxDepth {
		return nil, wrongAt(n, "objects are nested too deeply")
	}
	seen := map[string]bool{}
	for r.dec.More() {
		inner, wrong := r.node(depth + 1)
		if wrong != nil {
			return nil, wrong
		}
		if n.Kind == yaml.MappingNode && len(n.Content)%2 == 0 {
			if seen[inner.Value] {
				return nil, wrongAt(inner, "%s occurs twice", inner.Value)
			}
			seen[inner.Value] = true
		}
		n.Content = append(n.Content, inner)
	}
	_, _ = r.dec.Token() // the closing bracket: readJSON has found the text valid
	return n, nil
}

// wrongAt is an error at the place of a node.
func wrongAt(n *yaml.Node, format string, args ...any) *SyntaxError {
	return &SyntaxError{Line: n.Line, Column: n.Column, Text: Printable(fmt.Sprintf(format, args...))}
}

// members are the keys and values of a mapping.
func members(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// fromConnect says how to get an input that convert can read.
const fromConnect = "take the connector's options from Connect, with curl http://connect:8083/connectors/<name>/config, or write them into one JSON object"

// wrapper are the fields around the config in GET /connectors/… and POST /connectors.
var wrapper = map[string]bool{"name": true, "tasks": true, "type": true, "initial_state": true}

// readConnect reads {"name": …, "config": {…}}, or the bare map that PUT …/config takes.
func readConnect(text []byte) (*Options, error) {
	root, wrong := readJSON(text)
	switch {
	case wrong != nil:
		return nil, wrong
	case root.Kind != yaml.MappingNode:
		return nil, wrongAt(root, "must be an object with the options of one connector: %s", fromConnect)
	}
	o := newOptions(nil)
	add := func(key, value *yaml.Node) *SyntaxError {
		switch name := key.Value; {
		case o.ByName[name] != nil && name != "name": // the config repeats the connector's name
			return wrongAt(value, "%s occurs twice", name)
		case value.Kind == yaml.MappingNode:
			return wrongAt(value, "%s must be a string, a number, true or false (got an object): %s", name, fromConnect)
		case value.Kind == yaml.SequenceNode:
			return wrongAt(value, "%s must be a string, a number, true or false (got a list): %s", name, fromConnect)
		case o.ByName[name] == nil:
			o.Put(&Entry{Name: name, Label: name, Value: value.Value, Line: value.Line})
		}
		return nil
	}
	for key, value := range members(root) {
		switch {
		case key.Value == "config" && value.Kind == yaml.MappingNode:
			for k, v := range members(value) {
				if wrong := add(k, v); wrong != nil {
					return nil, wrong
				}
			}
		case wrapper[key.Value] && (value.Kind != yaml.ScalarNode || key.Value != "name"):
			o.around(key.Value, key.Value, value.Line)
		default:
			if wrong := add(key, value); wrong != nil {
				return nil, wrong
			}
		}
	}
	return o, nil
}

// wrapped begins the names of fields around a config, to tell them from options.
const wrapped = "(around) "

// around adds a field around the config.
func (o *Options) around(name, label string, line int) {
	o.Put(&Entry{Name: wrapped + name, Label: label, Line: line, Parts: []Part{}})
}
