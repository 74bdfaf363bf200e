package router

import (
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// The extended headers of Debezium (io.debezium.connector.common.DebeziumHeaders).
const (
	logicalNameHeader = "__debezium.context.connectorLogicalName"
	taskIDHeader      = "__debezium.context.taskId"
	connectorHeader   = "__debezium.context.connectorName"
	runIDHeader       = "__debezium.context.runId"
)

// SetRunID sets the header __debezium.context.runId. With extended headers, Route returns an error
// before the first call. SetRunID must not be called at the same time as Route.
func (r *Router) SetRunID(id string) {
	if r.context = nil; !r.cfg.ExtendedHeaders || id == "" {
		return
	}
	text := &connect.Schema{Type: connect.String}
	for _, h := range [...]struct{ name, value string }{
		{logicalNameHeader, r.cfg.TopicPrefix}, {taskIDHeader, "0"}, {connectorHeader, "postgresql"}, {runIDHeader, id},
	} {
		value, _, err := r.convs.header.Append(nil, "", text, h.value)
		if err != nil {
			panic("router: a header of text: " + err.Error()) // every header converter accepts text
		}
		r.context = append(r.context, cdc.Header{Key: h.name, Value: value})
	}
}

// headersBeforeID adds the header of a changed primary key and the extended headers.
func (r *Router) headersBeforeID(buf []byte, p *plan, oldKey []any, rec *cdc.Record) ([]byte, *Problem) {
	if oldKey != nil {
		var value []byte
		var problem *Problem
		if buf, value, problem = p.oldKey.append(buf, rec.Topic, oldKey); problem != nil {
			return buf, problem
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: oldKeyHeader, Value: value})
	}
	if r.cfg.ExtendedHeaders && r.context == nil {
		return buf, &Problem{
			Rule: OptionValid, Option: "records.extended.headers.enabled", Message: "there is no run id yet for the header " + runIDHeader,
		}
	}
	rec.Headers = append(rec.Headers, r.context...)
	return buf, nil
}

// headersAfterID adds the headers that table.fields.additional.placement names.
func (p *plan) headersAfterID(buf []byte, row *row, rec *cdc.Record) ([]byte, *Problem) {
	for i := range p.headers {
		h := &p.headers[i]
		var value []byte
		var problem *Problem
		if buf, value, problem = h.append(buf, rec.Topic, row.text(h)); problem != nil {
			return buf, problem
		}
		rec.Headers = append(rec.Headers, cdc.Header{Key: h.field, Value: value})
	}
	return buf, nil
}
