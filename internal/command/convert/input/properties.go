package input

import (
	"strconv"
	"strings"

	"github.com/walpost/walpost/internal/javaproperties"
)

// readProperties reads Java's properties. It refuses a key that occurs twice; Java silently uses the
// last value.
func readProperties(text []byte) ([]*Entry, *SyntaxError) {
	properties, err := javaproperties.Load(text)
	if err != nil {
		return nil, &SyntaxError{Line: properties[len(properties)-1].Line, Text: err.Error()}
	}
	var list []*Entry
	seen := map[string]int{}
	for _, p := range properties {
		if first, twice := seen[p.Key]; twice {
			return nil, &SyntaxError{Line: p.Line, Text: Printable(p.Key) + " occurs twice (first on line " + strconv.Itoa(first) + ")"}
		}
		seen[p.Key] = p.Line
		list = append(list, &Entry{Name: p.Key, Label: p.Key, Value: p.Value, Line: p.Line})
	}
	return list, nil
}

// readServer reads Debezium Server's application.properties. Options of the connector lose their
// prefix. Options of the sink's producer get the names that they have in Kafka Connect.
func readServer(text []byte) (*Options, error) {
	list, wrong := readProperties(text)
	if wrong != nil {
		return nil, wrong
	}
	o := newOptions(nil)
	o.Format = Server
	for _, e := range list {
		for _, p := range serverPrefixes {
			if rest, ok := strings.CutPrefix(e.Name, p.prefix); ok && rest != "" {
				e.Name = p.instead + rest
				break
			}
		}
		if strings.HasPrefix(e.Name, "debezium.transforms") || strings.HasPrefix(e.Name, "debezium.predicates") {
			e.Name = strings.TrimPrefix(e.Name, "debezium.")
		}
		if first := o.ByName[e.Name]; first != nil {
			return nil, &SyntaxError{Line: e.Line, Text: Printable(e.Label) + " and " + Printable(first.Label) + " are the same option"}
		}
		o.Put(e)
	}
	if !o.Has(ClassOption) && len(list) > 0 && strings.HasPrefix(list[0].Name, "DEBEZIUM_") {
		return nil, &SyntaxError{Text: "these are environment variables: write each one as an option of application.properties, such as debezium.source.database.hostname"}
	}
	return o, nil
}

var serverPrefixes = []struct{ prefix, instead string }{
	{"debezium.source.", ""},
	{"debezium.sink.kafka.producer.", "producer.override."},
}
