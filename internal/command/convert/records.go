package convert

import (
	"cmp"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
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
	binaryConverter: "binary", bufferConverter: "binary", confluentAvro: "avro", apicurioAvro: "avro",
	confluentJSON: "json_schema", confluentProtobuf: "protobuf",
}

// serverFormats are Debezium Server's names for the classes.
var serverFormats = map[string]string{
	"json": jsonConverter, "jsonbytearray": jsonConverter, "simplestring": stringConverter, "binary": binaryConverter,
}

// converted are the parts of a record that have a converter.
var converted = []string{"key", "value", "header"}

// writeRecords converts the section records.
func writeRecords(w *writer) {
	w.section("records", "")
	writePrefix(w)
	for _, which := range converted {
		if w.in.Format == input.Server {
			serverFormat(w, which)
		} else {
			connectConverter(w, which)
		}
	}
	w.options("", recordOptions, nil)
	writeHeaders(w)
	schemaParameters(w)
}

func writePrefix(w *writer) {
	const headers, prefix = "extended.headers.enabled", "topic.prefix"
	if v, ok := w.literal(prefix); ok {
		w.set(prefix, prefix, v, "")
	} else if !w.in.Has(prefix) {
		w.bad(prefix, "is required")
	}
	on, ok := w.boolean(headers, !w.old)
	if !ok {
		return
	}
	on = on && w.in.Has(prefix)
	w.mapped(headers, "records."+headers, "%v", on)
	if on {
		comment := ""
		if !w.in.Has(headers) {
			comment = "this is Debezium's default since 3.2; an older Debezium writes none of the four headers: set false"
		}
		w.put(headers, "true", comment)
	}
}

// connectConverter maps a converter of the connector, or of its worker if the connector has none.
// Connect reads the options from the same place as the class.
func connectConverter(w *writer, which string) {
	own := which + ".converter"
	option := own
	if !w.in.Has(own) {
		for _, e := range w.in.List {
			if strings.HasPrefix(e.Name, own+".") {
				w.idle(e.Name, "without %s in the connector, Connect uses the worker's converter with the worker's options, and ignores this option", own)
			}
		}
		option = input.Workers + own
	}
	class, ok := w.literal(option)
	switch {
	case ok:
		writeConverter(w, option, class, which, converterOptions{option + ".", "records." + own})
	case w.in.Has(option):
	case which == "header":
		text := "simple"
		if w.noWorker {
			text += ", unless the worker has another converter: pass --worker worker.properties"
		}
		w.mapped(own, "records."+own, "%s", text)
	default:
		more := ", but the worker has none"
		if w.noWorker {
			more = ": pass its properties with --worker worker.properties, or write the worker's converter into the connector"
		}
		w.bad(own, "the connector has no converter, so the worker's converter is used%s", more)
	}
}

// serverFormat maps debezium.format.…. An option without key, value or header counts for all three
// that do not have it.
func serverFormat(w *writer, which string) {
	option := "debezium.format." + which
	format, ok := w.literal(option)
	if !ok && w.in.Has(option) {
		return
	}
	class := serverFormats[strings.ToLower(cmp.Or(format, "json"))]
	if own, there := w.literal(option + ".class"); there {
		class = own
		w.mapped(option+".class", "records."+which+".converter", "%s", own)
	}
	if class == "" {
		w.bad(option, "%s: walpost supports json, jsonbytearray, simplestring and binary", format)
		return
	}
	for _, e := range w.in.List {
		rest, ok := strings.CutPrefix(e.Name, "debezium.format.")
		first, _, _ := strings.Cut(rest, ".")
		if ok && !slices.Contains(converted, first) && w.in.ByName[option+"."+rest] == nil {
			w.in.ByName[option+"."+rest] = e
		}
	}
	writeConverter(w, option, class, which, converterOptions{option + ".", "records." + which + ".converter"})
}

// A converterOptions are the options behind a converter's prefix.
type converterOptions struct {
	prefix string
	field  string
}

// key is the key of an option in the section records.
func (s converterOptions) key(name string) string {
	return strings.TrimPrefix(s.field, "records.") + "." + name
}

// writeConverter writes one converter with its options.
func writeConverter(w *writer, option, class, which string, s converterOptions) {
	name := converterNames[class]
	registered := name == "avro" || name == "json_schema" || name == "protobuf"
	wrong := name == "" || which == "header" && (name == "bytes" || name == "binary" || registered) || which != "header" && name == "simple" || registered && w.managed
	rest := func(format string, args ...any) {
		for _, e := range w.in.List {
			if strings.HasPrefix(e.Name, s.prefix) && !w.done[e.Name] && w.in.Format != input.Server {
				w.idle(e.Name, format, args...)
			}
		}
	}
	if class == apicurioJSON {
		w.bad(option, "%s: it writes Kafka Connect's schemas, which only Apicurio's converter reads", class)
		rest("belongs to %s", option)
		return
	}
	if wrong {
		w.bad(option, "%s: walpost supports StringConverter, JsonConverter, ByteArrayConverter, BinaryDataConverter, AvroConverter, and Confluent's JsonSchemaConverter and ProtobufConverter, and for headers SimpleHeaderConverter, StringConverter and JsonConverter", class)
		rest("belongs to %s", option)
		return
	}
	text := name
	if class == bufferConverter {
		text += " (since Debezium 2 its name is BinaryDataConverter)"
	}
	if which == "header" {
		w.headers = name
	}
	w.mapped(option, s.field, "%s", text)
	w.put(which+".converter", name, "")
	switch name {
	case "json":
		writeJSON(w, s)
	case "string":
		if v, ok := w.literal(s.prefix + "converter.encoding"); ok && (strings.EqualFold(v, "UTF8") || strings.EqualFold(v, "UTF-8")) {
			w.idle(s.prefix+"converter.encoding", "walpost writes UTF-8")
		} else if ok {
			w.bad(s.prefix+"converter.encoding", "walpost writes only UTF-8")
		}
	case "binary":
		writeDelegate(w, s)
	case "avro", "json_schema", "protobuf":
		writeRegistered(w, class, which, s)
	}
	rest("%s does not have this option and ignores it", name)
}

// writeJSON writes the options of a JsonConverter. By default it writes schemas, and walpost does
// not.
func writeJSON(w *writer, s converterOptions) {
	option := s.prefix + "schemas.enable"
	schemas, ok := w.boolean(option, true)
	if ok && w.in.Has(option) {
		w.mapped(option, s.field+".schemas.enable", "%v", schemas)
	} else if ok {
		w.mapped(option, s.field+".schemas.enable", "true: JsonConverter's default")
	}
	if schemas {
		w.schemas = true
		w.put(s.key("schemas.enable"), "true", "")
	}
	decimals(w, s)
	option = s.prefix + "replace.null.with.default"
	if replaces, ok := w.boolean(option, true); ok && w.in.Has(option) {
		w.mapped(option, s.field+".replace.null.with.default", "%v", replaces)
		if !replaces {
			w.put(s.key("replace.null.with.default"), "false", "")
		}
	}
	if w.in.Has(s.prefix + "schemas.cache.size") {
		w.idle(s.prefix+"schemas.cache.size", "walpost keeps one schema for each relation")
	}
}

// decimals maps decimal.format.
func decimals(w *writer, s converterOptions) {
	option := s.prefix + "decimal.format"
	if v, ok := w.literal(option); ok {
		w.mapped(option, s.field+".decimal.format", "%s", v)
		if !strings.EqualFold(v, "base64") {
			w.put(s.key("decimal.format"), scalar(dollars(strings.ToLower(v))), "")
		}
	}
}

// writeDelegate writes the converter that BinaryDataConverter uses for values that are not bytes.
func writeDelegate(w *writer, s converterOptions) {
	const key = "delegate.converter.type"
	class, ok := w.literal(s.prefix + key)
	switch name := converterNames[class]; {
	case !ok:
	case name != "string" && name != "json" && name != "bytes":
		w.bad(s.prefix+key, "%s: as a delegate, walpost supports StringConverter, JsonConverter and ByteArrayConverter", class)
	default:
		w.set(s.prefix+key, s.key(key), name, "")
		if name == "json" {
			writeJSON(w, converterOptions{s.prefix + key + ".", s.field + "." + key})
		}
	}
}

// schemaParameters converts options that matter only if schemas are written.
func schemaParameters(w *writer) {
	for _, option := range []string{"column.propagate.source.type", "datatype.propagate.source.type", "include.schema.comments"} {
		v, ok := w.literal(option)
		switch {
		case !ok, w.done[option]:
		case !w.schemas || strings.EqualFold(v, "false"):
			w.idle(option, "the option adds to schemas, and no converter writes schemas")
		default:
			w.bad(option, "walpost does not add this to the schemas: leave the option out, or write schemas.enable=false")
		}
	}
}
