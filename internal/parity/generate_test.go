package parity

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

const (
	outbox    = "transforms.outbox."
	inStrings = "org.apache.kafka.connect.storage.StringConverter"
	inJSON    = "org.apache.kafka.connect.json.JsonConverter"
	inBytes   = "org.apache.kafka.connect.converters.ByteArrayConverter"
	inBinary  = "io.debezium.converters.BinaryDataConverter"
	inSimple  = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
)

// Random makes a case of a seed and a number: a random configuration with up to four tables, of random columns and rows, each of which
// counts as one case. It leaves out what is known to differ on purpose or to have no one outcome; see the List and the comments here.
func Random(seed, n uint64) (c *Case, tables int) {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, n))}
	g.c = &Case{Group: "random", Name: fmt.Sprintf("seed %d number %d", seed, n)}
	return g.c, g.fill()
}

type generator struct {
	*rand.Rand
	c           *Case
	stringy     bool // some bytes are printed by Java's toString, which prints addresses of what is within structs
	enveloped   bool
	named       bool // schemas with names are written
	expands     bool
	doubles     bool
	nanoseconds bool
	hasAt       bool
	partitions  bool
	versions    bool
	updates     bool
	mapped      []string // the further columns
	keyType     string
	valueType   string
	topicsOf    []string
}

func (g *generator) chance(p float64) bool { return g.Float64() < p }

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

func (g *generator) set(key, value string) { g.c.Config = append(g.c.Config, Option{key, value}) }

// some sets an option to one of the values with a chance; the first is Debezium's default.
func (g *generator) some(p float64, key string, values ...string) string {
	if !g.chance(p) {
		return values[0]
	}
	v := pick(g, values...)
	g.set(key, v)
	return v
}

func (g *generator) fill() (tables int) {
	g.converters()
	g.modes()
	g.routing()
	g.columns()
	tables = 1 + g.IntN(4)
	if g.enveloped {
		// Debezium keeps the schema that it made for the first envelope of a payload's schema, or of a version, and uses it for all:
		// with other columns it fails, and the name in it is that of the table and the aggregate type which came first.
		tables = 1
		if g.named {
			g.topicsOf = g.topicsOf[:1]
		}
	}
	var names []string
	var ddl, sql []string
	for t := range tables {
		name := fmt.Sprintf("outbox%d", t)
		if g.chance(.2) {
			name = fmt.Sprintf("OutBox_%d", t)
		}
		names = append(names, "public."+name)
		d, rows := g.table(`"` + name + `"`)
		ddl = append(ddl, d)
		sql = append(sql, rows...)
	}
	g.set("table.include.list", strings.Join(names, ","))
	g.c.DDL = "CREATE EXTENSION hstore;\nCREATE TYPE mood AS ENUM ('sad', 'so so', 'happy');\nCREATE DOMAIN price AS numeric(8,3);\n" +
		"CREATE DOMAIN code AS varchar(12);\n" + strings.Join(ddl, "\n") + "\n"
	// Rows of several tables mixed, some of them in one transaction.
	g.Shuffle(len(sql), func(i, j int) { sql[i], sql[j] = sql[j], sql[i] })
	var b strings.Builder
	for i := 0; i < len(sql); {
		n := min(1+g.IntN(4), len(sql)-i)
		if n > 1 {
			b.WriteString("BEGIN;\n")
		}
		b.WriteString(strings.Join(sql[i:i+n], "\n") + "\n")
		if n > 1 {
			b.WriteString("COMMIT;\n")
		}
		i += n
	}
	if g.updates {
		for _, name := range names {
			table := `"` + strings.TrimPrefix(name, "public.") + `"`
			fmt.Fprintf(&b, "UPDATE %s SET type = 'changed' WHERE id = 1;\nUPDATE %s SET id = 1000 WHERE id = 2;\nDELETE FROM %s WHERE id = 3;\n", table, table, table)
		}
	}
	g.c.SQL = b.String()
	return tables
}

func (g *generator) converters() {
	g.keyType = "text"
	keys := pick(g, "", inStrings, inJSON, inJSON, inJSON, inBytes, inBinary)
	if keys != "" {
		g.set("key.converter", keys)
	}
	switch keys {
	case inJSON:
		g.json("key.converter.")
	case inBytes, inBinary:
		g.keyType = "bytea"
	default:
		g.stringy = true
	}
	if g.keyType == "text" && g.chance(.4) {
		g.keyType = "" // any
	}
	values := pick(g, "", inStrings, inJSON, inJSON, inJSON, inJSON, inBytes, inBinary)
	if values != "" {
		g.set("value.converter", values)
	}
	switch values {
	case inJSON:
		g.named = g.json("value.converter.")
		g.expands = g.chance(.35)
	case inBytes, inBinary:
		g.valueType = "bytea"
		if values == inBinary && g.chance(.5) {
			g.set("value.converter.delegate.converter.type", inJSON)
			schemas := pick(g, "true", "false")
			g.set("value.converter.delegate.converter.type.schemas.enable", schemas)
			g.named = schemas == "true"
			g.valueType = ""
		}
	default:
		g.stringy = true
	}
	headers := pick(g, "", "", inSimple, inStrings, inJSON, inJSON)
	if headers != "" {
		g.set("header.converter", headers)
	}
	switch headers {
	case inJSON:
		g.json("header.converter.")
	case inStrings:
		g.stringy = true
	}
	if g.chance(.25) {
		g.set("extended.headers.enabled", "true")
	}
}

// json sets options of a JsonConverter and says whether it writes schemas.
func (g *generator) json(prefix string) bool {
	schemas := g.some(.8, prefix+"schemas.enable", "true", "false")
	g.some(.2, prefix+"decimal.format", "BASE64", "NUMERIC")
	g.some(.2, prefix+"replace.null.with.default", "true", "false")
	return schemas == "true"
}

func (g *generator) modes() {
	time := g.some(.7, "time.precision.mode", "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")
	g.doubles = g.some(.6, "decimal.handling.mode", "precise", "string", "double") == "double"
	if g.keyType != "bytea" && g.valueType != "bytea" { // whose converters take bytes only
		g.some(.5, "binary.handling.mode", "bytes", "bytes", "base64", "base64-url-safe", "hex")
	}
	g.some(.4, "interval.handling.mode", "numeric", "string")
	g.some(.4, "hstore.handling.mode", "json", "map")
	g.nanoseconds = time == "nanoseconds"
	if g.chance(.3) && time != "connect" && time != "isostring" {
		g.hasAt = true
		g.set(outbox+"table.field.event.timestamp", "at")
	}
}

func (g *generator) routing() {
	g.topicsOf = []string{"order", "customer", "Order-Line_2"}
	type route struct{ regex, replacement string }
	r := pick(g, route{}, route{}, route{"", "events.${routedByValue}"}, route{"(.*)", "$1.$0"}, route{"(?<a>.)(?<b>.*)", "${b}.${a}"},
		route{"(?i)ORDER(.*)", "o$1"}, route{"order|order.*", "x"}, route{"([a-z]+).*?", "w.$1"}, route{"(.*?)(-.*)?", "t_$1"},
		route{".*[^e]r", "r"}, route{"[\\w-]+", "all"}, route{"(.)(.*)", "$2.$1"}, route{"nothing", "x"})
	if r.regex != "" {
		g.set(outbox+"route.topic.regex", r.regex)
	}
	if r.replacement != "" {
		g.set(outbox+"route.topic.replacement", r.replacement)
	}
	g.some(.4, outbox+"route.tombstone.on.empty.payload", "false", "true")
	g.some(.2, outbox+"table.op.invalid.behavior", "warn", "error")
	if g.expands {
		g.set(outbox+"table.expand.json.payload", "true")
		g.some(.4, outbox+"table.json.payload.null.behavior", "ignore", "optional_bytes")
	}
	g.updates = g.chance(.2) && !g.nanoseconds // see found.txt
}

// columns chooses what is placed where.
func (g *generator) columns() {
	var places []string
	for i := range g.IntN(6) {
		name := fmt.Sprintf("c%d", i)
		g.mapped = append(g.mapped, name)
		where := pick(g, "header", "header", "envelope")
		if g.valueType == "bytea" {
			where = "header"
		}
		g.enveloped = g.enveloped || where == "envelope"
		if g.chance(.3) {
			where += ":" + pick(g, "alias", "Alias-", "é") + fmt.Sprint(i)
		}
		places = append(places, name+":"+where)
	}
	if g.chance(.2) {
		g.partitions = true
		places = append(places, "part:partition")
	}
	if g.chance(.2) {
		places = append(places, "type:header:eventType")
	}
	if g.chance(.1) {
		g.set(outbox+"table.field.additional.missing", "ignore")
		places = append(places, "nowhere:header")
	}
	if g.enveloped && !g.expands && g.chance(.3) {
		g.versions = true
		g.set(outbox+"table.field.event.schema.version", "version")
	}
	if len(places) > 0 {
		g.set(outbox+"table.fields.additional.placement", strings.Join(places, ","))
	}
}

// table returns a CREATE TABLE and INSERTs.
func (g *generator) table(name string) (ddl string, inserts []string) {
	type column struct {
		name   string
		value  func() string
		insist bool // never NULL
	}
	var columns []column
	var defs []string
	add := func(name, typ, constraint string, value func() string) {
		defs = append(defs, fmt.Sprintf("%s %s%s", name, typ, constraint))
		columns = append(columns, column{name, value, constraint != "" && !strings.HasPrefix(constraint, " DEFAULT")})
	}
	id := 0
	add("id", pick(g, "int", "bigint"), " PRIMARY KEY", func() string { id++; return fmt.Sprint(id) })
	add("aggregatetype", pick(g, "text", "varchar(30)"), " NOT NULL", func() string { return quoted(pick(g, g.topicsOf...)) })
	any := func(name string, types []kind) {
		k := pick(g, types...)
		constraint := ""
		switch {
		case g.chance(.2):
			constraint = " NOT NULL"
		case g.chance(.25) && !k.noDefault:
			constraint = " DEFAULT " + k.value(g)
		}
		add(name, k.name, constraint, func() string { return k.value(g) })
	}
	key := g.kinds()
	if g.keyType != "" {
		key = only(g.keyType)
	}
	any("aggregateid", key)
	any("type", only("text"))
	value := g.kinds()
	switch {
	case g.expands:
		value = []kind{{name: "json", value: (*generator).document}, {name: "jsonb", value: (*generator).document}, {name: "text", value: (*generator).document}}
	case g.valueType != "":
		value = only(g.valueType)
	case g.chance(.7):
		value = append(only("text"), only("jsonb")...)
	}
	any("payload", value)
	for _, name := range g.mapped {
		any(name, g.kinds())
	}
	if g.hasAt {
		k := pick(g, kind{name: "timestamp"}, kind{name: "timestamp(3)"}, kind{name: "timestamp(0)"})
		add("at", k.name, "", func() string {
			return fmt.Sprintf("'20%02d-%02d-%02d %02d:%02d:%02d.%06d'", g.IntN(20), 1+g.IntN(12), 1+g.IntN(28), g.IntN(24), g.IntN(60), g.IntN(60), g.IntN(1000000))
		})
	}
	if g.partitions {
		add("part", "int", "", func() string { return fmt.Sprint(g.IntN(Partitions)) })
	}
	if g.versions {
		add("version", "int", " NOT NULL", func() string { return fmt.Sprint(1 + g.IntN(3)) })
	}
	g.Shuffle(len(defs), func(i, j int) { defs[i], defs[j] = defs[j], defs[i] })
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	for range 3 + g.IntN(5) {
		var values []string
		for _, c := range columns {
			v := c.value()
			if !c.insist && g.chance(.15) {
				v = "NULL"
			}
			values = append(values, v)
		}
		inserts = append(inserts, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s);", name, strings.Join(names, ", "), strings.Join(values, ", ")))
	}
	return fmt.Sprintf("CREATE TABLE %s (%s);", name, strings.Join(defs, ", ")), inserts
}
