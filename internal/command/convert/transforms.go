package convert

import (
	"slices"
	"strings"

	"github.com/walpost/walpost/internal/conf"
)

// A chain is the EventRouter and the transforms beside it, with the tables whose rows go through them.
type chain struct {
	*report
	*captured
	router string // the prefix of the EventRouter's options: transforms.outbox.
	others
	predicates map[string]bool // those that a transform uses
}

const eventRouter = "io.debezium.transforms.outbox.EventRouter"

// transforms finds the EventRouter, decides about the other transforms, and reads the tables, which
// predicates depend on. It reports whether there is an EventRouter.
func (c *chain) transforms() bool {
	defer c.reportTables()
	list, ok := c.literal("transforms")
	if !ok {
		if !c.in.Has("transforms") {
			c.bad("transforms", "is required: walpost works like the EventRouter (%s), and the connector has no transform", eventRouter)
		}
		return false
	}
	all, router := conf.SplitList(list), ""
	for i, name := range all {
		if slices.Contains(all[:i], name) {
			c.bad("transforms", "%s occurs twice", name)
			return false
		}
		option := "transforms." + name + ".type"
		kind, ok := c.literal(option)
		switch {
		case !ok && !c.in.Has(option):
			c.bad(option, "is required, because transforms names %s", name)
		case kind == eventRouter && router != "":
			c.bad(option, "this is a second EventRouter, and walpost has only one: convert each of them to its own configuration")
		case kind == eventRouter:
			router = name
			c.mapped(option, "", "walpost works like the EventRouter")
		}
	}
	if router == "" {
		for _, name := range all {
			c.otherTransform(name, true)
		}
		c.unused(all)
		c.bad("transforms", "the EventRouter (%s) is not among the transforms, and walpost works like the EventRouter", eventRouter)
		return false
	}
	c.mapped("transforms", "", "%s is the EventRouter", router)
	c.router = "transforms." + router + "."
	c.placement, _ = c.literal(c.router + "table.fields.additional.placement")
	at := slices.Index(all, router)
	for _, name := range all[:at] {
		c.renameBefore(name)
	}
	c.routerPredicate()
	c.renames = nil
	for _, name := range all[:at] {
		c.otherTransform(name, true)
		c.renameBefore(name)
	}
	c.topics = c.routedTopics()
	for _, name := range all[at+1:] {
		c.otherTransform(name, false)
	}
	c.unused(all)
	return true
}

// topic is the topic of Debezium's own records of the table, behind the transforms in front of the
// EventRouter so far.
func (c *chain) topic(t table) string {
	topic := c.or("topic.prefix", "") + c.or("topic.delimiter", ".") + t.schema + "." + t.name
	for _, rename := range c.renames {
		topic = rename(topic)
	}
	return topic
}

// routerPredicate keeps the tables whose rows the EventRouter sees.
func (c *chain) routerPredicate() {
	name := strings.TrimSuffix(strings.TrimPrefix(c.router, "transforms."), ".")
	option := c.router + "predicate"
	p, there := c.predicate(name)
	switch {
	case !there:
		return
	case p.why != "":
		if !c.done[option] {
			c.bad(option, "%s", p.why)
		}
		return
	}
	var seen, other []table
	for _, t := range c.tables {
		switch p.before(c.topic(t)) {
		case always:
			seen = append(seen, t)
		case never:
			other = append(other, t)
		case unknown:
			c.bad(option, "%s", p.unclear())
			return
		}
	}
	for _, t := range other {
		c.bad(option, "the connector publishes changes of %s without the EventRouter, and walpost publishes only outbox rows: keep a connector with its own slot for this table", t.sql())
	}
	if c.tables = seen; len(seen) == 0 {
		if len(other) > 0 {
			c.bad(option, "no topic of a table matches, so the EventRouter gets no row (a topic is <topic.prefix>.<schema>.<table>)")
		}
		return
	}
	if len(other) == 0 {
		c.mapped(option, "", "the rows of %s go to the EventRouter, as all rows do in walpost", c.tables[0].sql())
	}
}

// otherTransform decides about a transform that is not the EventRouter.
func (c *chain) otherTransform(name string, before bool) {
	prefix := "transforms." + name + "."
	option := prefix + "type"
	kind, _ := c.literal(option)
	if c.done[option] {
		return
	}
	when, why := c.applies(name, before)
	verdict, text := Unsupported, kind+": walpost has no such transform; remove the transform, or let the consumers of the topic do its work"
	handle := handlers[kind]
	switch {
	case when == never:
		verdict, text = NotNeeded, "its predicate excludes the rows of the outbox"
	case when == unknown:
		text += "; " + why
	case handle != nil && c.router != "":
		verdict, text = handle(c, prefix, before)
	}
	c.add(verdict, option, false, "%s", text)
	for _, e := range c.in.List {
		if strings.HasPrefix(e.Name, prefix) && !c.done[e.Name] {
			c.add(verdict, e.Name, false, "belongs to %s", option)
		}
	}
}

// unused reports the predicates, and the options of transforms that are not in all.
func (c *chain) unused(all []string) {
	for _, e := range c.in.List {
		switch rest, ok := strings.CutPrefix(e.Name, "transforms."); {
		case c.done[e.Name]:
		case ok:
			if !slices.ContainsFunc(all, func(name string) bool { return strings.HasPrefix(rest, name+".") }) { // a name may have dots
				c.idle(e.Name, "transforms does not name this transform, so Connect ignores it")
			}
		case e.Name == "predicates":
			c.idle(e.Name, "the lines of the transforms that use the predicates explain them")
		case strings.HasPrefix(e.Name, "predicates."):
			at := strings.LastIndexByte(e.Name, '.')
			if c.predicates[strings.TrimPrefix(e.Name[:at], "predicates.")] && slices.Contains([]string{".type", ".pattern", ".name"}, e.Name[at:]) {
				c.idle(e.Name, "the lines of the transforms that use the predicate explain it")
			} else {
				c.idle(e.Name, "no transform uses it")
			}
		}
	}
}

// writeRouter maps the EventRouter's options.
func writeRouter(w *writer) {
	w.section("router", "Debezium's EventRouter: "+strings.TrimSuffix(w.chain.router, "."))
	changed := map[string]string{"route.topic.replacement": w.chain.replacement, "table.fields.additional.placement": w.chain.placement} // by transforms
	if invalid := w.chain.router + "table.op.invalid.behavior"; !w.updates && w.in.Has(invalid) {
		w.idle(invalid, "the connector skips updates (skipped.operations)")
	}
	w.options(w.chain.router, routerOptions, changed)
	if w.chain.rename[0] != "" {
		w.put("topic.rename.regex", scalar(w.chain.rename[0]), "")
		w.put("topic.rename.replacement", scalar(w.chain.rename[1]), "")
	}
	w.options(w.chain.router, routerFlags, nil)
	writeMissing(w)
	writeTracing(w)
	for _, e := range w.in.List {
		if name, ok := strings.CutPrefix(e.Name, w.chain.router); ok && !w.done[e.Name] {
			w.judge(e, "(router) "+name)
		}
	}
}

// writeTracing maps the column of the trace context. Without the option, most connectors trace nothing.
func writeTracing(w *writer) {
	option := w.chain.router + "tracing.span.context.field"
	column, ok := w.literal(option)
	if !ok || column == "tracingspancontext" {
		return
	}
	w.put("tracing.span.context.field", scalar(dollars(column)), "")
	w.mapped(option, "router.tracing.span.context.field", "%s", column)
	w.add(Differs, option, false, "walpost passes the writer's span on. If Connect has OpenTelemetry, Debezium writes a new span of the same trace, otherwise no header")
}

// writeMissing is table.field.additional.missing, which was table.fields.additional.error.on.missing
// until Debezium 3.5.
func writeMissing(w *writer) {
	now, old := w.chain.router+"table.field.additional.missing", w.chain.router+"table.fields.additional.error.on.missing"
	value := ""
	if v, ok := w.literal(now); ok {
		value = v
		w.mapped(now, "router.table.field.additional.missing", "%s", v)
		if w.in.Has(old) {
			w.idle(old, "the option is also given under its new name, %s, which has priority", "table.field.additional.missing")
		}
	} else if on, ok := w.boolean(old, true); ok && w.in.Has(old) && !w.in.Has(now) {
		if value = "error"; !on {
			value = "ignore"
		}
		w.mapped(old, "router.table.field.additional.missing", "%s (its name since Debezium 3.6, which ignores the old name)", value)
	}
	if value != "" && !strings.EqualFold(value, "error") {
		w.put("table.field.additional.missing", scalar(dollars(value)), "")
		for _, option := range []string{"column.include.list", "column.exclude.list"} {
			if w.in.Has(option) {
				w.bad(option, "with table.field.additional.missing=ignore, Debezium writes no header for a column that this option removes, but walpost would write one: remove the column from table.fields.additional.placement, and leave this option out")
			}
		}
	}
}

// verbatimLiteral is literal without trimming: a blank may belong to a regular expression.
func (r *report) verbatimLiteral(option string) (string, bool) {
	v, ok := r.literal(option)
	if ok && (strings.HasSuffix(option, ".regex") || strings.HasSuffix(option, ".replacement")) {
		v = r.in.ByName[option].Text()
	}
	return v, ok
}
