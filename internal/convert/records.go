package convert

import (
	"strings"
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

// records converts the section records.
func (c *conversion) records() {
	c.out.section("records", "")
	c.topicPrefix()
	for _, which := range []string{"key", "value", "header"} {
		if c.in.format == Server {
			c.serverFormat(which)
		} else {
			c.connectConverter(which)
		}
	}
	if c.in.format == Server {
		c.serverLeftovers()
	}
	for _, o := range []struct{ name, fallback string }{
		{"time.precision.mode", "adaptive"},
		{"decimal.handling.mode", "precise"},
		{"binary.handling.mode", "bytes"},
		{"interval.handling.mode", "numeric"},
		{"hstore.handling.mode", "json"},
		{"schema.name.adjustment.mode", "none"},
		{"field.name.adjustment.mode", "none"},
		{"unavailable.value.placeholder", "__debezium_unavailable_value"},
	} {
		v, ok := c.literal(o.name)
		if !ok {
			continue
		}
		c.mapped(o.name, "records."+o.name, "%s", printable(v))
		if !strings.EqualFold(v, o.fallback) || o.name == "unavailable.value.placeholder" && v != o.fallback {
			c.out.put(o.name, scalar(dollars(v)), "")
		}
	}
	c.headerSteps()
	c.schemaParameters()
}

func (c *conversion) topicPrefix() {
	const headers, prefix = "extended.headers.enabled", "topic.prefix"
	if v, ok := c.literal(prefix); ok {
		c.mapped(prefix, "records."+prefix, "%s", printable(v))
		c.out.put(prefix, scalar(dollars(v)), "")
	} else if !c.in.has(prefix) {
		c.add(Unsupported, prefix, true, "is required")
	}
	on, ok := c.boolean(headers, !c.old)
	if !ok {
		return
	}
	on = on && c.in.has(prefix)
	c.mapped(headers, "records."+headers, "%v", on)
	if on {
		comment := ""
		if !c.in.has(headers) {
			comment = "this is Debezium's default since 3.2; an older Debezium writes none of the four headers: set false"
		}
		c.out.put(headers, "true", comment)
	}
}

// connectConverter maps a converter of the connector, or of its worker if the connector has none.
// Connect reads the options from the same place as the class.
func (c *conversion) connectConverter(which string) {
	option := which + ".converter"
	from, label := c.in, ""
	if !c.in.has(option) {
		for _, e := range c.in.list {
			if strings.HasPrefix(e.name, option+".") {
				c.idle(e.name, "without %s in the connector, Connect uses the worker's converter with the worker's options, and ignores this option", option)
			}
		}
		switch {
		case c.worker != nil && c.worker.has(option):
			from, label = c.worker, workers
		case which == "header":
			text := "simple"
			if c.noWorker() {
				text += ", unless the worker has another one: pass --worker worker.properties"
			}
			c.mapped(option, "records."+option, "%s", text)
			return
		default:
			more := "; the worker has none"
			if c.worker == nil {
				more = ": pass its properties with --worker worker.properties, or write the worker's converter into the connector"
			}
			c.bad(option, "the connector has no converter, so the worker's converter is used%s", more)
			return
		}
	}
	class, ok := c.literalOf(from.byName[option], label+option)
	if !ok {
		return
	}
	settings := converterOptions{c: c, from: from, prefix: option + ".", field: "records." + option, label: label}
	c.converter(label+option, class, which, settings)
}

// A converterOptions reads the options behind a converter's prefix and reports them.
type converterOptions struct {
	c      *conversion
	from   *options
	prefix string
	field  string
	label  string // precedes the names in the report
}

// name is an option's name in the report.
func (s converterOptions) name(option string) string { return s.label + s.prefix + option }

func (s converterOptions) get(name string) (string, bool) {
	if !s.from.has(s.prefix + name) {
		return "", false
	}
	return s.c.literalOf(s.from.byName[s.prefix+name], s.name(name))
}

// converter writes one converter with its options.
func (c *conversion) converter(option, class, which string, s converterOptions) {
	name := converterNames[class]
	if name == "" || which == "header" && (name == "bytes" || name == "binary") || which != "header" && name == "simple" {
		c.bad(option, "%s: walpost supports StringConverter, JsonConverter, ByteArrayConverter and BinaryDataConverter, and for headers SimpleHeaderConverter, StringConverter and JsonConverter", printable(class))
		for _, e := range s.from.list {
			if strings.HasPrefix(e.name, s.prefix) && s.from == c.in {
				c.idle(e.name, "belongs to %s", printable(option))
			}
		}
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
	key := strings.TrimPrefix(s.field, "records.")
	c.out.put(key, name, "")
	switch name {
	case "json":
		c.jsonOptions(s, key)
	case "string":
		if v, ok := s.get("converter.encoding"); ok {
			if strings.EqualFold(v, "UTF8") || strings.EqualFold(v, "UTF-8") {
				c.idle(s.name("converter.encoding"), "walpost writes UTF-8")
			} else {
				c.bad(s.name("converter.encoding"), "walpost writes only UTF-8")
			}
		}
	case "binary":
		c.delegate(s, key)
	}
	for _, e := range s.from.list {
		if strings.HasPrefix(e.name, s.prefix) && !c.done[e.name] && s.from == c.in {
			c.idle(e.name, "%s does not have this option and ignores it", name)
		}
	}
}

// jsonOptions writes the options of a JsonConverter. By default it writes schemas, and walpost does
// not.
func (c *conversion) jsonOptions(s converterOptions, key string) {
	schemas := true
	if v, ok := s.get("schemas.enable"); ok {
		switch {
		case strings.EqualFold(v, "true"), strings.EqualFold(v, "false"):
			schemas = strings.EqualFold(v, "true")
			c.mapped(s.name("schemas.enable"), s.field+".schemas.enable", "%v", schemas)
		default:
			c.bad(s.name("schemas.enable"), "must be true or false")
		}
	} else if !s.from.has(s.prefix + "schemas.enable") {
		c.mapped(s.name("schemas.enable"), s.field+".schemas.enable", "true: JsonConverter's default")
	}
	if schemas {
		c.schemas = true
		c.out.put(key+".schemas.enable", "true", "")
	}
	if v, ok := s.get("decimal.format"); ok {
		c.mapped(s.name("decimal.format"), s.field+".decimal.format", "%s", printable(v))
		if !strings.EqualFold(v, "base64") {
			c.out.put(key+".decimal.format", scalar(dollars(strings.ToLower(v))), "")
		}
	}
	if v, ok := s.get("replace.null.with.default"); ok {
		c.mapped(s.name("replace.null.with.default"), s.field+".replace.null.with.default", "%s", printable(strings.ToLower(v)))
		if strings.EqualFold(v, "false") {
			c.out.put(key+".replace.null.with.default", "false", "")
		} else if !strings.EqualFold(v, "true") {
			c.bad(s.name("replace.null.with.default"), "must be true or false")
		}
	}
	if s.from.has(s.prefix + "schemas.cache.size") {
		c.idle(s.name("schemas.cache.size"), "walpost keeps one schema for each relation")
	}
}

// delegate writes the converter that BinaryDataConverter uses for values that are not bytes.
func (c *conversion) delegate(s converterOptions, key string) {
	const option = "delegate.converter.type"
	class, ok := s.get(option)
	if !ok {
		return
	}
	name := converterNames[class]
	if name == "" || name == "simple" || name == "binary" {
		c.bad(s.name(option), "%s: as a delegate, walpost supports StringConverter, JsonConverter and ByteArrayConverter", printable(class))
		return
	}
	c.mapped(s.name(option), s.field+"."+option, "%s", name)
	c.out.put(key+"."+option, name, "")
	if name == "json" {
		inner := s
		inner.prefix, inner.field = s.prefix+option+".", s.field+"."+option
		c.jsonOptions(inner, key+"."+option)
	}
}

// serverFormat maps debezium.format.…. An option without key, value or header counts for all three
// that do not have it.
func (c *conversion) serverFormat(which string) {
	option := "debezium.format." + which
	format, ok := c.literal(option)
	if !ok {
		if c.in.has(option) {
			return
		}
		format = "json"
	}
	class := serverFormats[strings.ToLower(format)]
	if own, there := c.literal(option + ".class"); there {
		class = own
		c.mapped(option+".class", "records."+which+".converter", "%s", printable(own))
	}
	if class == "" {
		c.bad(option, "%s: walpost supports json, jsonbytearray, simplestring and binary", printable(format))
		return
	}
	merged := newOptions(nil) // the options of this format, then those of all three
	for _, prefix := range []string{option + ".", "debezium.format."} {
		for _, e := range c.in.list {
			rest, ok := strings.CutPrefix(e.name, prefix)
			if !ok || prefix == "debezium.format." && ofOneFormat(rest) {
				continue
			}
			if merged.byName[option+"."+rest] == nil {
				merged.put(&entry{name: option + "." + rest, label: e.label, value: e.value, line: e.line, parts: e.parts})
			}
		}
	}
	c.converter(option, class, which, converterOptions{c: c, from: merged, prefix: option + ".", field: "records." + which + ".converter"})
	for _, e := range merged.list { // report an option of all three once, with the first format that uses it
		if c.done[e.name] && e.label != e.name {
			for _, own := range c.in.list {
				if own.label == e.label {
					c.done[own.name] = c.done[own.name] || c.reportAs(own, e.name)
				}
			}
		}
	}
}

func ofOneFormat(rest string) bool {
	for _, which := range []string{"key", "value", "header"} {
		if rest == which || strings.HasPrefix(rest, which+".") {
			return true
		}
	}
	return false
}

// reportAs turns the finding of name into that of e, an option of all formats.
func (c *conversion) reportAs(e *entry, name string) bool {
	for i := range c.found {
		if f := &c.found[i]; f.Option == c.in.shown(name) {
			f.Option, f.Default, f.where = c.in.shown(e.name), false, e.order
			return true
		}
	}
	return false
}

func (c *conversion) serverLeftovers() {
	for _, e := range c.in.list {
		if strings.HasPrefix(e.name, "debezium.format.") && !c.done[e.name] {
			c.idle(e.name, "none of these formats has this option")
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
