package convert

import (
	_ "embed"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/walpost/walpost/internal/command/convert/input"
)

// A rule is the verdict of options that become no field. rules.yaml explains the fields.
type rule struct {
	Options []string
	Why     string
	Fine    []string
	Bad     string
	Differs string
	Empty   bool
}

//go:embed rules.yaml
var rulesYAML []byte

var rules = sync.OnceValue(func() (all []rule) {
	if err := yaml.Unmarshal(rulesYAML, &all); err != nil {
		panic("rules.yaml: " + err.Error())
	}
	return all
})

// ruleOf finds the rule of an option: by its name, or by the first family that it belongs to.
func ruleOf(name string) (family rule) {
	for _, r := range slices.Backward(rules()) {
		for _, option := range r.Options {
			if option == name {
				return r
			}
			if prefix, many := strings.CutSuffix(option, "*"); many && strings.HasPrefix(name, prefix) {
				family = r
			}
		}
	}
	return family
}

// An oldName is a name that an option had before version since. Newer versions ignore it.
type oldName struct {
	old, now, since string
	mapped          bool // the value has the same meaning under both names
}

// oldNames are the old names. A name that begins with a dot follows the name of the EventRouter.
var oldNames = []oldName{
	{"database.server.name", "topic.prefix", "2.0", true},
	{"table.whitelist", "table.include.list", "2.0", true},
	{"table.blacklist", "table.exclude.list", "2.0", true},
	{"schema.whitelist", "schema.include.list", "2.0", true},
	{"schema.blacklist", "schema.exclude.list", "2.0", true},
	{"column.whitelist", "column.include.list", "2.0", true},
	{"column.blacklist", "column.exclude.list", "2.0", true},
	{"database.whitelist", "database.include.list", "2.0", true},
	{"database.blacklist", "database.exclude.list", "2.0", true},
	{"slot.drop_on_stop", "slot.drop.on.stop", "1.1", true},
	{"toasted.value.placeholder", "unavailable.value.placeholder", "2.0", true},
	{"sanitize.field.names", "field.name.adjustment.mode", "2.2", false},
	{".debezium.op.invalid.behavior", "table.op.invalid.behavior", "2.0", true},
	{".debezium.expand.json.payload", "table.expand.json.payload", "1.8", true}, // 1.7.1 had it first
	{".table.field.event.payload.id", "table.field.event.key", "2.0", true},
	{".table.field.payload", "table.field.event.payload", "0.10", false},
	{".table.field.payload.id", "table.field.event.key", "0.10", false},
	{".table.field.schema.version", "table.field.event.schema.version", "0.10", false},
}

// renameOld gives options their new names if the input is for a Debezium before 2.0. Otherwise the
// connector ignores the old names, and walpost does so, too. Debezium requires topic.prefix since
// 2.0.
func renameOld(r *report) {
	r.old = !r.in.Has("topic.prefix") && r.in.Has("database.server.name")
	for _, e := range r.in.List {
		for _, o := range oldNames {
			before, is := strings.CutSuffix(e.Name, o.old)
			if is = is && (before == "" || o.old[0] == '.' && strings.HasPrefix(before, "transforms.")); !is {
				continue
			}
			now := o.now
			if before != "" {
				now = before + "." + now
			}
			other := r.in.ByName[now]
			switch {
			case r.old && o.mapped && other == nil:
				delete(r.in.ByName, e.Name)
				e.Name = now
				r.in.ByName[now] = e
			case r.old && o.old == ".table.field.event.payload.id" && other.Value != e.Value:
				r.bad(e.Name, "before Debezium 2.0, this column is the key of a row whose %s is null, and walpost leaves that key null: leave the option out if no row has such a null", o.now)
			case r.old && o.mapped:
				r.idle(e.Name, "%s has priority", o.now)
			case !r.old || o.since == "0.10":
				r.idle(e.Name, "Debezium %s and newer ignore this name; the name is now %s", o.since, o.now)
			}
		}
	}
}

// judge reports an option that becomes no field, by the rule of name.
func (r *report) judge(e *input.Entry, name string) {
	of := ruleOf(name)
	value, known := e.Plain()
	v, text := Unsupported, of.Bad
	switch {
	case known && value == "" && !of.Empty:
		v, text = NotNeeded, "the value is empty"
	case of.Bad+of.Differs == "", known && slices.Contains(of.Fine, strings.ReplaceAll(strings.ToLower(value), " ", "")):
		v, text = NotNeeded, of.Why
	case of.Differs != "":
		v, text = Differs, of.Differs
	}
	r.add(v, e.Name, false, "%s", text)
}
