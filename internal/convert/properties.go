package convert

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// readProperties reads Java's properties as java.util.Properties.load does: three separators,
// escapes and continued lines. It refuses a key that occurs twice; Java silently uses the last
// value.
func readProperties(text []byte) ([]*entry, *SyntaxError) {
	var list []*entry
	seen := map[string]int{}
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text)), "\n")
	for i := 0; i < len(lines); i++ {
		line, number := strings.TrimLeft(lines[i], " \t\f"), i+1
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for goesOn(line) {
			line = line[:len(line)-1]
			if i++; i == len(lines) {
				break
			}
			line += strings.TrimLeft(lines[i], " \t\f")
		}
		key, value, ok := cutProperty(line)
		if !ok {
			return nil, &SyntaxError{Line: number, Text: `four hexadecimal digits must follow \u`}
		}
		if first, twice := seen[key]; twice {
			return nil, &SyntaxError{Line: number, Text: printable(key) + " occurs twice (first on line " + strconv.Itoa(first) + ")"}
		}
		seen[key] = number
		list = append(list, &entry{name: key, label: key, value: value, line: number})
	}
	return list, nil
}

// goesOn reports whether the line ends in an odd number of backslashes.
func goesOn(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// cutProperty splits a line at the first =, : or blank without a backslash before it.
func cutProperty(line string) (key, value string, ok bool) {
	i := 0
	for i < len(line) && strings.IndexByte("=: \t\f", line[i]) < 0 {
		if line[i] == '\\' {
			i++
		}
		i++
	}
	i = min(i, len(line))
	rest := strings.TrimLeft(line[i:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	key, ok = unescape(line[:i])
	if ok {
		value, ok = unescape(rest)
	}
	return key, value, ok
}

func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			if s[i] != '\\' {
				b.WriteByte(s[i])
			}
			continue
		}
		i++
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			unit, ok := hexUnit(s[i+1:])
			if !ok {
				return "", false
			}
			i += 4
			if utf16.IsSurrogate(unit) {
				var low rune
				if strings.HasPrefix(s[i+1:], `\u`) {
					low, _ = hexUnit(s[i+3:])
				}
				if unit = utf16.DecodeRune(unit, low); unit != utf8.RuneError {
					i += 6
				}
			}
			b.WriteRune(unit)
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), true
}

func hexUnit(s string) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:4], 16, 16)
	return rune(n), err == nil
}

// readServer reads Debezium Server's application.properties. Options of the connector lose their
// prefix. Options of the sink's producer get the names that they have in Kafka Connect.
func readServer(text []byte) (*options, error) {
	list, wrong := readProperties(text)
	if wrong != nil {
		return nil, wrong
	}
	o := newOptions(nil)
	o.format = Server
	for _, e := range list {
		for _, p := range serverPrefixes {
			if rest, ok := strings.CutPrefix(e.name, p.prefix); ok && rest != "" {
				e.name = p.instead + rest
				break
			}
		}
		if strings.HasPrefix(e.name, "debezium.transforms") || strings.HasPrefix(e.name, "debezium.predicates") {
			e.name = strings.TrimPrefix(e.name, "debezium.")
		}
		if first := o.byName[e.name]; first != nil {
			return nil, &SyntaxError{Line: e.line, Text: printable(e.label) + " and " + printable(first.label) + " are the same option"}
		}
		o.put(e)
	}
	if !o.has(classOption) && len(list) > 0 && strings.HasPrefix(list[0].name, "DEBEZIUM_") {
		return nil, &SyntaxError{Text: "these are environment variables: write each one as an option of application.properties, such as debezium.source.database.hostname"}
	}
	return o, nil
}

var serverPrefixes = []struct{ prefix, instead string }{
	{"debezium.source.", ""},
	{"debezium.sink.kafka.producer.", "producer.override."},
}
