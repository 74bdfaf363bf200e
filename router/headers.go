package router

import (
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/router/internal/connect"
)

// The extended headers of Debezium (io.debezium.connector.common.DebeziumHeaders).
const (
	logicalNameHeader = "__debezium.context.connectorLogicalName"
	taskIDHeader      = "__debezium.context.taskId"
	connectorHeader   = "__debezium.context.connectorName"
	runIDHeader       = "__debezium.context.runId"
)

// A HeaderStep inserts one header or drops headers, as Kafka Connect's InsertHeader and DropHeaders
// behind the EventRouter do.
type HeaderStep struct {
	// The header to insert, after all others unless `before_id` is `true`.
	Insert string `yaml:"insert" example:"source"`
	// The text of the inserted header.
	Value string `yaml:"value" example:"shop"`
	// Insert the header before `id`.
	BeforeID bool `yaml:"before_id"`
	// Headers to drop.
	Drop []string `yaml:"drop" example:"[__debezium.context.runId]"`
}

func (s *HeaderStep) validate(ps *conf.Problems, option string) {
	switch {
	case (s.Insert == "") == (len(s.Drop) == 0), s.Insert == "" && (s.Value != "" || s.BeforeID):
		ps.Add(option, conf.MustBe, "insert with value, or drop with a list of names", nil)
	case s.Insert == "id" || slices.Contains(s.Drop, "id"):
		ps.Add(option, conf.MustBe, "about a header other than id, because recover finds the records by id", nil)
	}
}

// fixed is the headers that are the same in every record.
type fixed struct {
	context []cdc.Header // before "id": the extended headers and inserted ones
	last    []cdc.Header // inserted behind all others
	// inserted are the inserted headers of both kinds, for records that have no others.
	inserted []cdc.Header
}

// newRunID makes a random UUID, as Debezium does at each start of its task.
func newRunID() string {
	var b [16]byte
	rand.Read(b[:]) // crypto/rand documents that it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// SetRunID sets the header __debezium.context.runId. Until then, it is a random UUID, which is right for records that
// no relay repeats. SetRunID must not be called at the same time as Route.
func (r *Router) SetRunID(id string) {
	r.fixed = fixed{}
	f := &r.fixed
	insert := func(to *[]cdc.Header, name, text string) {
		value, _, err := r.convs.header.Append(nil, "", &connect.Schema{Type: connect.String}, text)
		if err != nil {
			panic("router: a header of text: " + err.Error()) // every header converter accepts text
		}
		*to = append(*to, cdc.Header{Key: name, Value: value})
	}
	if r.cfg.ExtendedHeaders {
		insert(&f.context, logicalNameHeader, r.cfg.TopicPrefix)
		insert(&f.context, taskIDHeader, "0")
		insert(&f.context, connectorHeader, "postgresql")
		insert(&f.context, runIDHeader, id)
	}
	for _, s := range r.cfg.Headers {
		drop := func(h cdc.Header) bool { return slices.Contains(s.Drop, h.Key) }
		f.context, f.last = slices.DeleteFunc(f.context, drop), slices.DeleteFunc(f.last, drop)
		f.inserted = slices.DeleteFunc(f.inserted, drop)
		if s.Insert != "" {
			insert(&f.inserted, s.Insert, s.Value)
		}
		switch {
		case s.BeforeID:
			insert(&f.context, s.Insert, s.Value)
		case s.Insert != "":
			insert(&f.last, s.Insert, s.Value)
		}
	}
}

// headersBeforeID adds the header of a changed primary key, the extended headers and the trace context.
func (r *Router) headersBeforeID(buf []byte, p *plan, row *row, oldKey []any, rec *cdc.Record) ([]byte, *Problem) {
	if oldKey != nil && !slices.Contains(r.dropped, oldKeyHeader) {
		var value []byte
		var problem *Problem
		if buf, value, problem = p.oldKey.append(buf, rec.Topic, oldKey); problem != nil {
			return buf, problem
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: oldKeyHeader, Value: value})
	}
	rec.Headers = append(rec.Headers, r.fixed.context...)
	if p.spanContext != nil {
		return r.traceHeaders(buf, p, row, rec)
	}
	return buf, nil
}

// headersAfterID adds the headers that table.fields.additional.placement names, first those of columns,
// then those in JSON objects, and inserted ones.
func (r *Router) headersAfterID(buf []byte, p *plan, row *row, rec *cdc.Record) ([]byte, *Problem) {
	placed := len(rec.Headers)
	for i := range p.headers {
		h := &p.headers[i]
		var value []byte
		var problem *Problem
		if buf, value, problem = h.append(buf, rec.Topic, row.text(h)); problem != nil {
			return buf, problem
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: h.field, Value: value})
	}
	if len(p.objects) > 0 {
		var problem *Problem
		if buf, problem = r.objectsHeaders(buf, p, row, rec, placed); problem != nil {
			return buf, problem
		}
	}
	p.members = min(max(p.members, len(rec.Headers)-placed-len(p.headers)), maxMembers)
	rec.Headers = append(rec.Headers, r.fixed.last...)
	return buf, nil
}
