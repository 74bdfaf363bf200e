package router

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// A plan is what the options mean for one relation: which columns are read, and how each becomes
// bytes.
type plan struct {
	rel              *cdc.Relation
	id, key, payload column
	route            column
	headers          []column         // the headers after "id", in the order of the option
	objects          []column         // JSON objects whose fields are further headers
	absent           []string         // columns of such objects that the table lacks: its rows have none
	partition        *column          // nil if the key decides on the partition
	stamp            *column          // nil if the timestamp is the commit time
	envelope         *envelope        // nil if the payload is the value
	oldKey           *oldKey          // nil if the table has no primary key
	spanContext      *column          // nil if rows have no trace context
	eventType        *column          // nil if records are no CloudEvents
	mediaType        []byte           // of the values of CloudEvents; nil if each value decides
	more             int              // how many headers CloudEvents and the trace context add at most
	slack            int              // how many bytes converters added to a record lately
	members          int              // how many headers objects gave a record at most, up to maxMembers
	problems         []Problem        // why no row of this relation can be routed
	required         []int            // the columns that are read and, by the present catalog, NOT NULL
	nullable         map[string]*plan // for rows with a NULL in required columns, by those
}

// Needs returns the columns that these options read. The publication must carry them, and the table
// has them, except for columns of the placement headers: without one, rows have no such headers. The
// error has everything that is wrong with this table.
func (r *Router) Needs(rel *cdc.Relation) (columns []string, err error) {
	p := r.makePlan(rel, r.cfg.converters(r.registry)) // new converters, because Route may use the Router's own now
	if len(p.problems) > 0 {
		return nil, &configError{table: rel.String(), problems: p.problems}
	}
	for _, i := range p.indexes() {
		columns = append(columns, rel.Columns[i].Name)
	}
	return append(columns, p.absent...), nil
}

// indexes are the columns that the plan reads, in their order. The plan has no problems.
func (p *plan) indexes() []int {
	indexes := []int{p.id.index, p.key.index, p.payload.index, p.route.index}
	if p.stamp != nil {
		indexes = append(indexes, p.stamp.index)
	}
	for _, c := range []*column{p.eventType, p.spanContext} {
		if c != nil {
			indexes = append(indexes, c.index)
		}
	}
	for i := range p.headers {
		indexes = append(indexes, p.headers[i].index)
	}
	for i := range p.objects {
		indexes = append(indexes, p.objects[i].index)
	}
	if p.partition != nil {
		indexes = append(indexes, p.partition.index)
	}
	if p.envelope != nil {
		indexes = append(indexes, p.envelope.indexes()...)
	}
	slices.Sort(indexes)
	return slices.Compact(indexes)
}

// maxPlans bounds what is remembered. Every change of a table gives a new relation.
const maxPlans = 64

// plan returns the plan of a relation, or nil if the relation is none of the configured tables.
func (r *Router) plan(rel *cdc.Relation) *plan {
	if rel == r.last {
		return r.lastPlan
	}
	p, ok := r.plans[rel]
	if !ok {
		if len(r.plans) >= maxPlans {
			clear(r.plans)
		}
		if r.cfg.Tables == nil || rel.OfMessages() || slices.Contains(r.cfg.Tables, rel.Schema+"."+rel.Name) {
			p = r.makePlan(rel, r.convs)
		}
		r.plans[rel] = p
	}
	r.last, r.lastPlan = rel, p
	return p
}

// disproved returns the plan of a row that has a NULL in columns that are NOT NULL in the present catalog: they were
// nullable when the row was written. For other rows it returns p.
func (r *Router) disproved(p *plan, values []cdc.Value) *plan {
	var nulls []int
	for _, i := range p.required {
		if v := &values[i]; v.Bytes == nil && !v.Unchanged {
			nulls = append(nulls, i)
		}
	}
	if nulls == nil {
		return p
	}
	key := fmt.Sprint(nulls)
	former, ok := p.nullable[key]
	if !ok {
		rel := *p.rel
		rel.Columns = slices.Clone(rel.Columns)
		for _, i := range nulls {
			rel.Columns[i].NotNull = false
		}
		if len(p.nullable) >= maxPlans || p.nullable == nil {
			p.nullable = map[string]*plan{}
		}
		former = r.makePlan(&rel, r.convs)
		p.nullable[key] = former
	}
	return former
}

// eventID returns the event id as the row has it, or "" if the row has none.
func (p *plan) eventID(ev *cdc.Event) string {
	if i := p.id.index; i >= 0 && i < len(ev.Row.Values) {
		return string(ev.Row.Values[i].Bytes)
	}
	return ""
}

// size is the length of the texts that the record of a row is made of.
func (p *plan) size(row *row) int {
	size := len(row.text(&p.id)) + len(row.text(&p.key)) + len(row.text(&p.payload))
	for i := range p.headers {
		size += len(row.text(&p.headers[i]))
	}
	for i := range p.objects {
		size += len(row.text(&p.objects[i]))
	}
	return size
}

// maxSlack bounds the unused part of a record's buffer, because no window counts it.
const maxSlack = 4 << 10

// learn adapts slack. more is how many bytes the last record had more than its texts.
func (p *plan) learn(more int) {
	p.slack = min(max(more, p.slack-p.slack/8, 0), maxSlack)
}

// The options that name columns.
const (
	optionID        = "router.table.field.event.id"
	optionKey       = "router.table.field.event.key"
	optionPayload   = "router.table.field.event.payload"
	optionRoute     = "router.route.by.field"
	optionTimestamp = "router.table.field.event.timestamp"
	optionVersion   = "router.table.field.event.schema.version"
	optionPlacement = "router.table.fields.additional.placement"
	optionPublish   = "source.publish" // names the columns of the primary key
)

func (r *Router) makePlan(rel *cdc.Relation, convs converters) *plan {
	p := &planner{Router: r, rel: rel, modes: r.cfg.modes()}
	made := &plan{rel: rel}
	made.id = p.converted(optionID, r.cfg.EventID, convs.header)
	made.key = p.converted(optionKey, p.either(optionKey, r.cfg.EventKey, "aggregate_id", "aggregateid"), convs.key)
	if enveloped(r.placements) { // the converter gets the envelope, not the payload
		made.payload, _ = p.find(optionPayload, r.cfg.Payload)
	} else {
		made.payload = p.converted(optionPayload, r.cfg.Payload, convs.value)
	}
	made.route, _ = p.typed(optionRoute, p.either(optionRoute, r.cfg.RouteBy, "aggregate_type", "aggregatetype"), connect.String)
	if r.cfg.Timestamp != "" {
		made.stamp = p.stamp(r.cfg.Timestamp)
	}
	for _, pl := range r.placements {
		if p.missing(pl.column) {
			continue
		}
		switch pl.place {
		case inHeader:
			c := p.converted(optionPlacement, pl.column, convs.header)
			c.field = pl.alias
			if !slices.Contains(p.dropped, pl.alias) {
				made.headers = append(made.headers, c)
			}
		case inHeaders:
			if p.index(pl.column) < 0 { // the WAL from before the column, for example
				made.absent = append(made.absent, pl.column)
			} else if c, ok := p.object(pl.column, convs.header); ok {
				made.objects = append(made.objects, c)
			}
		case inPartition:
			if c, ok := p.typed(optionPlacement, pl.column, connect.Int32); ok {
				made.partition = &c // the last one wins
			}
		case inEnvelope: // see below
		}
	}
	if enveloped(r.placements) {
		made.envelope = p.envelope(convs.value, made.payload)
	}
	made.oldKey = p.oldKey(convs.header)
	if p.cloud != nil {
		p.cloudEvents(made)
	}
	if p.cfg.SpanContext != "" {
		p.spanContext(made)
	}
	if made.problems = p.problems; len(made.problems) == 0 {
		made.required = slices.DeleteFunc(made.indexes(), func(i int) bool { return !rel.Columns[i].NotNull })
	}
	return made
}

// Columns names the columns of a table that some options are about. A name is empty if its option
// is not set.
type Columns struct{ ID, Key, Payload, Route, Timestamp string }

// Columns returns the names as the table has them. Options name a column as its field is named.
func (r *Router) Columns(rel *cdc.Relation) Columns {
	p := &planner{Router: r, rel: rel}
	name := func(option, value string) string {
		c, _ := p.find(option, value)
		return c.name
	}
	return Columns{
		ID:        name(optionID, r.cfg.EventID),
		Key:       name(optionKey, p.either(optionKey, r.cfg.EventKey, "aggregate_id", "aggregateid")),
		Payload:   name(optionPayload, r.cfg.Payload),
		Route:     name(optionRoute, p.either(optionRoute, r.cfg.RouteBy, "aggregate_type", "aggregatetype")),
		Timestamp: name(optionTimestamp, r.cfg.Timestamp),
	}
}

// A planner makes one plan and collects what is wrong.
type planner struct {
	*Router
	rel      *cdc.Relation
	modes    pgvalue.Modes
	problems []Problem
}

func (p *planner) fail(rule Rule, c *column, format string, args ...any) {
	p.problems = append(p.problems, *c.problem(rule, nil, format, args...))
}

// index finds a column by the name that its field has.
func (p *planner) index(name string) int {
	return slices.IndexFunc(p.rel.Columns, func(c cdc.Column) bool { return p.fieldNames.Adjust(c.Name) == name })
}

// find returns the column that an option names, without a converter.
func (p *planner) find(option, name string) (column, bool) {
	c := column{index: p.index(name), name: name, field: name, option: option}
	if c.index < 0 {
		p.fail(ColumnExists, &c, "there is no column %q", name)
		return c, false
	}
	of := &p.rel.Columns[c.index]
	c.name = of.Name
	var err error
	if c.typ, err = pgvalue.Column(of, p.modes); err != nil {
		p.fail(ColumnType, &c, "%s", err)
		return c, false
	}
	if lower(p.cfg.Binary) == "hex" && c.typ.Schema.Type == connect.String && !c.typ.Text {
		c.typ.Parse = passPlaceholders(c.typ.Parse)
	}
	return c, true
}

// converted returns the column that an option names, with its converter.
func (p *planner) converted(option, name string, conv connect.Converter) column {
	c, ok := p.find(option, name)
	c.conv = conv
	if ok {
		if err := probe(c.conv, c.field, c.typ.Schema, option != optionPayload || p.expander == nil); err != nil {
			p.fail(ColumnType, &c, "column %s is a %s: %s", c.name, p.rel.Columns[c.index].TypeName, err)
		}
	}
	return c
}

// typed returns the column that an option names. Its values must have one type, as in Connect's
// Struct.getString and Struct.getInt32.
func (p *planner) typed(option, name string, want connect.Type) (column, bool) {
	c, ok := p.find(option, name)
	if ok && c.typ.Schema.Type != want {
		p.fail(ColumnType, &c, "Field '%s' is not of type %s: column %s is a %s, which is %s",
			name, want, c.name, p.rel.Columns[c.index].TypeName, c.typ.Schema.Type)
		ok = false
	}
	return c, ok
}

// either returns the name that an option has. If the option is empty, it returns a or b, whichever
// the table has.
func (p *planner) either(option, set, a, b string) string {
	switch hasA, hasB := p.index(a) >= 0, p.index(b) >= 0; {
	case set != "":
		return set
	case hasA && hasB:
		p.fail(ColumnChosen, &column{option: option}, "must be set, because the table has both %s and %s", a, b)
	case hasB:
		return b
	}
	return a
}

// missing reports whether a placement is left out: missing columns are ignored, and the table has
// no such column, or the column has a type without values.
func (p *planner) missing(name string) bool {
	if !p.ignoreMissing {
		return false
	}
	_, ok := (&planner{Router: p.Router, rel: p.rel, modes: p.modes}).find(optionPlacement, name)
	return !ok
}

// qualified is the start of the names of the relation's schemas.
func (p *planner) qualified() string {
	return schemaPrefix(p.cfg.TopicPrefix, p.rel.Schema, p.rel.Name)
}

// lower is for options that Debezium reads in upper and lower case.
func lower(s string) string { return strings.ToLower(strings.TrimSpace(s)) }
