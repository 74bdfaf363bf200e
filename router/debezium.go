package router

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/lib/topicname"
	"github.com/walpost/walpost/router/internal/connect"
	"github.com/walpost/walpost/router/internal/pgvalue"
)

// debeziumVersion is what the records of messages name as their writer's version.
const debeziumVersion = "3.6.1.Final"

// A debeziumMessages makes the records that Debezium's Postgres connector writes for logical
// messages (LogicalDecodingMessageMonitor). The EventRouter passes them on as they are. docs/write-events.md
// says what differs.
type debeziumMessages struct {
	database, server string
	topic            string
	key, value       *connect.Schema
	content          *pgvalue.Type
	problem          *Problem // why no message can be routed, or nil
}

func (r *Router) newDebeziumMessages() *debeziumMessages {
	const postgres = "io.debezium.connector.postgresql."
	m := &debeziumMessages{database: r.cfg.Database, server: r.cfg.TopicPrefix}
	text, number := &connect.Schema{Type: connect.String}, &connect.Schema{Type: connect.Int64}
	optText, optNumber := &connect.Schema{Type: connect.String, Optional: true}, &connect.Schema{Type: connect.Int64, Optional: true}
	structure := func(name string, version int32, optional bool, fields ...connect.Field) *connect.Schema {
		return &connect.Schema{Type: connect.Struct, Name: r.schemaNames.AdjustSchema(name), Version: version, Optional: optional, Fields: fields}
	}
	snapshot := &connect.Schema{
		Type: connect.String, Optional: true, Name: "io.debezium.data.Enum", Version: 1, HasDefault: true, Default: "false",
		Params: []connect.Param{{Key: "allowed", Value: "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}},
	}
	// pgvalue knows the options for bytes. Debezium's field is optional in each of them.
	m.content, _ = pgvalue.Column(&cdc.Column{Name: "content", TypeOID: oidBytea, TypeMod: -1, BaseTypeMod: -1, BaseName: "bytea"}, r.cfg.modes())
	source := structure("io.debezium.connector.postgresql.Source", 1, false,
		connect.Field{Name: "version", Schema: text}, connect.Field{Name: "connector", Schema: text}, connect.Field{Name: "name", Schema: text},
		connect.Field{Name: "ts_ms", Schema: number}, connect.Field{Name: "snapshot", Schema: snapshot}, connect.Field{Name: "db", Schema: text},
		connect.Field{Name: "sequence", Schema: optText}, connect.Field{Name: "ts_us", Schema: optNumber}, connect.Field{Name: "ts_ns", Schema: optNumber},
		connect.Field{Name: "schema", Schema: text}, connect.Field{Name: "table", Schema: text}, connect.Field{Name: "txId", Schema: optNumber},
		connect.Field{Name: "lsn", Schema: optNumber}, connect.Field{Name: "xmin", Schema: optNumber},
		connect.Field{Name: "origin", Schema: optText}, connect.Field{Name: "origin_lsn", Schema: optNumber})
	source.Name = postgres + "Source" // no adjustment
	transaction := structure("", 1, true, connect.Field{Name: "id", Schema: text},
		connect.Field{Name: "total_order", Schema: number}, connect.Field{Name: "data_collection_order", Schema: number})
	transaction.Name = "event.block"
	m.key = structure(postgres+"MessageKey", 1, false, connect.Field{Name: "prefix", Schema: optText})
	m.value = structure(postgres+"MessageValue", 1, false,
		connect.Field{Name: "op", Schema: text}, connect.Field{Name: "ts_ms", Schema: optNumber}, connect.Field{Name: "source", Schema: source},
		connect.Field{Name: "transaction", Schema: transaction},
		connect.Field{Name: "message", Schema: structure(postgres+"Message", 1, false,
			connect.Field{Name: "prefix", Schema: optText}, connect.Field{Name: "content", Schema: m.content.Schema})})
	m.topic = m.server + ".message"
	for _, rename := range r.topics.rewrites[1:] {
		renamed, err := rename.regex.ReplaceIfMatches(m.topic, rename.replacement)
		if err == nil {
			err = topicname.Check(renamed)
		}
		if err != nil {
			m.problem = &Problem{Rule: TopicValid, Option: "router.topic.rename.regex", Message: "the topic of messages: " + err.Error()}
			return m
		}
		m.topic = renamed
	}
	convs := r.cfg.converters(r.registry)
	for _, c := range []struct {
		option string
		conv   connect.Converter
		schema *connect.Schema
	}{{"records.key.converter", convs.key, m.key}, {"records.value.converter", convs.value, m.value}} {
		if err := probe(c.conv, "message", c.schema, true); err != nil && m.problem == nil {
			m.problem = &Problem{Rule: ColumnType, Option: c.option, Message: "the record of a message: " + err.Error()}
		}
	}
	return m
}

// route makes the record of the message ev. Its event id is its position, because Debezium's record
// has no id and no other message has the position.
func (m *debeziumMessages) route(r *Router, ev *cdc.Event, rec *cdc.Record) error {
	*rec = cdc.Record{
		Topic: m.topic, Partition: -1, Time: ev.Time.Truncate(time.Millisecond), Committed: ev.Time, EventID: ev.LSN.String(),
	}
	refuse := func(p *Problem) error {
		return &RowError{EventID: rec.EventID, Table: ev.Row.Relation.String(), LSN: ev.LSN, Problems: []Problem{*p}, keyFound: rec.Key != nil}
	}
	prefix := strings.ToValidUTF8(ev.Row.Relation.MessagePrefix(), "\uFFFD")
	buf := make([]byte, 0, 1024+2*len(ev.Row.Values[0].Bytes))
	buf, key, err := convert(buf, r.convs.key, m.topic, m.key, []any{prefix})
	if err != nil {
		return refuse(&Problem{Rule: ValueValid, Option: "records.key.converter", Message: err.Error()})
	}
	rec.Key = key
	if m.problem != nil {
		return refuse(m.problem)
	}
	values, err := m.values(ev, prefix)
	if err == nil {
		_, rec.Value, err = convert(buf, r.convs.value, m.topic, m.value, values)
	}
	if err != nil {
		return refuse(&Problem{Rule: ValueValid, Option: "records.value.converter", Message: err.Error()})
	}
	rec.Headers = slices.Clone(r.fixed.inserted) // the extended headers are on records of rows only
	return nil
}

// values are those of the struct m.value. Debezium takes ts_ms from the connector's clock. Here it is
// the commit time, so that the same message always gives the same record.
func (m *debeziumMessages) values(ev *cdc.Event, prefix string) ([]any, error) {
	hexadecimal := fmt.Appendf(nil, `\x%x`, ev.Row.Values[0].Bytes)
	content, err := m.content.Parse(hexadecimal)
	if err != nil {
		return nil, err
	}
	var txid any
	before := "null"
	if len(ev.Row.Values) > 1 { // a dead letter of another format has only the content
		n, err := strconv.ParseInt(string(ev.Row.Values[1].Bytes), 10, 64)
		if err != nil {
			return nil, err
		}
		at, err := cdc.ParseLSN(string(ev.Row.Values[2].Bytes))
		if err != nil {
			return nil, err
		}
		txid, before = n, `"`+strconv.FormatUint(uint64(at), 10)+`"`
	}
	sequence := `[` + before + `,"` + strconv.FormatUint(uint64(ev.LSN), 10) + `"]`
	source := []any{
		debeziumVersion, "postgresql", m.server, ev.Time.UnixMilli(), nil, m.database, sequence, ev.Time.UnixMicro(), ev.Time.UnixMicro() * 1000,
		"", "", txid, int64(ev.LSN), nil, nil, nil,
	}
	return []any{"m", ev.Time.UnixMilli(), source, nil, []any{prefix, content}}, nil
}
