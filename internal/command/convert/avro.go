package convert

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
)

const (
	confluentAvro     = "io.confluent.connect.avro.AvroConverter"
	confluentJSON     = "io.confluent.connect.json.JsonSchemaConverter"
	confluentProtobuf = "io.confluent.connect.protobuf.ProtobufConverter"
	apicurioAvro      = "io.apicurio.registry.utils.converter.AvroConverter"
	apicurioJSON      = "io.apicurio.registry.utils.converter.ExtJsonConverter"
	apicurio          = "apicurio.registry."
	confluent         = "schema.registry."
)

// subjectNames are walpost's names for the strategies by the last part of their class.
var subjectNames = map[string]string{
	"TopicNameStrategy": "topic", "RecordNameStrategy": "record", "TopicRecordNameStrategy": "topic_record",
	"TopicIdStrategy": "topic", "RecordIdStrategy": "record", "TopicRecordIdStrategy": "topic_record",
}

// apicurioAPI is the end of the URLs that Apicurio's converters have.
var apicurioAPI = regexp.MustCompile(`(/apis/registry/v[23])?/?$`)

// writeRegistered writes the options of a converter with a registry. The registry gets a section of its
// own, which is one for both converters.
func writeRegistered(w *writer, class, which string, s converterOptions) {
	w.schemas = true
	is := class == apicurioAvro
	option := func(ofApicurio, ofConfluent string) string {
		if is {
			return s.prefix + apicurio + ofApicurio
		}
		return s.prefix + ofConfluent
	}
	w.registryURL(option("url", confluent+"url"), is)
	w.registryLogin(s.prefix, is)
	auto := w.flag(option("auto-register", "auto.register.schemas"), s, "auto.register.schemas", !is, true)
	if latest := option("find-latest", "use.latest.version"); !auto {
		w.flag(latest, s, "use.latest.version", false, false)
	} else if w.in.Has(latest) {
		w.idle(latest, "%s registers the schema of each record, and uses no other", option("auto-register", "auto.register.schemas"))
	}
	w.subjects(option("artifact-resolver-strategy", which+".subject.name.strategy"), s)
	if is {
		w.must(option("as-confluent", ""), "true", "walpost writes Confluent's wire format only: set it to true here and in the consumers")
		w.must(option("headers.enabled", ""), "false", "walpost writes the id before the value: set it to false here and in the consumers")
		w.must(option("use-id", ""), "contentId", "walpost writes the id of the content: set it to contentId here and in the consumers")
		w.fine(option("auto-register.if-exists", ""), "RETURN_OR_UPDATE", "FIND_OR_CREATE_VERSION")
		w.fine(option("avro.encoding", ""), "BINARY")
	} else {
		w.fine(s.prefix+"normalize.schemas", "false")
		w.fine(s.prefix+"latest.compatibility.strict", "true", "false")
	}
	switch class {
	case confluentJSON:
		writeJSONSchema(w, s)
	case confluentProtobuf:
		writeProtobuf(w, s)
	default:
		w.fine(s.prefix+"connect.meta.data", "true")
		w.fine(s.prefix+"enhanced.avro.schema.support", "false")
	}
	for _, name := range []string{"schemas.cache.config", "schemas.cache.size", apicurio + "check-period-ms"} {
		if w.in.Has(s.prefix + name) {
			w.idle(s.prefix+name, "walpost keeps the ids of all schemas")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.in.ByName)) { // of the connector or its worker
		if e := w.in.ByName[name]; strings.HasPrefix(name, s.prefix) && !w.done[e.Name] {
			w.bad(e.Name, "walpost has no such converter option: leave the option out, or write its equivalent under schema_registry")
		}
	}
}

// writeJSONSchema writes the options that only JsonSchemaConverter has.
func writeJSONSchema(w *writer, s converterOptions) {
	decimals(w, s)
	w.flag(s.prefix+"object.additional.properties", s, "object.additional.properties", true, true)
	for _, name := range []string{"ignore.default.for.nullables", "preserve.additional.properties", "json.indent.output", "json.fail.invalid.schema"} {
		w.fine(s.prefix+name, "false")
	}
	w.unread(s, "use.optional.for.nonrequired", "flatten.singleton.unions", "ignore.modern.dialects")
}

// writeProtobuf writes the options that only ProtobufConverter has. Debezium has no unions, and its enums are texts.
func writeProtobuf(w *writer, s converterOptions) {
	for _, name := range []string{"optional.for.nullables", "wrapper.for.nullables", "scrub.invalid.names"} {
		w.flag(s.prefix+name, s, name, false, false)
	}
	w.fine(s.prefix+"ignore.default.for.nullables", "false")
	w.fine(s.prefix+"skip.known.types", "true")
	w.unread(s, "enhanced.protobuf.schema.support", "int.for.enums", "optional.for.proto2", "wrapper.for.raw.primitives", "generate.struct.for.nulls",
		"generate.index.for.unions", "flatten.unions", "generalized.sum.type.support", "reference.lookup.only", "reference.subject.name.strategy")
}

// unread reports options that only matter when values are read, or for schemas that Debezium does not have.
func (w *writer) unread(s converterOptions, names ...string) {
	for _, name := range names {
		if w.in.Has(s.prefix + name) {
			w.idle(s.prefix+name, "changes nothing of what is written")
		}
	}
}

// A registrySection is the section schema_registry.
type registrySection struct {
	keys   []string // as YAML
	values map[string]string
	notes  []string
	groups bool // Apicurio's subjects would be in a group
}

// registryKey sets a key of schema_registry, which both converters must have alike.
func (w *writer) registryKey(option, key, value string) {
	r := &w.registry
	was, there := r.values[key]
	switch {
	case !there:
		if r.values == nil {
			r.values = map[string]string{}
		}
		r.keys, r.values[key] = append(r.keys, key), value
	case was != value:
		w.bad(option, "the two converters have different values, but walpost has only one schema_registry")
		return
	}
	w.mapped(option, "schema_registry."+key, "%s", value)
}

func (w *writer) registryURL(option string, ofApicurio bool) {
	text, ok := w.literal(option)
	if !ok {
		if !w.in.Has(option) {
			w.bad(option, "is required")
		}
		return
	}
	urls := conf.SplitList(text)
	for i, u := range urls {
		if strings.Contains(u, "@") {
			w.bad(option, "the URL has a password: write schema_registry.username and schema_registry.password_file instead")
			return
		}
		if urls[i] = dollars(u); ofApicurio {
			urls[i] = apicurioAPI.ReplaceAllString(urls[i], "") + "/apis/ccompat/v7"
		}
	}
	w.registryKey(option, "urls", list(urls))
}

// registryLogin maps basic authentication.
func (w *writer) registryLogin(prefix string, ofApicurio bool) {
	const user, secret = "${WALPOST_SCHEMA_REGISTRY_USERNAME}", "${WALPOST_SCHEMA_REGISTRY_PASSWORD}"
	set := func(option, key, value string) {
		if w.registry.values[key] == "" {
			w.registry.notes = append(w.registry.notes, "set the variable of "+key+": the output does not repeat the value of the input")
		}
		w.registryKey(option, key, value)
	}
	if ofApicurio {
		for _, at := range []string{apicurio + "auth.", "apicurio.auth."} {
			if option := prefix + at + "username"; w.in.Has(option) {
				set(option, "username", flow(user))
			}
			if option := prefix + at + "password"; w.in.Has(option) {
				set(option, "password", flow(secret))
			}
		}
		return
	}
	source := prefix + "basic.auth.credentials.source"
	w.fine(source, "USER_INFO")
	for _, name := range []string{"basic.auth.user.info", confluent + "basic.auth.user.info"} {
		if option := prefix + name; w.in.Has(option) {
			set(option, "username", flow(user))
			set(option, "password", flow(secret))
		}
	}
}

// flag maps an option that is true or false, and returns it.
func (w *writer) flag(option string, s converterOptions, key string, fallback, usual bool) bool {
	v, ok := w.boolean(option, fallback)
	if !ok {
		return v
	}
	w.mapped(option, s.field+"."+key, "%v", v)
	if v != usual {
		w.put(s.key(key), map[bool]string{true: "true", false: "false"}[v], "")
	}
	return v
}

func (w *writer) subjects(option string, s converterOptions) {
	class, ok := w.literal(option)
	if !ok {
		return
	}
	short := class[strings.LastIndexByte(class, '.')+1:]
	w.registry.groups = w.registry.groups || strings.HasSuffix(short, "RecordIdStrategy")
	switch name := subjectNames[short]; name {
	case "":
		w.bad(option, "%s: walpost names subjects after the topic, the record, or both", class)
	case "topic":
		w.mapped(option, s.field+".subject.name.strategy", "topic")
	default:
		w.set(option, s.key("subject.name.strategy"), name, "")
	}
}

// must reports an option that has to be there with one value.
func (w *writer) must(option, value, why string) {
	switch v, ok := w.literal(option); {
	case ok && strings.EqualFold(v, value):
		w.idle(option, "walpost writes records as with %s", value)
	case ok || !w.in.Has(option):
		w.bad(option, "%s", why)
	}
}

// fine reports an option that may be missing, or have one of the values.
func (w *writer) fine(option string, values ...string) {
	v, ok := w.literal(option)
	if !ok {
		return
	}
	for _, value := range values {
		if strings.EqualFold(v, value) {
			w.idle(option, "walpost works as with %s", v)
			return
		}
	}
	w.bad(option, "walpost supports %s", strings.Join(values, " and "))
}

// writeRegistry writes the section schema_registry.
func writeRegistry(w *writer) {
	w.section("schema_registry", "")
	w.note(w.registry.notes...)
	for _, key := range w.registry.keys {
		w.put(key, w.registry.values[key], "")
	}
}
