package router

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// A plan is what the options mean for one relation: which columns, and how each becomes bytes. It is made once for each
// relation.
type plan struct {
	rel              *cdc.Relation
	id, key, payload source
	route            source
	headers          []source  // behind "id", in the order of the option
	partition        *source   // nil: by the key
	stamp            *stamp    // nil: the commit time
	envelope         *envelope // nil: the payload is the value
	oldKey           *oldKey   // nil: the table has no primary key
	slack            int       // bytes that converters added lately
	problems         []Problem // why no row of this relation can be routed
}

// Needs returns the columns that these options read. The table must have them, and the publication must carry them. The error
// is a *ConfigError with everything that is wrong with this table.
func (r *Router) Needs(rel *cdc.Relation) (columns []string, err error) {
	p := r.makePlan(rel, r.cfg.converters()) // not the router's own: this may be called beside Route
	if len(p.problems) > 0 {
		return nil, &ConfigError{Table: rel.String(), Problems: p.problems}
	}
	indexes := []int{p.id.index, p.key.index, p.payload.index, p.route.index}
	if p.stamp != nil {
		indexes = append(indexes, p.stamp.index)
	}
	for i := range p.headers {
		indexes = append(indexes, p.headers[i].index)
	}
	if p.partition != nil {
		indexes = append(indexes, p.partition.index)
	}
	if p.envelope != nil {
		indexes = append(indexes, p.envelope.indexes()...)
	}
	slices.Sort(indexes)
	for _, i := range slices.Compact(indexes) {
		columns = append(columns, rel.Columns[i].Name)
	}
	return columns, nil
}

// WantsCatalog says that relations must carry the catalog's fields: schemas are made of them.
func (r *Router) WantsCatalog() bool { return true }

func (r *Router) plan(rel *cdc.Relation) *plan {
	if rel == r.last {
		return r.lastPlan
	}
	p, ok := r.plans[rel]
	if !ok {
		if len(r.plans) >= 64 { // relations come anew with each change of a table; the old ones are of no use
			clear(r.plans)
		}
		if r.routed(rel) {
			p = r.makePlan(rel, r.convs)
		}
		r.plans[rel] = p
	}
	r.last, r.lastPlan = rel, p
	return p
}

// routed says whether the relation is one of the configured tables.
func (r *Router) routed(rel *cdc.Relation) bool {
	return len(r.cfg.Tables) == 0 || slices.Contains(r.cfg.Tables, rel.Schema+"."+rel.Name)
}

// A planner makes one plan and collects what is wrong.
type planner struct {
	*Router
	rel      *cdc.Relation
	modes    pgvalue.Modes
	problems []Problem
}

func (p *planner) fail(rule Rule, s *source, format string, args ...any) {
	p.problems = append(p.problems, Problem{Rule: rule, Option: s.option, Column: s.column, Message: fmt.Sprintf(format, args...)})
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
)

// index finds a column by the name that its field has.
func (p *planner) index(name string) int {
	return slices.IndexFunc(p.rel.Columns, func(c cdc.Column) bool { return p.fieldNames.Adjust(c.Name) == name })
}

// column is a column that an option names, without a converter.
func (p *planner) column(option, name string) (source, bool) {
	s := source{index: p.index(name), name: name, option: option, column: name}
	if s.index < 0 {
		p.fail(ColumnExists, &s, "there is no column %q", name)
		return s, false
	}
	col := &p.rel.Columns[s.index]
	s.column = col.Name
	var err error
	if s.typ, err = pgvalue.Column(col, p.modes); err != nil {
		p.fail(ColumnType, &s, "%s", err)
		return s, false
	}
	if lower(p.cfg.Binary) == "hex" && s.typ.Schema.Type == connect.String && !s.typ.Text {
		s.typ.Parse = placeholders(s.typ.Parse)
	}
	return s, true
}

// with is a column that an option names, for a converter.
func (p *planner) with(option, name string, conv connect.TextConverter) source {
	s, ok := p.column(option, name)
	s.conv = conv
	if ok {
		if err := probe(s.conv, s.name, s.typ.Schema); err != nil {
			p.fail(ColumnType, &s, "column %s is a %s: %s", s.column, p.rel.Columns[s.index].TypeName, err)
		}
	}
	return s
}

// typed is a column whose value is read as one type: Struct.getString, Struct.getInt32.
func (p *planner) typed(option, name string, want connect.Type) (source, bool) {
	s, ok := p.column(option, name)
	if ok && s.typ.Schema.Type != want {
		col := &p.rel.Columns[s.index]
		p.fail(ColumnType, &s, "Field '%s' is not of type %s: column %s is a %s, which is %s", name, want, col.Name, col.TypeName, s.typ.Schema.Type)
		ok = false
	}
	return s, ok
}

// either is the column that an option names, or the one of two that the table has.
func (p *planner) either(option, set, a, b string) string {
	switch hasA, hasB := p.index(a) >= 0, p.index(b) >= 0; {
	case set != "":
		return set
	case hasA && hasB:
		p.fail(ColumnChosen, &source{option: option}, "must be set, because the table has both %s and %s", a, b)
	case hasB:
		return b
	}
	return a
}

// missing says that a placement's column is one that may be missing and is: also where there is no value for its type.
func (p *planner) missing(name string) bool {
	if !p.ignoreMissing {
		return false
	}
	i := p.index(name)
	if i < 0 {
		return true
	}
	_, err := pgvalue.Column(&p.rel.Columns[i], p.modes)
	return err != nil
}

func (r *Router) makePlan(rel *cdc.Relation, convs converters) *plan {
	p := &planner{Router: r, rel: rel, modes: r.cfg.modes()}
	made := &plan{rel: rel}
	made.id = p.with(optionID, r.cfg.EventID, convs.header)
	made.key = p.with(optionKey, p.either(optionKey, r.cfg.EventKey, "aggregate_id", "aggregateid"), convs.key)
	value := convs.value
	if enveloped(r.placements) {
		value = nil // for the struct, not for the payload
	}
	if value != nil {
		made.payload = p.with(optionPayload, r.cfg.Payload, value)
	} else {
		made.payload, _ = p.column(optionPayload, r.cfg.Payload)
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
			s := p.with(optionPlacement, pl.column, convs.header)
			s.name = pl.alias
			made.headers = append(made.headers, s)
		case inPartition:
			if s, ok := p.typed(optionPlacement, pl.column, connect.Int32); ok {
				made.partition = &s // the last one wins
			}
		case inEnvelope: // all of them below
		}
	}
	if enveloped(r.placements) {
		made.envelope = p.envelope(convs.value, made.payload)
	}
	made.oldKey = p.oldKey(convs.header)
	made.problems = p.problems
	return made
}

// qualified is what the names of the relation's schemas begin with.
func (p *planner) qualified() string {
	return schemaPrefix(p.cfg.TopicPrefix, p.rel.Schema, p.rel.Name)
}

// lower is for options that Debezium takes in any case.
func lower(s string) string { return strings.ToLower(strings.TrimSpace(s)) }
