package router

import (
	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// The headers that Debezium puts before all others (io.debezium.connector.common.DebeziumHeaders).
const (
	logicalNameHeader = "__debezium.context.connectorLogicalName"
	taskIDHeader      = "__debezium.context.taskId"
	connectorHeader   = "__debezium.context.connectorName"
	runIDHeader       = "__debezium.context.runId"
)

// SetRunID says what the header __debezium.context.runId has; with extended headers nothing can be routed before. It must not be
// called beside Route.
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
			panic("router: a header of text: " + err.Error()) // every converter for headers takes text
		}
		r.context = append(r.context, cdc.Header{Key: h.name, Value: value})
	}
}
