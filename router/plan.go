package router

import (
	"errors"
	"fmt"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/fault"
)

// A plan is what the options mean for one relation: which columns, and how each becomes bytes. It is made once for each
// relation, and never changed.
type plan struct {
	id, key, payload, route source
	timestamp               source   // index -1: the commit time
	headers                 []source // behind "id", in the order of the option
	partition               int      // -1: by the key
	err                     error    // why no row of this relation can be routed
}

// A source is one column and its converter.
type source struct {
	index int
	name  string // of the header, or of the column
	asIs  bool
	conv  convert
}

// append appends the column's bytes to buf and returns them, nil for NULL.
func (s *source) append(buf []byte, v cdc.Value) (grown, out []byte, err error) {
	if v.Bytes == nil {
		return buf, nil, nil
	}
	at := len(buf)
	if s.asIs {
		buf = append(buf, v.Bytes...)
	} else if buf, err = s.conv(buf, v.Bytes); err != nil {
		return buf, nil, err
	}
	return buf, buf[at:len(buf):len(buf)], nil
}

// Needs returns the columns that a table must have, and whose rows a publication must carry, for these options. The error is
// about configuration: everything that is wrong with this table.
func (r *Router) Needs(rel *cdc.Relation) (columns []string, err error) {
	p := r.makePlan(rel)
	if p.err != nil {
		return nil, fault.Config(fmt.Errorf("table %s: %w", rel, p.err), "")
	}
	indexes := []int{p.id.index, p.key.index, p.payload.index, p.route.index}
	if p.timestamp.index >= 0 {
		indexes = append(indexes, p.timestamp.index)
	}
	for i := range p.headers {
		indexes = append(indexes, p.headers[i].index)
	}
	if p.partition >= 0 {
		indexes = append(indexes, p.partition)
	}
	slices.Sort(indexes)
	for _, i := range slices.Compact(indexes) {
		columns = append(columns, rel.Columns[i].Name)
	}
	return columns, nil
}

// WantsCatalog says that relations must carry the catalog's fields: domains are resolved to their base types, and enums are told
// from other types of users.
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
			p = r.makePlan(rel)
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

func (r *Router) makePlan(rel *cdc.Relation) *plan {
	p := &plan{partition: -1, timestamp: source{index: -1}}
	var errs []error
	fail := func(err error) { errs = append(errs, err) }
	column := func(option, name string) int {
		i := rel.Index(name)
		if i < 0 {
			fail(fmt.Errorf("router.%s: there is no column %q", option, name))
		}
		return i
	}
	with := func(option, name string, u use) source {
		s := source{index: column(option, name), name: name}
		if s.index >= 0 {
			var err error
			if s.conv, s.asIs, err = converterFor(&rel.Columns[s.index], u); err != nil {
				fail(fmt.Errorf("router.%s: %w", option, err))
			}
		}
		return s
	}
	either := func(option, set, a, b string) string {
		switch hasA, hasB := rel.Index(a) >= 0, rel.Index(b) >= 0; {
		case set != "":
			return set
		case hasA && hasB:
			fail(fmt.Errorf("router.%s: must be set, because the table has both %s and %s", option, a, b))
		case hasB:
			return b
		}
		return a
	}
	p.id = with("table.field.event.id", r.cfg.EventID, forHeader)
	p.key = with("table.field.event.key", either("table.field.event.key", r.cfg.EventKey, "aggregate_id", "aggregateid"), forRecord)
	p.payload = with("table.field.event.payload", r.cfg.Payload, forRecord)
	p.route = with("route.by.field", either("route.by.field", r.cfg.RouteBy, "aggregate_type", "aggregatetype"), forRecord)
	if p.route.index >= 0 && p.route.conv != nil {
		fail(fmt.Errorf("router.route.by.field: column %s must be a text", p.route.name))
	}
	if r.cfg.Timestamp != "" {
		p.timestamp.index = column("table.field.event.timestamp", r.cfg.Timestamp)
		if i := p.timestamp.index; i >= 0 {
			col := &rel.Columns[i]
			oid := col.TypeOID
			if col.BaseType != 0 {
				oid = col.BaseType
			}
			// Debezium takes timestamp only; a timestamptz, which it fails on, is as clear.
			if oid != oidTimestamp && oid != oidTimestamptz {
				fail(fmt.Errorf("router.table.field.event.timestamp: column %s must be a timestamp or timestamptz (it is a %s)", col.Name, col.TypeName))
			}
		}
	}
	for _, pl := range r.placements {
		const option = "table.fields.additional.placement"
		if rel.Index(pl.column) < 0 && r.ignoreMissing {
			continue
		}
		switch pl.place {
		case inHeader:
			s := with(option, pl.column, forHeader)
			s.name = pl.alias
			p.headers = append(p.headers, s)
		case inPartition:
			if p.partition = column(option, pl.column); p.partition >= 0 && rel.Columns[p.partition].TypeOID != oidInt4 {
				fail(fmt.Errorf("router.%s: column %s must be an integer (int4) to be a partition", option, pl.column))
			}
		}
	}
	p.err = errors.Join(errs...)
	return p
}
