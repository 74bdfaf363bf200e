// Package input reads the options of a Debezium connector from any of the forms in which people keep them: the JSON of Kafka
// Connect, Java properties, or a Strimzi KafkaConnector. It knows nothing of walpost.
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

// Read returns the options of the input. The content says in which form it is; if it does not, it is a connector in JSON,
// because its errors are the clearest.
func Read(text []byte) (*Options, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	switch {
	case len(text) > maxInput:
		return nil, &SyntaxError{Text: fmt.Sprintf("the input is larger than %d MiB", maxInput>>20)}
	case !utf8.Valid(text):
		return nil, &SyntaxError{Text: "the input is not UTF-8"}
	case len(bytes.TrimSpace(text)) == 0:
		return nil, &SyntaxError{Text: "the input is empty"}
	case kubernetes.Match(text):
		return readStrimzi(text)
	case text[firstByte(text)] == '{':
		return readConnect(text)
	case serverLine.Match(text):
		return nil, &SyntaxError{Text: "this is Debezium Server's configuration: write its options as those of a Kafka Connect connector, without debezium.source. and debezium., and the converters as Kafka Connect names them"}
	case yamlLine.Match(text):
		return readStrimzi(text)
	case propertyLine.Match(text): // connect-standalone takes properties
		list, err := readProperties(text)
		if err != nil {
			return nil, err
		}
		return newOptions(list), nil
	}
	return readConnect(text)
}

func firstByte(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " \t\r\n")) }

var (
	yamlLine     = regexp.MustCompile(`(?m)^(?:---|(?:apiVersion|kind|metadata|spec)\s*:)`)
	serverLine   = regexp.MustCompile(`(?m)^\s*(?:(?:%[^.]*\.)?debezium\.|DEBEZIUM_)[A-Za-z]`)
	kubernetes   = regexp.MustCompile(`"kind"\s*:\s*"(?:KafkaConnector|KafkaConnectorList|List|Template)"`)
	propertyLine = regexp.MustCompile(`(?m)^connector\.class\s*[=:]`)
)

// readJSON reads one value of JSON. Every JSON is YAML, too, whose nodes have places.
func readJSON(text []byte) (*yaml.Node, *SyntaxError) {
	var whole json.RawMessage // encoding/json is stricter, and has exact offsets of errors
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, broken(text, err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		wrong := notYAML(err)
		wrong.Text = "a string has an escape or a control character that convert cannot read: write the character itself"
		return nil, wrong
	}
	return doc.Content[0], nil
}

// broken is the error for invalid JSON. It repeats no part of the JSON, which may be a password.
func broken(text []byte, err error) *SyntaxError {
	if first := text[firstByte(text)]; first != '{' && first != '[' {
		return &SyntaxError{Text: "this is neither JSON, nor properties, nor a KafkaConnector: " + fromConnect}
	}
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return &SyntaxError{Text: "not JSON"}
	}
	before, fault := text[:syntax.Offset-1], "the input ends too early"
	if _, where, ok := strings.Cut(strings.ReplaceAll(syntax.Error(), "' '", "''"), "' "); ok { // invalid character 'x' after object key
		fault = "an unexpected character " + where
	} else {
		before = text
	}
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return &SyntaxError{Line: 1 + bytes.Count(before, []byte("\n")), Column: 1 + utf8.RuneCount(line), Text: "not JSON: " + fault}
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
		case value.Kind != yaml.ScalarNode:
			return wrongAt(value, "%s must be a string, a number, true or false: %s", name, fromConnect)
		case o.ByName[name] == nil:
			o.put(name, name, value)
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
			o.around(key.Value, key.Value)
		default:
			if wrong := add(key, value); wrong != nil {
				return nil, wrong
			}
		}
	}
	return o, nil
}

// put adds the option that a node is.
func (o *Options) put(name, label string, n *yaml.Node) {
	value := n.Value
	if n.Tag == "!!null" {
		value = ""
	}
	o.Put(&Entry{Name: name, Label: label, Value: value})
}

// wrapped begins the names of fields around a config, to tell them from options.
const wrapped = "(around) "

// around adds a field around the config.
func (o *Options) around(name, label string) {
	o.Put(&Entry{Name: wrapped + name, Label: label, Parts: []Part{}})
}
