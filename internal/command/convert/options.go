package convert

import (
	"cmp"
	"strings"
)

// An option becomes a key of the present section with the same value.
type option struct {
	name     string // without the prefix of the EventRouter's options
	key      string // "" for the same name
	fallback string // Debezium's default
	always   bool   // the fallback is written, too, because walpost has another default
	flag     bool   // true or false
}

// The options of the connector that become keys of source and records.
var (
	slotOptions = []option{
		{name: "slot.name", key: "slot", fallback: "debezium", always: true},
		{name: "slot.failover", key: "failover", fallback: "false", flag: true},
	}
	publicationOptions = []option{{name: "publication.name", key: "publication", fallback: "dbz_publication", always: true}}
	recordOptions      = []option{
		{name: "time.precision.mode", fallback: "adaptive"},
		{name: "decimal.handling.mode", fallback: "precise"},
		{name: "binary.handling.mode", fallback: "bytes"},
		{name: "interval.handling.mode", fallback: "numeric"},
		{name: "hstore.handling.mode", fallback: "json"},
		{name: "schema.name.adjustment.mode", fallback: "none"},
		{name: "field.name.adjustment.mode", fallback: "none"},
		{name: "unavailable.value.placeholder", fallback: "__debezium_unavailable_value"},
	}
)

// routerOptions are those of the EventRouter, and routerFlags those that are turned on.
var (
	routerOptions = []option{
		{name: "table.field.event.id", fallback: "id"},
		{name: "table.field.event.key", fallback: "aggregateid", always: true},
		{name: "table.field.event.payload", fallback: "payload"},
		{name: "table.field.event.timestamp"},
		{name: "table.field.event.schema.version"},
		{name: "table.fields.additional.placement"},
		{name: "route.by.field", fallback: "aggregatetype", always: true},
		{name: "route.topic.regex", fallback: "(?<routedByValue>.*)"},
		{name: "route.topic.replacement", fallback: "outbox.event.${routedByValue}"},
		{name: "table.json.payload.null.behavior", fallback: "ignore"},
		{name: "table.json.payload.empty.array.behavior", fallback: "ignore"},
		{name: "field.name.adjustment.mode", fallback: "none"},
		{name: "table.op.invalid.behavior", fallback: "warn"},
	}
	routerFlags = []option{
		{name: "route.tombstone.on.empty.payload", fallback: "false", flag: true},
		{name: "table.expand.json.payload", fallback: "false", flag: true},
	}
)

// options converts options, whose names follow prefix. changed has the values that transforms give them.
func (w *writer) options(prefix string, all []option, changed map[string]string) {
	for _, o := range all {
		name, key := prefix+o.name, cmp.Or(o.key, o.name)
		value, ok := w.verbatimLiteral(name)
		has, empty := w.in.Has(name), w.in.ByName[name] != nil && !w.in.Has(name)
		switch {
		case w.done[name], has && !ok:
			continue
		case empty && prefix != "" && !o.flag:
			w.add(Unsupported, name, false, "the value is empty, and with an empty value the EventRouter fails or builds wrong topic names. Leave the option out, or write the intended value")
			continue
		case !has && !o.always && changed[o.name] == "":
			continue
		case o.flag:
			if _, ok := w.boolean(name, false); !ok {
				continue
			}
			value = strings.ToLower(value)
		}
		value = cmp.Or(changed[o.name], value, o.fallback)
		w.mapped(name, w.name+"."+key, "%s", value)
		text, comment := value, ""
		if !strings.HasPrefix(o.name, "route.topic.") {
			text = dollars(value)
		}
		if !o.flag {
			text = scalar(text)
		}
		if !has && value == o.fallback {
			comment = "Debezium's default"
		}
		if o.always || value != o.fallback {
			w.put(key, text, comment)
		}
	}
}
