package convert

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
)

// An option becomes a key of the present section with the same value.
type option struct {
	name     string // without the prefix of the EventRouter's options
	key      string // "" for the same name
	fallback string // Debezium's default
	always   bool   // the fallback is written, too, because walpost has another default
	flag     bool   // true or false
	fold     bool   // a word that is the same in upper and lower case
}

// The options of the connector that become keys of source.
var (
	slotOptions = []option{
		{name: "slot.name", key: "slot", fallback: "debezium", always: true},
		{name: "slot.failover", key: "failover", fallback: "false", flag: true},
	}
	publicationOptions = []option{{name: "publication.name", key: "publication", fallback: "dbz_publication", always: true}}
)

// sameNames are the options of a section that have the same names and defaults in walpost, except some that become
// their keys elsewhere. The EventRouter has default columns, where walpost takes what the table has.
func sameNames(section any, elsewhere ...string) (all []option) {
	columns := map[string]string{"table.field.event.key": "aggregateid", "route.by.field": "aggregatetype"}
	for f := range conf.Fields(reflect.ValueOf(section).Elem(), "") {
		fallback, isText := conf.Plain(f.Value).(string)
		flag := f.Value.Kind() == reflect.Bool
		if !isText && !flag || slices.ContainsFunc(elsewhere, func(name string) bool { return strings.HasPrefix(f.Name, name) }) {
			continue
		}
		if flag {
			fallback = fmt.Sprint(f.Value.Bool())
		}
		column, isColumn := columns[f.Name]
		all = append(all, option{name: f.Name, fallback: cmp.Or(column, fallback), always: isColumn, flag: flag, fold: f.Has("fold")})
	}
	return all
}

// options converts options, whose names follow prefix. changed has the values that transforms give them.
func (w *writer) options(prefix string, all []option, changed map[string]string) {
	for _, o := range all {
		name, key := prefix+o.name, cmp.Or(o.key, o.name)
		value, ok := w.literal(name)
		has, empty := w.in.Has(name), w.in.ByName[name] != nil && !w.in.Has(name)
		switch {
		case w.done[name], has && !ok:
			continue
		case empty && prefix == w.chain.router && !o.flag:
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
		if o.always || value != o.fallback && !(o.fold && strings.EqualFold(value, o.fallback)) {
			w.put(key, text, comment)
		}
	}
}
