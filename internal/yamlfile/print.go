package yamlfile

import (
	"io"
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/conf"
)

// Print writes the configuration that config points to as YAML, without the keys that have no value. A comment behind each
// value is its origin. shown returns what is written for a secret: it must not have the secret in it.
func Print(w io.Writer, config any, origin func(path string) string, shown func(path string, secret conf.Secret) string) error {
	p := printer{origin, shown}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(p.section(reflect.ValueOf(config).Elem(), "")); err != nil {
		return err
	}
	return enc.Close()
}

type printer struct {
	origin func(path string) string
	shown  func(path string, secret conf.Secret) string
}

func (p printer) section(v reflect.Value, path string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for f := range conf.Fields(v, path) {
		inner, off := f.Value, f.Value.Kind() == reflect.Pointer
		if off && inner.IsNil() {
			continue
		} else if off {
			inner = inner.Elem()
		}
		section, value := conf.IsSection(inner.Type()), &yaml.Node{}
		if section {
			value = p.section(inner, f.Path)
		} else if err := value.Encode(conf.Plain(inner)); err != nil {
			panic(err) // Plain gives what YAML has
		}
		switch {
		case value.Kind != yaml.ScalarNode && len(value.Content) == 0 && !off, value.Tag == "!!str" && value.Value == "":
			continue // it has no value
		case !section:
			if secret, ok := inner.Interface().(conf.Secret); ok {
				value.SetString(p.shown(f.Path, secret))
			}
			if value.Kind != yaml.ScalarNode {
				value.Style = yaml.FlowStyle
			}
			value.LineComment = p.origin(f.Path)
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.Name}, value)
	}
	return n
}
