package configkeys

import (
	"io"
	"reflect"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/internal/yamlfile"
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
	for name, f := range yamlfile.Ordered(v) {
		off := f.Kind() == reflect.Pointer
		if off && f.IsNil() {
			continue
		} else if off {
			f = f.Elem()
		}
		path := yamlfile.Join(path, name)
		value := &yaml.Node{}
		if kindOf(f.Type()) == Section {
			value = p.section(f, path)
		} else if err := value.Encode(plain(f)); err != nil {
			panic(err) // plain gives what YAML has
		}
		switch {
		case value.Kind != yaml.ScalarNode && len(value.Content) == 0 && !off, value.Tag == "!!str" && value.Value == "":
			continue // it has no value
		case kindOf(f.Type()) == Section:
		default:
			if secret, ok := f.Interface().(conf.Secret); ok {
				value.SetString(p.shown(path, secret))
			}
			if value.Kind != yaml.ScalarNode {
				value.Style = yaml.FlowStyle
			}
			value.LineComment = p.origin(path)
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
	}
	return n
}
