package input

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	o.Format = Strimzi
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
		if n := mergeKey(doc.Content[0]); n != nil {
			return nil, wrongAt(n, "convert does not read YAML merge keys (<<): take the resource from the server, with kubectl get kafkaconnector <name> -o yaml")
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
			o.around(fmt.Sprint("resource on line ", root.Line), "resource "+kind, root.Line)
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

// mergeKey finds a << that merges another mapping. If convert read it as an option, it would ignore
// all that the other mapping has.
func mergeKey(n *yaml.Node) *yaml.Node {
	for i, inner := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && inner.Tag == "!!merge" {
			return inner
		}
		if found := mergeKey(inner); found != nil {
			return found
		}
	}
	return nil
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
	s := &strimzi{o: o}
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
					wrong = s.flat(v, "", label, 0)
				case name == "":
					o.around(label, label, k.Line)
				default:
					wrong = s.scalar(v, name, label)
				}
				if wrong != nil {
					return wrong
				}
			}
		case "apiVersion", "kind", "metadata", "status":
			o.around(key.Value, key.Value, key.Line)
		default:
			o.around("other "+key.Value, key.Value, key.Line)
		}
	}
	return nil
}

// A strimzi collects options. It counts nodes, because aliases can turn a small file into many
// nodes.
type strimzi struct {
	o     *Options
	nodes int
}

// flat adds the options in a node. The names of nested mappings are joined by dots.
func (s *strimzi) flat(n *yaml.Node, name, label string, depth int) *SyntaxError {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch s.nodes++; {
	case s.nodes > 10_000 || depth > maxDepth:
		return &SyntaxError{Line: n.Line, Text: "spec.config is too large or nested too deeply"}
	case n.Kind == yaml.MappingNode:
	case depth == 0:
		return wrongAt(n, "spec.config must be a mapping")
	default:
		return s.scalar(n, name, label)
	}
	for key, value := range members(n) {
		inner := strings.TrimPrefix(name+"."+key.Value, ".")
		if wrong := s.flat(value, inner, label+"."+key.Value, depth+1); wrong != nil {
			return wrong
		}
	}
	return nil
}

func (s *strimzi) scalar(n *yaml.Node, name, label string) *SyntaxError {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		return wrongAt(n, "%s must be one value", label)
	case s.o.ByName[name] != nil:
		return wrongAt(n, "%s occurs twice", label)
	}
	value := n.Value
	if n.Tag == "!!null" {
		value = ""
	}
	s.o.Put(&Entry{Name: name, Label: label, Value: value, Line: n.Line})
	return nil
}
