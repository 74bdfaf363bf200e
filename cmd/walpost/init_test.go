package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/walpost/walpost/internal/testenv"
)

// initFile is what walpost init writes, which must be a valid file without the password, and its exit code and errors.
func initFile(t *testing.T, args ...string) (file, bad string, code int) {
	t.Helper()
	cmd := exec.Command("walpost", append([]string{"init", "--brokers", "127.0.0.1:9092,[::1]:9093"}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if code = cmd.ProcessState.ExitCode(); code != exitOK {
		if stdout.Len() > 0 {
			t.Errorf("beside an error: %s", &stdout)
		}
		return "", stderr.String(), code
	}
	name := t.TempDir() + "/walpost.yaml"
	write(t, name, stdout.String())
	t.Setenv("PGPASSWORD", "from the environment")
	if code, out := command(t, "config", "validate", "--config", name); code != exitOK || out != "the configuration is valid\n" {
		t.Errorf("not valid: %s%s", out, &stdout)
	}
	if all := stdout.String() + stderr.String(); strings.Contains(all, "geheim") {
		t.Errorf("the password is in %s", all)
	}
	return stdout.String(), stderr.String(), exitOK
}

func TestInitWritesAFileForTheTableOfTheDatabase(t *testing.T) {
	const columns = ` (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload jsonb`
	pg := testenv.Postgres(t, "", testenv.Private()) // the slot walpost must be free
	for _, c := range []struct {
		name  string
		sql   []string
		table string
		want  []string
		not   string
		bad   string
	}{
		{name: "no table", want: []string{"\n  table: public.outbox ", "walpost setup creates it", "\n  order_column: seq ", "\n  time_column: created_at ", "\n  topics: {create: true} ", "\n  listen: 127.0.0.1:9640 ", `[127.0.0.1:9092, "[::1]:9093"]`}, not: "snapshot"},
		{name: "no table, and the type of the event", want: []string{"\nrouter:\n  table.fields.additional.placement: \"event_type:header:eventType,headers:headers\" "}},
		{name: "a column of headers", sql: []string{"CREATE TABLE events" + columns + ", tenant text, headers json)"}, want: []string{`placement: "tenant:header,headers:headers" `}},
		{name: "nothing but a column of headers", sql: []string{"CREATE TABLE events" + columns + ", headers jsonb, more jsonb)"}, want: []string{"placement: headers:headers "}},
		{
			name: "a column of headers that has arrays, too", not: "placement",
			sql: []string{"CREATE TABLE events" + columns + ", headers json)", `INSERT INTO events (id, headers) VALUES (gen_random_uuid(), '{}'), (gen_random_uuid(), NULL), (gen_random_uuid(), '[{"key": "a"}]')`},
		},
		{
			name: "a column of headers that has objects", want: []string{"placement: headers:headers "},
			sql: []string{"CREATE TABLE events" + columns + ", headers json)", `INSERT INTO events (id, headers) VALUES (gen_random_uuid(), '{}'), (gen_random_uuid(), NULL), (gen_random_uuid(), 'null')`},
		},
		{name: "headers of another type", sql: []string{"CREATE TABLE events" + columns + ", headers text)"}, want: []string{"placement: headers:header "}},
		{name: "a column of headers in one of two tables", sql: []string{"CREATE TABLE a" + columns + ", event_type text, headers jsonb)", "CREATE TABLE b" + columns + ", event_type text)"}, table: "a,b", want: []string{"placement: event_type:header:eventType "}},
		{name: "a table that setup creates beside one without headers", sql: []string{"CREATE TABLE a" + columns + ", event_type text)"}, table: "a,b", want: []string{"placement: event_type:header:eventType "}},
		{name: "headers", sql: []string{"CREATE TABLE events" + columns + ", type varchar(20), traceparent text, last_error text, no int, moved text[])"}, want: []string{`placement: "type:header:eventType,traceparent:header" `}},
		{name: "no headers", sql: []string{"CREATE TABLE events" + columns + ")"}, not: "placement"},
		{name: "headers of two tables", sql: []string{"CREATE TABLE a" + columns + ", event_type text, tenant text)", "CREATE TABLE b" + columns + ", event_type text, region text)"}, table: "a,b", want: []string{"placement: event_type:header:eventType "}},
		{name: "a table that is none", sql: []string{"CREATE TABLE orders (id bigserial PRIMARY KEY, payload text)"}, want: []string{"\n  table: public.outbox ", "\n  order_column: seq "}},
		{name: "one table", sql: []string{"CREATE TABLE events" + columns + ")"}, want: []string{"\n  table: public.events\n", "\n  # order_column: ", "\n  # snapshot: initial "}, not: "walpost setup makes"},
		{
			name: "with several times", sql: []string{"CREATE TABLE events" + columns + ", due timestamptz, changed timestamptz DEFAULT now(), local timestamp DEFAULT now(), created_at timestamptz DEFAULT CURRENT_TIMESTAMP)"},
			want: []string{"\n  time_column: created_at "},
		},
		{name: "with the other usual name", sql: []string{"CREATE TABLE events" + columns + ", due timestamptz DEFAULT now() + '1 h', inserted_at timestamptz(3) DEFAULT clock_timestamp())"}, want: []string{"\n  time_column: inserted_at "}},
		{name: "with a time that the application may set", sql: []string{"CREATE TABLE events" + columns + ", occurred_at timestamptz DEFAULT now())"}, want: []string{"\n  # time_column: created_at "}},
		{name: "times that the application writes", sql: []string{"CREATE TABLE events" + columns + ", created_at timestamptz, local timestamp DEFAULT now())"}, want: []string{"\n  # time_column: created_at "}},
		{name: "with an identity", sql: []string{`CREATE SCHEMA "Shop"`, `CREATE TABLE "Shop"."order"` + columns + ", no int GENERATED BY DEFAULT AS IDENTITY)"}, want: []string{`  table: "\"Shop\".order"`, "\n  order_column: \"no\" "}},
		{
			name: "with a serial", sql: []string{"CREATE TABLE events" + columns + ", position bigserial) PARTITION BY HASH (id)", "CREATE TABLE events_0 PARTITION OF events FOR VALUES WITH (MODULUS 1, REMAINDER 0)"},
			want: []string{"\n  table: public.events\n", "\n  order_column: position "},
		},
		{name: "several", sql: []string{"CREATE TABLE b" + columns + ")", "CREATE TABLE a" + columns + ")"}, bad: "2 tables look like an outbox: public.a, public.b\nhint: Name the outbox with --table."},
		{name: "several, and one is named", sql: []string{"CREATE TABLE b" + columns + ")", "CREATE TABLE a" + columns + ", n bigint GENERATED ALWAYS AS IDENTITY)"}, table: "a", want: []string{"\n  table: public.a\n", "\n  order_column: \"n\" "}},
		{name: "both", sql: []string{"CREATE TABLE b" + columns + ")", "CREATE TABLE a" + columns + ", n bigint GENERATED ALWAYS AS IDENTITY)"}, table: "a,b", want: []string{"\n  tables: [public.a, public.b]\n", "\n  # order_column"}},
		{name: "public.outbox is another, and one fits", sql: []string{"CREATE TABLE outbox (id int)", "CREATE TABLE events" + columns + ")"}, want: []string{"\n  table: public.events\n"}},
		{name: "public.outbox does not fit", sql: []string{"CREATE TABLE outbox (id int)"}, want: []string{"\n  table: public.outbox ", "walpost check says which columns"}},
		{name: "one that does not fit", sql: []string{"CREATE TABLE other (id int PRIMARY KEY)"}, table: "other", want: []string{"\n  table: public.other ", "walpost check says which columns"}},
		{name: "one that does not exist", sql: []string{"CREATE TABLE b" + columns + ")"}, table: "events", want: []string{"\n  table: public.events ", "walpost setup creates it", "\n  order_column: seq "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dsn := pg.Database(t)
			pg.Exec(t, dsn, c.sql...)
			args := []string{"--dsn", strings.Replace(dsn, "postgres@", "postgres:geheim@", 1)}
			if c.table != "" {
				args = append(args, "--table", c.table)
			}
			file, bad, code := initFile(t, args...)
			if c.bad != "" {
				if code != exitUsage || !strings.Contains(bad, c.bad) {
					t.Errorf("exit code %d: %s", code, bad)
				}
				return
			}
			for _, want := range append(c.want, "\n  password: ${PGPASSWORD} ") {
				if !strings.Contains(file, want) {
					t.Errorf("no %q in %s%s", want, file, bad)
				}
			}
			if c.not != "" && strings.Contains(file, c.not) {
				t.Errorf("%q is in %s", c.not, file)
			}
		})
	}
	t.Run("the slot and the publication", func(t *testing.T) {
		const sales = "sales.outbox"
		dsn, other := pg.Database(t), pg.Database(t)
		pg.Exec(t, dsn, "CREATE TABLE outbox"+columns+")", "CREATE SCHEMA sales", "CREATE TABLE "+sales+columns+")")
		database := pg.Value(t, dsn, "SELECT current_database()")
		names := func(dsn, table, want string) {
			t.Helper()
			file, bad, code := initFile(t, "--dsn", dsn, "--table", table)
			if code != exitOK || strings.Count(file, "\n  slot: ") != strings.Count(file, "\n  publication: ") ||
				want == "" && strings.Contains(file, "\n  slot: ") || want != "" && !(strings.Contains(file, "\n  slot: "+want+" ") && strings.Contains(file, "\n  publication: "+want+" ")) {
				t.Errorf("the slot and the publication must be %q in %s%s", want, file, bad)
			}
		}
		names(dsn, sales, "")
		// The publication of a first relay, which has not made its slot.
		pg.Exec(t, dsn, "CREATE PUBLICATION walpost FOR TABLE outbox")
		names(dsn, "outbox", "")
		names(dsn, sales, database+"_walpost")
		names(dsn, "outbox,"+sales, database+"_walpost")
		slot := func(dsn, name string) {
			pg.Exec(t, dsn, "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
			t.Cleanup(func() { pg.Exec(t, dsn, "SELECT pg_drop_replication_slot('"+name+"')") })
		}
		slot(dsn, "walpost")
		names(dsn, "outbox", "")
		names(dsn, sales, database+"_walpost")
		// A slot whose publication has another name.
		slot(dsn, database+"_walpost")
		names(dsn, sales, database+"_walpost_2")
		pg.Exec(t, dsn, "ALTER PUBLICATION walpost ADD TABLE "+sales)
		names(dsn, "outbox,"+sales, "")
		names(dsn, "outbox", database+"_walpost_2")
		// Another database has the slot.
		pg.Exec(t, other, "CREATE TABLE outbox"+columns+")", "CREATE PUBLICATION walpost FOR TABLE outbox")
		names(other, "public.outbox", pg.Value(t, other, "SELECT current_database()")+"_walpost")
	})
	t.Run("the role", func(t *testing.T) {
		dsn := pg.Database(t)
		file, _, _ := initFile(t, "--dsn", strings.Replace(dsn, "postgres@", "postgres:geheim@", 1), "--role", "walpost")
		if !strings.Contains(file, "\n  dsn: "+strings.Replace(dsn, "postgres@", "walpost@", 1)+"\n  # password_file: ") {
			t.Errorf("%s", file)
		}
		_, bad, code := initFile(t, "--dsn", strings.Replace(dsn, "postgres@", "walpost_is_not_there@", 1))
		if code != exitFailed || !strings.Contains(bad, "pass the DSN of an administrator, and name the role with --role") {
			t.Errorf("exit code %d: %s", code, bad)
		}
	})
}
