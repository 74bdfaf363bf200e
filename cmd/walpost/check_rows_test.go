package main

import (
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// presentBound is the bound that leaves out all rows that are there.
const presentBound = "SELECT 'after ' || system_identifier || '/' || pg_snapshot_xmin(pg_current_snapshot())::text FROM pg_control_system()"

// The rows that are there are routed: their topics are looked for, the largest is compared with what its topic takes, and one that
// would halt the relay is named.
func TestCheckLooksAtTheRowsThatAreThere(t *testing.T) {
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "")
	dsn := pg.Database(t)
	small, large := kafka.Topic(t, 3, nil), kafka.Topic(t, 1, map[string]string{"max.message.bytes": "2000"})
	pg.Exec(t, dsn, outboxTable, rows(1, 20, small),
		"INSERT INTO outbox SELECT 21, '"+large+"', 'k', 'x', to_jsonb(repeat('x', 3000))")
	config := t.TempDir() + "/walpost.yaml"
	checkpoints := kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})
	configure := func() { // leaves out the rows that are there now
		write(t, config, `
source: {dsn: "`+dsn+`", table: outbox, snapshot: "`+pg.Value(t, dsn, presentBound)+`"}
router: {route.topic.replacement: "${routedByValue}"}
kafka: {brokers: ["`+strings.Join(kafka.Brokers(), `", "`)+`"]}
checkpoint: {topic: `+checkpoints+`}
`)
	}
	check := func() string {
		configure()
		code, out := command(t, "check", "-c", config)
		if code != exitOK { // warnings
			t.Errorf("exit code %d\n%s", code, out)
		}
		return out
	}
	out := check()
	if !strings.Contains(out, "warn  postgres: order of rows: neither track_commit_timestamp nor source.order_column") {
		t.Errorf("that recover could not tell the order is not said:\n%s", out)
	}
	for _, want := range []string{
		"ok    kafka: topic " + small + ": 3 partitions",
		"warn  kafka: topic " + large + " size: the largest row of the table becomes a record of 3",
		"ok    postgres: rows of public.outbox: walpost can publish all rows that it read (21)",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	pg.Exec(t, dsn, "INSERT INTO outbox SELECT 22, 'no topic', 'k', 'x', '{}'")
	if out := check(); !strings.Contains(out, `warn  postgres: rows of public.outbox: a row of the table cannot be published: event "22"`) {
		t.Errorf("the row that cannot be routed is not named:\n%s", out)
	}
}

// An application that writes a header expects it in the record.
func TestCheckNamesColumnsThatAreInNoRecord(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, outboxTable, "ALTER TABLE outbox ADD traceparent text, ADD note varchar(9), ADD last_error text, ADD n bigint GENERATED ALWAYS AS IDENTITY, ADD headers jsonb, ADD more jsonb")
	for placement, want := range map[string]string{
		"":                            "add event_type:header:eventType,traceparent:header,note:header,headers:headers to",
		"event_type:header:eventType": "add traceparent:header,note:header,headers:headers to",
		"event_type:header,traceparent:header,note:envelope":                 "records leave out the columns headers of public.outbox",
		"event_type:header,traceparent:header,headers:headers":               "add note:header to",
		"event_type:header,traceparent:header,note:envelope,headers:headers": "",
	} {
		config := t.TempDir() + "/walpost.yaml"
		write(t, config, `
source: {dsn: "`+dsn+`", table: outbox, order_column: n}
router: {table.fields.additional.placement: "`+placement+`"}
kafka: {brokers: ["127.0.0.1:1"]}
`)
		_, out := command(t, "check", "-c", config)
		if strings.Contains(out, "unused columns of public.outbox") != (want != "") || !strings.Contains(out, want) {
			t.Errorf("with the placement %q:\n%s", placement, out)
		}
	}
}

// Without the order column a snapshot and recover stop, so check says so before.
func TestCheckLooksForTheOrderColumn(t *testing.T) {
	pg := testenv.Postgres(t, "")
	dsn := pg.Database(t)
	pg.Exec(t, dsn, outboxTable, "ALTER TABLE outbox ADD n bigint GENERATED ALWAYS AS IDENTITY")
	for _, c := range []struct {
		column, sql string
		warns       bool
	}{
		{"n", "SELECT", false},
		{"m", "SELECT", true},
		{"n", "CREATE PUBLICATION walpost FOR TABLE outbox (id, aggregate_type, aggregate_id, event_type, payload) WITH (publish = 'insert')", true},
		{"payload", "SELECT", false},
	} {
		pg.Exec(t, dsn, c.sql)
		config := t.TempDir() + "/walpost.yaml"
		write(t, config, `
source: {dsn: "`+dsn+`", table: outbox, snapshot: initial, order_column: `+c.column+`}
kafka: {brokers: ["127.0.0.1:1"]}
`)
		_, out := command(t, "check", "-c", config)
		if warning := "table public.outbox has no published column " + c.column; strings.Contains(out, warning) != c.warns {
			t.Errorf("%s after %s:\n%s", c.column, c.sql, out)
		}
	}
}

// Of a large table the largest rows are looked at too, wherever they are.
func TestCheckLooksForTheLargestRows(t *testing.T) {
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "")
	dsn := pg.Database(t)
	topic, compacted := kafka.Topic(t, 1, map[string]string{"max.message.bytes": "20000"}), kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})
	pg.Exec(t, dsn, outboxTable, "ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL", rows(1, 2100, topic),
		"INSERT INTO outbox SELECT 2101, '"+topic+"', 'k', 'x', to_jsonb((SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1000) g))",
		"INSERT INTO outbox SELECT 2102, '"+compacted+"', NULL, 'x', to_jsonb((SELECT string_agg(md5(g::text), '') FROM generate_series(1, 100) g))")
	config := t.TempDir() + "/walpost.yaml"
	write(t, config, `
source: {dsn: "`+dsn+`", table: outbox, snapshot: "`+pg.Value(t, dsn, presentBound)+`"}
router: {route.topic.replacement: "${routedByValue}"}
kafka: {brokers: ["`+strings.Join(kafka.Brokers(), `", "`)+`"]}
checkpoint: {topic: `+kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})+`}
`)
	code, out := command(t, "check", "-c", config)
	if code != exitOK { // warnings
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		"ok    postgres: rows of public.outbox: walpost can publish all rows that it read (2000 and the 20 largest)",
		"warn  kafka: topic " + topic + " size: the largest row of the table becomes a record of 32",
		"warn  kafka: topic " + compacted + " keys: a row of the table has no key",
		"ok    postgres: clock: the database's clock is ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A relay is about to deliver the newest rows, and a table keeps its rows in no order.
func TestCheckLooksAtTheNewestRows(t *testing.T) {
	kafka, pg := testenv.Kafka(t), testenv.Postgres(t, "")
	for _, column := range []string{"", ", order_column: id"} {
		dsn := pg.Database(t)
		topic := kafka.Topic(t, 1, nil)
		pg.Exec(t, dsn, outboxTable, rows(1, 2100, topic), "INSERT INTO outbox SELECT 2101, '"+topic+"-missing', 'k', 'x', '{}'")
		config := t.TempDir() + "/walpost.yaml"
		write(t, config, `
source: {dsn: "`+dsn+`", table: outbox, snapshot: "`+pg.Value(t, dsn, presentBound)+`"`+column+`}
router: {route.topic.replacement: "${routedByValue}"}
kafka: {brokers: ["`+strings.Join(kafka.Brokers(), `", "`)+`"]}
checkpoint: {topic: `+kafka.Topic(t, 1, map[string]string{"cleanup.policy": "compact"})+`}
`)
		if _, out := command(t, "check", "-c", config); !strings.Contains(out, "topic "+topic+"-missing") {
			t.Errorf("%q:\n%s", column, out)
		}
	}
}
