package parity

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// A kind is a type of Postgres with a way to make values of it, as SQL.
type kind struct {
	name      string
	value     func(*generator) string
	noDefault bool
	bytes     bool // what Java's toString prints as an address, at least within a struct
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// kinds are the types that Debezium knows, but for those whose text is not the same in two runs.
func (g *generator) kinds() []kind {
	if !g.stringy {
		return allKinds
	}
	var kinds []kind
	for _, k := range allKinds {
		if !k.bytes {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func only(name string) []kind {
	for _, k := range allKinds {
		if k.name == name {
			return []kind{k}
		}
	}
	panic("no kind " + name)
}

func (g *generator) integer(bits int) string {
	switch g.IntN(5) {
	case 0:
		return fmt.Sprintf("'%d'", int64(-1)<<(bits-1))
	case 1:
		return fmt.Sprintf("'%d'", int64(1)<<(bits-1)-1)
	}
	return fmt.Sprintf("'%d'", int64(g.Uint64())>>(64-bits+g.IntN(bits-1)))
}

// float makes numbers of few binary digits: of others, a Java before 19 prints some with more digits than needed.
func (g *generator) float() string {
	if g.chance(.15) {
		return pick(g, "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e10", "1e7", "9999999", "1e-5")
	}
	return fmt.Sprintf("'%v'", float64(g.IntN(1<<20)-1<<19)/16)
}

// decimal has up to so many digits before and behind the point; fewer where it becomes a float, for the reason given there.
func (g *generator) decimal(before, behind int) string {
	if g.doubles {
		before, behind = min(before, 6), min(behind, 4)
	}
	var b strings.Builder
	b.WriteString(pick(g, "", "", "-"))
	for range 1 + g.IntN(before) {
		b.WriteByte(byte('0' + g.IntN(10)))
	}
	if n := g.IntN(behind + 1); n > 0 {
		b.WriteByte('.')
		for range n {
			b.WriteByte(byte('0' + g.IntN(10)))
		}
	}
	return "'" + b.String() + "'"
}

var pieces = []string{
	"a", "B", "plain text", " ", "\t", "\n", "\r", "\"", "'", "\\", "/", "`", "{", "}", "[", "]", ",", ":", "=", "\x01", "\x1f", "\x7f", "é", "ß", "漢字",
	"😀", "𝄞", "\u2028", "\u0085", "\ufeff", "e\u0301", "null", "true", "12", "-3.5", "$1", "${x}", "%s", "<b>", "&amp;", "1e5", "NaN", "2024-01-01", "\ufffd",
}

func (g *generator) text() string {
	var b strings.Builder
	for range g.IntN(5) {
		b.WriteString(pick(g, pieces...))
	}
	if g.chance(.1) {
		b.WriteRune(rune(0x20 + g.IntN(0xd000)))
	}
	return b.String()
}

func (g *generator) hex() string {
	b := make([]byte, g.IntN(12))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return `'\x` + hex.EncodeToString(b) + "'"
}

func (g *generator) date() string {
	year := pick(g, 1+g.IntN(9998), 1970+g.IntN(80), 1900+g.IntN(70))
	return fmt.Sprintf("%04d-%02d-%02d", year, 1+g.IntN(12), 1+g.IntN(28))
}

// recent is a date that nanoseconds reach.
func (g *generator) recent() string {
	return fmt.Sprintf("%04d-%02d-%02d", 1900+g.IntN(300), 1+g.IntN(12), 1+g.IntN(28))
}

func (g *generator) clock() string {
	s := fmt.Sprintf("%02d:%02d:%02d", g.IntN(24), g.IntN(60), g.IntN(60))
	if n := g.IntN(7); n > 0 {
		s += "." + fmt.Sprintf("%06d", g.IntN(1000000))[:n]
	}
	return s
}

func (g *generator) zone() string { return pick(g, "Z", "+02", "-11:30", "+05:45") }

func (g *generator) uuid() string {
	var b [16]byte
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// array is a literal of some elements; each is quoted.
func (g *generator) array(element func() string) string {
	var all []string
	for range g.IntN(4) {
		if g.chance(.15) {
			all = append(all, "NULL")
			continue
		}
		e := strings.TrimSuffix(strings.TrimPrefix(element(), "'"), "'")
		all = append(all, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(e)+`"`)
	}
	return "'{" + strings.Join(all, ",") + "}'"
}

// tree is a JSON value. Arrays are of one kind and of objects none: Debezium's order of members there changes from run to run.
func (g *generator) tree(depth int) any {
	switch n := g.IntN(9); {
	case n == 0:
		return nil
	case n == 1:
		return g.chance(.5)
	case n == 2:
		return json.Number(fmt.Sprint(int64(g.Uint64()) >> g.IntN(63)))
	case n == 3:
		return json.Number(fmt.Sprintf("%v", float64(g.IntN(1<<20)-1<<19)/16+.5))
	case n == 4 && depth > 0:
		var a []any
		first := g.IntN(3)
		for range g.IntN(4) {
			a = append(a, []any{json.Number(fmt.Sprint(g.IntN(100000))), g.text(), g.chance(.5)}[first])
		}
		if a == nil {
			return []any{}
		}
		return a
	case n < 7 && depth > 0:
		return g.object(depth - 1)
	}
	return g.text()
}

func (g *generator) object(depth int) any {
	o := map[string]any{}
	for range g.IntN(5) {
		o[pick(g, "a", "b", "Name", "some key", "é", "x.y", "1", "_", "$")] = g.tree(depth)
	}
	return o
}

// document is a payload to expand: mostly an object.
func (g *generator) document() string {
	v := g.object(3)
	if g.chance(.1) {
		v = pick[any](g, "text", nil, true, json.Number("5"))
	}
	return g.encode(v)
}

func (g *generator) encode(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if g.chance(.3) {
		enc.SetIndent("", " ")
	}
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return quoted(strings.TrimSpace(b.String()))
}

func simple(name string, value func(*generator) string) kind { return kind{name: name, value: value} }

var allKinds = []kind{
	simple("text", func(g *generator) string { return quoted(g.text()) }),
	simple("varchar(200)", func(g *generator) string { return quoted(g.text()) }),
	simple("char(90)", func(g *generator) string { return quoted(g.text()) }),
	simple("code", func(g *generator) string { return pick(g, "'x'", "'abc-1'", "''") }),
	simple("smallint", func(g *generator) string { return g.integer(16) }),
	simple("int", func(g *generator) string { return g.integer(32) }),
	simple("bigint", func(g *generator) string { return g.integer(64) }),
	simple("oid", func(g *generator) string { return fmt.Sprint(g.Uint32()) }),
	simple("boolean", func(g *generator) string { return pick(g, "true", "false") }),
	simple("real", func(g *generator) string { return g.float() }),
	simple("double precision", func(g *generator) string { return g.float() }),
	simple("numeric(10,2)", func(g *generator) string { return g.decimal(8, 2) }),
	simple("numeric(30,12)", func(g *generator) string { return g.decimal(18, 12) }),
	simple("numeric(6)", func(g *generator) string { return g.decimal(6, 0) }),
	simple("price", func(g *generator) string { return g.decimal(5, 3) }),
	{name: "numeric", value: func(g *generator) string { return g.decimal(20, 10) }, bytes: true},
	simple("money", func(g *generator) string { return g.decimal(9, 2) }),
	simple("uuid", func(g *generator) string { return quoted(g.uuid()) }),
	simple("json", func(g *generator) string { return g.encode(g.tree(3)) }),
	simple("jsonb", func(g *generator) string { return g.encode(g.tree(3)) }),
	{name: "bytea", value: (*generator).hex, bytes: true},
	simple("bit(1)", func(g *generator) string { return pick(g, "B'0'", "B'1'") }),
	{name: "bit(11)", value: func(g *generator) string { return fmt.Sprintf("B'%011b'", g.IntN(1<<11)) }, bytes: true},
	simple("date", func(g *generator) string { return quoted(g.date()) }),
	simple("time", func(g *generator) string { return quoted(g.clock()) }),
	simple("time(2)", func(g *generator) string { return quoted(g.clock()) }),
	simple("timetz", func(g *generator) string { return quoted(g.clock() + g.zone()) }),
	simple("timestamp", func(g *generator) string { return quoted(g.recent() + " " + g.clock()) }),
	simple("timestamp(2)", func(g *generator) string { return quoted(g.recent() + " " + g.clock()) }),
	simple("timestamptz", func(g *generator) string { return quoted(g.date() + " " + g.clock() + g.zone()) }),
	simple("timestamptz(1)", func(g *generator) string { return quoted(g.date() + " " + g.clock() + g.zone()) }),
	simple("interval", func(g *generator) string {
		return fmt.Sprintf("'%d years %d mons %d days %s%s'", g.IntN(9)-4, g.IntN(23)-11, g.IntN(60)-30, pick(g, "", "-"), g.clock())
	}),
	simple("inet", func(g *generator) string { return pick(g, "'10.1.2.3'", "'10.1.2.0/24'", "'::1'", "'2001:db8::/64'") }),
	simple("cidr", func(g *generator) string { return pick(g, "'10.1.2.0/24'", "'2001:db8::/64'") }),
	simple("macaddr", func(g *generator) string { return "'08:00:2b:01:02:03'" }),
	simple("int4range", func(g *generator) string { return pick(g, "'[1,7)'", "'empty'", "'(,5]'") }),
	simple("numrange", func(g *generator) string { return pick(g, "'[1.50,7)'", "'(,)'") }),
	simple("tstzrange", func(g *generator) string {
		return quoted("[" + g.recent() + " " + g.clock() + g.zone() + ",)")
	}),
	simple("mood", func(g *generator) string { return pick(g, "'sad'", "'so so'", "'happy'") }),
	{name: "hstore", value: func(g *generator) string { return pick(g, "'a=>1,b=>NULL'", "''", `'"k \"q\"" => "é"'`) }, noDefault: true},
	simple("int[]", func(g *generator) string { return g.array(func() string { return g.integer(32) }) }),
	simple("bigint[]", func(g *generator) string { return g.array(func() string { return g.integer(64) }) }),
	simple("text[]", func(g *generator) string {
		return quoted(strings.TrimSuffix(strings.TrimPrefix(g.array(g.text), "'"), "'"))
	}),
	simple("boolean[]", func(g *generator) string { return g.array(func() string { return pick(g, "t", "f") }) }),
	simple("uuid[]", func(g *generator) string { return g.array(g.uuid) }),
	simple("double precision[]", func(g *generator) string { return g.array(g.float) }),
	simple("numeric(9,3)[]", func(g *generator) string { return g.array(func() string { return g.decimal(6, 3) }) }),
	simple("date[]", func(g *generator) string { return g.array(g.date) }),
	simple("timestamp[]", func(g *generator) string { return g.array(func() string { return g.recent() + " " + g.clock() }) }),
	simple("timestamptz[]", func(g *generator) string {
		return g.array(func() string { return g.recent() + " " + g.clock() + g.zone() })
	}),
}
