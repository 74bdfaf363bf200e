package convert

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
func readStrimzi(text []byte) (*options, error) {
	o := newOptions(nil)
	o.format = Strimzi
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
			return nil, &SyntaxError{Line: n.Line, Column: n.Column, Text: "convert does not read YAML merge keys (<<): take the resource from the server, with kubectl get kafkaconnector <name> -o yaml"}
		}
		resources = append(resources, doc.Content[0])
	}
	found := false
	for len(resources) > 0 {
		root := resources[0]
		resources = resources[1:]
		if root.Kind != yaml.MappingNode {
			return nil, &SyntaxError{Line: root.Line, Column: root.Column, Text: "must be a KafkaConnector"}
		}
		kind := ""
		if n := child(root, "kind"); n != nil {
			kind = n.Value
		}
		items := child(root, "items")
		switch {
		case kind == "Template":
			return nil, &SyntaxError{Line: root.Line, Text: "a Template has parameters: oc process --local -f template.yaml -o yaml | walpost debezium convert -"}
		case strings.HasSuffix(kind, "List") && items != nil && items.Kind == yaml.SequenceNode:
			resources = append(slices.Clone(items.Content), resources...)
		case kind != "KafkaConnector":
			name := fmt.Sprintf("%sresource on line %d", wrapped, root.Line)
			o.put(&entry{name: name, label: "resource " + printable(kind), line: root.Line, parts: []part{}})
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
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// strimziNames are the options of the connector that are fields of spec.
var strimziNames = map[string]string{"class": classOption, "tasksMax": "tasks.max"}

func strimziConnector(o *options, root *yaml.Node) *SyntaxError {
	s := &strimzi{o: o}
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch key, value := root.Content[i].Value, root.Content[i+1]; key {
		case "spec":
			if value.Kind != yaml.MappingNode {
				return &SyntaxError{Line: value.Line, Column: value.Column, Text: "spec must be a mapping"}
			}
			for j := 0; j+1 < len(value.Content); j += 2 {
				k, v := value.Content[j], value.Content[j+1]
				if k.Value == "config" {
					if wrong := s.flat(v, "", "spec.config.", 0); wrong != nil {
						return wrong
					}
					continue
				}
				name, ok := strimziNames[k.Value]
				if !ok {
					o.put(&entry{name: wrapped + "spec." + k.Value, label: "spec." + k.Value, line: k.Line, parts: []part{}})
					continue
				}
				if wrong := s.scalar(v, name, "spec."+k.Value); wrong != nil {
					return wrong
				}
			}
		case "apiVersion", "kind", "metadata", "status":
			o.put(&entry{name: wrapped + key, label: key, line: root.Content[i].Line, parts: []part{}})
		default:
			o.put(&entry{name: wrapped + "other " + key, label: key, line: root.Content[i].Line, parts: []part{}})
		}
	}
	return nil
}

// A strimzi collects options. It counts nodes, because aliases can turn a small file into many
// nodes.
type strimzi struct {
	o     *options
	nodes int
}

func (s *strimzi) flat(n *yaml.Node, name, label string, depth int) *SyntaxError {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if s.nodes++; s.nodes > 10_000 || depth > maxDepth {
		return &SyntaxError{Line: n.Line, Text: "spec.config is too large or nested too deeply"}
	}
	if n.Kind != yaml.MappingNode {
		if name == "" {
			return &SyntaxError{Line: n.Line, Column: n.Column, Text: "spec.config must be a mapping"}
		}
		return s.scalar(n, name, label)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		inner, innerLabel := key, label+key
		if name != "" {
			inner, innerLabel = name+"."+key, label+"."+key
		}
		if wrong := s.flat(n.Content[i+1], inner, innerLabel, depth+1); wrong != nil {
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
		return &SyntaxError{Line: n.Line, Column: n.Column, Text: printable(label) + " must be one value"}
	case s.o.byName[name] != nil:
		return &SyntaxError{Line: n.Line, Column: n.Column, Text: printable(label) + " occurs twice"}
	}
	value := n.Value
	if n.Tag == "!!null" {
		value = ""
	}
	s.o.put(&entry{name: name, label: label, value: value, line: n.Line})
	return nil
}
