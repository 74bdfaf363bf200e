package convert

import (
	"cmp"
	"strings"

	"github.com/walpost/walpost/internal/convert/input"
)

const (
	stringConverter = "org.apache.kafka.connect.storage.StringConverter"
	simpleConverter = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
	jsonConverter   = "org.apache.kafka.connect.json.JsonConverter"
	bytesConverter  = "org.apache.kafka.connect.converters.ByteArrayConverter"
	binaryConverter = "io.debezium.converters.BinaryDataConverter"
	bufferConverter = "io.debezium.converters.ByteBufferConverter" // the name of binaryConverter until Debezium 2
)

// converterNames are walpost's names for Kafka Connect's classes.
var converterNames = map[string]string{
	stringConverter: "string", simpleConverter: "simple", jsonConverter: "json", bytesConverter: "bytes",
	binaryConverter: "binary", bufferConverter: "binary",
}

// serverFormats are Debezium Server's names for the classes.
var serverFormats = map[string]string{
	"json": jsonConverter, "jsonbytearray": jsonConverter, "simplestring": stringConverter, "binary": binaryConverter,
}

// converted are the parts of a record that have a converter.
var converted = []string{"key", "value", "header"}

// modes are the options that records has under the same names, with Debezium's defaults.
var modes = [][2]string{
	{"time.precision.mode", "adaptive"},
	{"decimal.handling.mode", "precise"},
	{"binary.handling.mode", "bytes"},
	{"interval.handling.mode", "numeric"},
	{"hstore.handling.mode", "json"},
	{"schema.name.adjustment.mode", "none"},
	{"field.name.adjustment.mode", "none"},
	{"unavailable.value.placeholder", "__debezium_unavailable_value"},
}

// records converts the section records.
func (c *conversion) records() {
	c.out.section("records", "")
	c.topicPrefix()
	for _, which := range converted {
		if c.in.Format == input.Server {
			c.serverFormat(which)
		} else {
			c.connectConverter(which)
		}
	}
	for _, mode := range modes {
		if v, ok := c.literal(mode[0]); ok && v == mode[1] {
			c.mapped(mode[0], "records."+mode[0], "%s", v)
		} else if ok {
			c.set(mode[0], mode[0], v, "")
		}
	}
	c.headerSteps()
	c.schemaParameters()
}

func (c *conversion) topicPrefix() {
	const headers, prefix = "extended.headers.enabled", "topic.prefix"
	if v, ok := c.literal(prefix); ok {
		c.set(prefix, prefix, v, "")
	} else if !c.in.Has(prefix) {
		c.bad(prefix, "is required")
	}
	on, ok := c.boolean(headers, !c.old)
	if !ok {
		return
	}
	on = on && c.in.Has(prefix)
	c.mapped(headers, "records."+headers, "%v", on)
	if on {
		comment := ""
		if !c.in.Has(headers) {
			comment = "this is Debezium's default since 3.2; an older Debezium writes none of the four headers: set false"
		}
		c.out.put(headers, "true", comment)
	}
}

// connectConverter maps a converter of the connector, or of its worker if the connector has none.
// Connect reads the options from the same place as the class.
func (c *conversion) connectConverter(which string) {
	own := which + ".converter"
	option := own
	if !c.in.Has(own) {
		for _, e := range c.in.List {
			if strings.HasPrefix(e.Name, own+".") {
				c.idle(e.Name, "without %s in the connector, Connect uses the worker's converter with the worker's options, and ignores this option", own)
			}
		}
		option = input.Workers + own
	}
	class, ok := c.literal(option)
	switch {
	case ok:
		c.converter(option, class, which, converterOptions{c, option + ".", "records." + own})
	case c.in.Has(option):
	case which == "header":
		text := "simple"
		if c.noWorker() {
			text += ", unless the worker has another converter: pass --worker worker.properties"
		}
		c.mapped(own, "records."+own, "%s", text)
	default:
		more := ", but the worker has none"
		if len(c.o.Worker) == 0 {
			more = ": pass its properties with --worker worker.properties, or write the worker's converter into the connector"
		}
		c.bad(own, "the connector has no converter, so the worker's converter is used%s", more)
	}
}

// serverFormat maps debezium.format.…. An option without key, value or header counts for all three
// that do not have it.
func (c *conversion) serverFormat(which string) {
	option := "debezium.format." + which
	format, ok := c.literal(option)
	if !ok && c.in.Has(option) {
		return
	}
	class := serverFormats[strings.ToLower(cmp.Or(format, "json"))]
	if own, there := c.literal(option + ".class"); there {
		class = own
		c.mapped(option+".class", "records."+which+".converter", "%s", own)
	}
	if class == "" {
		c.bad(option, "%s: walpost supports json, jsonbytearray, simplestring and binary", format)
		return
	}
	for _, e := range c.in.List {
		if rest, ok := strings.CutPrefix(e.Name, "debezium.format."); ok && c.in.ByName[option+"."+rest] == nil {
			c.in.ByName[option+"."+rest] = e
		}
	}
	c.converter(option, class, which, converterOptions{c, option + ".", "records." + which + ".converter"})
}

// A converterOptions are the options behind a converter's prefix.
type converterOptions struct {
	c      *conversion
	prefix string
	field  string
}

// key is the key of an option in the section records.
func (s converterOptions) key(name string) string {
	return strings.TrimPrefix(s.field, "records.") + "." + name
}

// converter writes one converter with its options.
func (c *conversion) converter(option, class, which string, s converterOptions) {
	name := converterNames[class]
	wrong := name == "" || which == "header" && (name == "bytes" || name == "binary") || which != "header" && name == "simple"
	rest := func(format string, args ...any) {
		for _, e := range c.in.List {
			if strings.HasPrefix(e.Name, s.prefix) && !c.done[e.Name] && c.in.Format != input.Server {
				c.idle(e.Name, format, args...)
			}
		}
	}
	if wrong {
		c.bad(option, "%s: walpost supports StringConverter, JsonConverter, ByteArrayConverter and BinaryDataConverter, and for headers SimpleHeaderConverter, StringConverter and JsonConverter", class)
		rest("belongs to %s", option)
		return
	}
	text := name
	if class == bufferConverter {
		text += " (since Debezium 2 its name is BinaryDataConverter)"
	}
	if which == "header" {
		c.headers = name
	}
	c.mapped(option, s.field, "%s", text)
	c.out.put(which+".converter", name, "")
	switch name {
	case "json":
		c.jsonOptions(s)
	case "string":
		if v, ok := c.literal(s.prefix + "converter.encoding"); ok && (strings.EqualFold(v, "UTF8") || strings.EqualFold(v, "UTF-8")) {
			c.idle(s.prefix+"converter.encoding", "walpost writes UTF-8")
		} else if ok {
			c.bad(s.prefix+"converter.encoding", "walpost writes only UTF-8")
		}
	case "binary":
		c.delegate(s)
	}
	rest("%s does not have this option and ignores it", name)
}

// jsonOptions writes the options of a JsonConverter. By default it writes schemas, and walpost does
// not.
func (c *conversion) jsonOptions(s converterOptions) {
	option := s.prefix + "schemas.enable"
	schemas, ok := c.boolean(option, true)
	if ok && c.in.Has(option) {
		c.mapped(option, s.field+".schemas.enable", "%v", schemas)
	} else if ok {
		c.mapped(option, s.field+".schemas.enable", "true: JsonConverter's default")
	}
	if schemas {
		c.schemas = true
		c.out.put(s.key("schemas.enable"), "true", "")
	}
	option = s.prefix + "decimal.format"
	if v, ok := c.literal(option); ok {
		c.mapped(option, s.field+".decimal.format", "%s", v)
		if !strings.EqualFold(v, "base64") {
			c.out.put(s.key("decimal.format"), scalar(dollars(strings.ToLower(v))), "")
		}
	}
	option = s.prefix + "replace.null.with.default"
	if replaces, ok := c.boolean(option, true); ok && c.in.Has(option) {
		c.mapped(option, s.field+".replace.null.with.default", "%v", replaces)
		if !replaces {
			c.out.put(s.key("replace.null.with.default"), "false", "")
		}
	}
	if c.in.Has(s.prefix + "schemas.cache.size") {
		c.idle(s.prefix+"schemas.cache.size", "walpost keeps one schema for each relation")
	}
}

// delegate writes the converter that BinaryDataConverter uses for values that are not bytes.
func (c *conversion) delegate(s converterOptions) {
	const key = "delegate.converter.type"
	class, ok := c.literal(s.prefix + key)
	switch name := converterNames[class]; {
	case !ok:
	case name == "" || name == "simple" || name == "binary":
		c.bad(s.prefix+key, "%s: as a delegate, walpost supports StringConverter, JsonConverter and ByteArrayConverter", class)
	default:
		c.set(s.prefix+key, s.key(key), name, "")
		if name == "json" {
			c.jsonOptions(converterOptions{c, s.prefix + key + ".", s.field + "." + key})
		}
	}
}

// schemaParameters converts options that matter only if schemas are written.
func (c *conversion) schemaParameters() {
	for _, option := range []string{"column.propagate.source.type", "datatype.propagate.source.type", "include.schema.comments"} {
		v, ok := c.literal(option)
		switch {
		case !ok, c.done[option]:
		case !c.schemas || strings.EqualFold(v, "false"):
			c.idle(option, "the option adds to schemas, and no converter writes schemas")
		default:
			c.bad(option, "walpost does not add this to the schemas: leave the option out, or write schemas.enable=false")
		}
	}
}
