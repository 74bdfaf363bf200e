package input

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var yamlError = regexp.MustCompile(`^yaml: line (\d+):`)

// notYAML is the error for invalid YAML. It leaves out the parser's text, which may repeat a value.
func notYAML(err error) *SyntaxError {
	wrong := &SyntaxError{Text: "not YAML"}
	if m := yamlError.FindStringSubmatch(err.Error()); m != nil {
		wrong.Line, _ = strconv.Atoi(m[1])
	}
	return wrong
}

// readStrimzi reads the only KafkaConnector of a file, which may be YAML or JSON. The
// KafkaConnector may be an item of a List. Other resources in the file are reported.
func readStrimzi(text []byte) (*Options, error) {
	o := newOptions(nil)
	dec := yaml.NewDecoder(bytes.NewReader(text))
	resources := []*yaml.Node{}
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, notYAML(err)
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].Tag == "!!null" {
			continue
		}
		resources = append(resources, doc.Content[0])
	}
	found := false
	for len(resources) > 0 {
		root := resources[0]
		resources = resources[1:]
		if root.Kind != yaml.MappingNode {
			return nil, wrongAt(root, "must be a KafkaConnector")
		}
		items := child(root, "items")
		switch kind := child(root, "kind").Value; {
		case kind == "Template":
			return nil, &SyntaxError{Line: root.Line, Text: "a Template has parameters: oc process --local -f template.yaml -o yaml | walpost debezium convert -"}
		case strings.HasSuffix(kind, "List") && items.Kind == yaml.SequenceNode:
			resources = append(slices.Clone(items.Content), resources...)
		case kind != "KafkaConnector":
			o.around(fmt.Sprint("resource on line ", root.Line), "resource "+kind)
		case found:
			return nil, &SyntaxError{Line: root.Line, Text: "this is a second KafkaConnector: write each one to a file of its own, and convert one at a time"}
		default:
			found = true
			if wrong := strimziConnector(o, root); wrong != nil {
				return nil, wrong
			}
		}
	}
	if !found {
		return nil, &SyntaxError{Text: "the input has no KafkaConnector (kind: KafkaConnector)"}
	}
	return o, nil
}

func child(n *yaml.Node, name string) *yaml.Node {
	for key, value := range members(n) {
		if key.Value == name {
			return value
		}
	}
	return &yaml.Node{}
}

// strimziNames are the options of the connector that are fields of spec.
var strimziNames = map[string]string{"class": ClassOption, "tasksMax": "tasks.max"}

func strimziConnector(o *Options, root *yaml.Node) *SyntaxError {
	for key, value := range members(root) {
		switch key.Value {
		case "spec":
			if value.Kind != yaml.MappingNode {
				return wrongAt(value, "spec must be a mapping")
			}
			for k, v := range members(value) {
				label, name := "spec."+k.Value, strimziNames[k.Value]
				var wrong *SyntaxError
				switch {
				case k.Value == "config":
					wrong = strimziConfig(o, v)
				case name == "":
					o.around(label, label)
				default:
					wrong = strimziOption(o, v, name, label)
				}
				if wrong != nil {
					return wrong
				}
			}
		case "apiVersion", "kind", "metadata", "status":
			o.around(key.Value, key.Value)
		default:
			o.around("other "+key.Value, key.Value)
		}
	}
	return nil
}

// strimziConfig adds the options of spec.config, in the order of the file. The decoder follows merge keys.
func strimziConfig(o *Options, n *yaml.Node) *SyntaxError {
	var config map[string]yaml.Node
	if err := n.Decode(&config); err != nil {
		wrong := &SyntaxError{Line: n.Line, Column: n.Column, Text: "spec.config must be a mapping"}
		if twice, ok := errors.AsType[*yaml.TypeError](err); ok && n.Kind == yaml.MappingNode {
			wrong.Text = Printable("spec.config: " + twice.Errors[0]) // the name of an option, and its lines
		}
		return wrong
	}
	byPlace := func(a, b string) int {
		return cmp.Or(cmp.Compare(config[a].Line, config[b].Line), cmp.Compare(config[a].Column, config[b].Column))
	}
	for _, name := range slices.SortedFunc(maps.Keys(config), byPlace) {
		value := config[name]
		if wrong := strimziOption(o, &value, name, "spec.config."+name); wrong != nil {
			return wrong
		}
	}
	return nil
}

func strimziOption(o *Options, n *yaml.Node, name, label string) *SyntaxError {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		return wrongAt(n, "%s must be one value", label)
	case o.ByName[name] != nil:
		return wrongAt(n, "%s occurs twice", label)
	}
	o.put(name, label, n)
	return nil
}
