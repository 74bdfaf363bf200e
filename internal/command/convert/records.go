package convert

import (
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
	"github.com/walpost/walpost/router"
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

// converted are the parts of a record that have a converter.
var converted = []string{"key", "value", "header"}

// writeRecords converts the section records.
func writeRecords(w *writer) {
	w.section("records", "")
	writePrefix(w)
	for _, which := range converted {
		connectConverter(w, which)
	}
	defaults := router.DefaultConfig()
	w.options("", sameNames(&defaults.Records, "key.converter", "value.converter", "header.converter", "topic.prefix", "extended.headers"), nil)
	writeHeaders(w)
	schemaParameters(w)
}

func writePrefix(w *writer) {
	const headers, prefix = "extended.headers.enabled", "topic.prefix"
	if v, ok := w.literal(prefix); ok {
		w.set(prefix, prefix, v, "")
	} else if !w.in.Has(prefix) {
		w.bad(prefix, "convert reads the names since Debezium 2.0, so topic.prefix is required")
	}
	on, ok := w.boolean(headers, true)
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
	name := which + ".converter"
	option := name
	if !w.in.Has(name) {
		for _, e := range w.in.List {
			if strings.HasPrefix(e.Name, name+".") {
				w.idle(e.Name, "without %s in the connector, Connect uses the worker's converter with the worker's options, and ignores this option", name)
			}
		}
		option = input.Workers + name
	}
	class, ok := w.literal(option)
	switch {
	case ok:
		writeConverter(w, option, class, which)
	case w.in.Has(option):
	case which == "header":
		text := "simple"
		if w.noWorker {
			text += ", unless the worker has another converter: pass --worker worker.properties"
		}
		w.mapped(name, "records."+name, "%s", text)
	default:
		more := ", but the worker has none"
		if w.noWorker {
			more = ": pass its properties with --worker worker.properties, or write the worker's converter into the connector"
		}
		w.bad(name, "the connector has no converter, so the worker's converter is used%s", more)
	}
}

// writeConverter writes one converter with its options, whose names begin with option.
func writeConverter(w *writer, option, class, which string) {
	name, key := converterNames[class], which+".converter"
	wrong := name == "" || which == "header" && (name == "bytes" || name == "binary") || which != "header" && name == "simple"
	text := name + " does not have this option and ignores it"
	if wrong {
		name = ""
		w.bad(option, "%s: walpost supports StringConverter, JsonConverter, ByteArrayConverter and BinaryDataConverter, and for headers SimpleHeaderConverter, StringConverter and JsonConverter", class)
		text = "belongs to " + option
	} else {
		w.set(option, key, name, "")
	}
	if which == "header" {
		w.headers = name
	}
	switch encoding, _ := w.literal(option + ".converter.encoding"); name {
	case "json":
		writeJSON(w, option+".", key+".")
	case "string":
		if strings.EqualFold(encoding, "UTF8") || strings.EqualFold(encoding, "UTF-8") {
			w.idle(option+".converter.encoding", "walpost writes UTF-8")
		} else if encoding != "" {
			w.bad(option+".converter.encoding", "walpost writes only UTF-8")
		}
	case "binary":
		writeDelegate(w, option, key)
	}
	for _, e := range w.in.List {
		if strings.HasPrefix(e.Name, option+".") && !w.done[e.Name] {
			w.idle(e.Name, "%s", text)
		}
	}
}

// writeJSON writes the options of a JsonConverter, which begin with prefix, and in walpost with key. By default it writes
// schemas, and walpost does not.
func writeJSON(w *writer, prefix, key string) {
	schemas, _ := w.boolean(prefix+"schemas.enable", true)
	w.schemas = w.schemas || schemas
	w.options(prefix, []option{
		{name: "schemas.enable", key: key + "schemas.enable", fallback: "true", always: true, flag: true},
		{name: "decimal.format", key: key + "decimal.format", fallback: "base64", fold: true},
		{name: "replace.null.with.default", key: key + "replace.null.with.default", fallback: "true", flag: true},
	}, nil)
	if w.in.Has(prefix + "schemas.cache.size") {
		w.idle(prefix+"schemas.cache.size", "walpost keeps one schema for each relation")
	}
}

// writeDelegate writes the converter that BinaryDataConverter uses for values that are not bytes.
func writeDelegate(w *writer, option, key string) {
	option, key = option+".delegate.converter.type", key+".delegate.converter.type"
	class, ok := w.literal(option)
	switch name := converterNames[class]; {
	case !ok:
	case name == "" || name == "simple" || name == "binary":
		w.bad(option, "%s: as a delegate, walpost supports StringConverter, JsonConverter and ByteArrayConverter", class)
	default:
		w.set(option, key, name, "")
		if name == "json" {
			writeJSON(w, option+".", key+".")
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
