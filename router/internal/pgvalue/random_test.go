//go:build linux || darwin

package pgvalue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// randomCases makes n rows, some columns with many and some with a default and a NULL.
func randomCases(r *rand.Rand, n int) (columns []goldenColumn) {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	word := func() string {
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString(pick("a", "B", "key", "'", `"`, `\`, "\n", " ", ",", "{", "}", "é", "😀", "::", "(", ")", "=>", "NULL", "1", "\u2028", "\x01", "\t"))
		}
		return b.String()
	}
	digits := func(most int) string {
		var b strings.Builder
		for range 1 + r.IntN(most) {
			b.WriteByte(byte('0' + r.IntN(10)))
		}
		return b.String()
	}
	number := func(whole, fraction int) string {
		s := pick("", "-") + digits(whole)
		if fraction > 0 && r.IntN(3) > 0 {
			s += "." + digits(fraction)
		}
		return s
	}
	clock := func() string {
		return fmt.Sprintf("%02d:%02d:%02d%s", r.IntN(24), r.IntN(60), r.IntN(60), pick("", "."+digits(6), ".5", ".000001", ".999999"))
	}
	date := func() string {
		year := []int{1900 + r.IntN(200), 1 + r.IntN(9999), 1582, 1500 + r.IntN(90), 10_000 + r.IntN(200_000)}[r.IntN(5)]
		bc := ""
		if year < 4000 && r.IntN(6) == 0 {
			bc = " BC"
		}
		return fmt.Sprintf("%04d-%02d-%02d%s", year, 1+r.IntN(12), 1+r.IntN(28), bc)
	}
	moment := func(zone string) string {
		if r.IntN(20) == 0 {
			return pick("infinity", "-infinity")
		}
		day, era, _ := strings.Cut(date(), " ")
		if era != "" {
			era = " " + era
		}
		return day + " " + clock() + zone + era
	}
	zone := func() string { return fmt.Sprintf("%s%02d%s", pick("+", "-"), r.IntN(15), pick("", ":30", ":45")) }
	interval := func() string {
		return fmt.Sprintf("%d years %d mons %d days %s%d:%02d:%02d.%06d", r.IntN(400)-200, r.IntN(30)-15, r.IntN(2000)-1000, pick("", "-"), r.IntN(200), r.IntN(60), r.IntN(60), r.IntN(1_000_000))
	}
	float := func(bits int) string {
		if bits == 32 {
			return strconv.FormatFloat(float64(math.Float32frombits(r.Uint32())), 'g', -1, 32)
		}
		return strconv.FormatFloat(math.Float64frombits(r.Uint64()), 'g', -1, 64)
	}
	hstore := func() string {
		var pairs []string
		for range r.IntN(30) {
			value := "NULL"
			if r.IntN(5) > 0 {
				value = strconv.QuoteToASCII(digits(3))
			}
			key := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word() + digits(2))
			pairs = append(pairs, `"`+key+`"=>`+value)
		}
		return strings.Join(pairs, ",")
	}
	list := func(of func() string) string {
		var items []string
		for range r.IntN(4) {
			items = append(items, pick(`"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(of())+`"`, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(of())+`"`, "NULL"))
		}
		return "{" + strings.Join(items, ",") + "}"
	}
	day := func() string { return date() }
	bits := func() string {
		return strings.NewReplacer("2", "0", "3", "1", "4", "0", "5", "1", "6", "0", "7", "1", "8", "0", "9", "0").Replace(digits(20))
	}
	kinds := []struct {
		definition string
		value      func() string
	}{
		{"numeric", func() string { return number(30, 30) }},
		{"numeric(20,6)", func() string { return number(12, 9) }},
		{"money", func() string { return number(12, 2) }},
		{"real", func() string { return float(32) }},
		{"double precision", func() string { return float(64) }},
		{"varbit", bits},
		{"varbit(20)", bits},
		{"date", day},
		{"time", clock},
		{"time(2)", clock},
		{"timetz", func() string { return clock() + zone() }},
		{"timestamp", func() string { return moment("") }},
		{"timestamp(2)", func() string { return moment("") }},
		{"timestamptz", func() string { return moment(zone()) }},
		{"timestamptz(4)", func() string { return moment(zone()) }},
		{"interval", interval},
		{"hstore", hstore},
		{"text[]", func() string { return list(word) }},
		{"numeric(20,6)[]", func() string { return list(func() string { return number(12, 6) }) }},
		{"numeric[]", func() string { return list(func() string { return number(12, 12) }) }},
		{"date[]", func() string { return list(day) }},
		{"time[]", func() string { return list(clock) }},
		{"timetz[]", func() string { return list(func() string { return clock() + zone() }) }},
		{"timestamp[]", func() string { return list(func() string { return moment("") }) }},
		{"timestamptz(3)[]", func() string { return list(func() string { return moment(zone()) }) }},
		{"double precision[]", func() string { return list(func() string { return float(64) }) }},
		{"bytea", func() string { return `\x` + digits(4) + digits(4) + "00" }},
		{"point", func() string { return "(" + float(64) + "," + number(3, 3) + ")" }},
	}
	var textOf func(depth int) string
	textOf = func(depth int) string {
		if depth == 0 {
			return pick(quoted(word()), quoted(word())+"::text", "now()::text", "upper("+quoted(word())+")", "current_user", "NULL", "CURRENT_DATE::text", digits(3)+"::text")
		}
		a, b := textOf(depth-1), textOf(depth-1)
		return pick(a+" || "+b, "("+a+")", "lower("+a+")", "COALESCE("+a+", "+b+")", "("+a+")::varchar", "CASE WHEN "+a+" = 'x' THEN "+b+" END", "substring("+a+" from 1 for 2)", "concat("+a+", "+b+")")
	}
	defaults := []struct {
		definition string
		value      func() string
	}{
		{"text", func() string { return textOf(r.IntN(3)) }},
		{"varchar(40)", func() string { return textOf(r.IntN(3)) }},
		{"char(9)", func() string { return quoted(digits(5)) }},
		{"integer", func() string {
			return pick(number(6, 0), quoted(number(6, 0))+"::int", number(3, 0)+" + 1", "length('x')", "(length('x') + 1)", "NULL::int")
		}},
		{"smallint", func() string { return pick(number(4, 0), quoted(number(4, 0))) }},
		{"bigint", func() string { return pick(number(18, 0), "floor(random())::bigint", number(10, 0)+"::int8") }},
		{"numeric", func() string { return pick(number(20, 9), quoted(number(20, 9)), "random()", "NULL::numeric") }},
		{"numeric(12,3)", func() string {
			return pick(number(8, 3), number(8, 5), quoted(number(8, 2)), "1/3.0", "NULL", "NULL::numeric")
		}},
		{"real", func() string { return pick(number(5, 4), quoted(float(32)), "1e10") }},
		{"double precision", func() string { return pick(number(5, 4), quoted(float(64)), "pi()", "1e-7") }},
		{"boolean", func() string { return pick("true", "false", "'t'", "not true", "1 = 1", "NULL::bool") }},
		{"date", func() string {
			return pick(quoted(date()), "CURRENT_DATE", "now()", "CURRENT_DATE + 1", quoted(date())+"::timestamp")
		}},
		{"time(3)", func() string { return pick(quoted(clock()), "LOCALTIME", "now()::time", "NULL", "LOCALTIME(1)") }},
		{"timestamp", func() string {
			return pick(quoted(moment("")), "now()", quoted(moment(zone()))+"::timestamptz", "CURRENT_TIMESTAMP - interval '1 day'")
		}},
		{"timestamp(3)", func() string { return pick(quoted(moment("")), "LOCALTIMESTAMP(2)", "NULL", "NULL::timestamp") }},
		{"timestamptz", func() string {
			return pick(quoted(moment(zone())), "now()", "transaction_timestamp()", "now() at time zone 'utc'")
		}},
		{"timestamptz(2)", func() string { return pick(quoted(moment(zone())), "NULL", "CURRENT_TIMESTAMP(1)") }},
		{"interval", func() string { return pick(quoted(interval()), "'1 day' * 2", "now() - now()", "NULL::interval") }},
		{"interval(3)", func() string { return pick(quoted(interval()), "NULL", "NULL::interval") }},
		{"bit(4)", func() string { return pick("B'1010'", "B'1'::bit(4)", "5::bit(4)", "NULL", "'1'") }},
		{"varbit(9)", func() string { return pick("B'1010'", "B''", "NULL", "'11'") }},
		{"jsonb", func() string {
			return pick(`'{"a": "x''y"}'`, `'[1, "b"]'`, "'{}'::json", "jsonb_build_array(1)", "to_jsonb(now())", "'null'")
		}},
		{"uuid", func() string {
			return pick("gen_random_uuid()", "'00000000-0000-0000-0000-00000000000A'", "md5('x')::uuid")
		}},
		{"mood", func() string {
			return pick("'sad'", "'sad'::mood", "'it''s ok'", "('s' || 'ad')::mood", "lower('SAD')::mood")
		}},
		{"xml", func() string { return pick("'<a/>'", "'<a b=\"it''s\"/>'", "xmlelement(name a)") }},
	}
	for len(columns) < len(kinds) {
		k := kinds[len(columns)]
		c := goldenColumn{definition: k.definition + pick("", " NOT NULL")}
		for range max(2, n/2/len(kinds)) {
			c.rows = append(c.rows, goldenRow{sql: quoted(k.value())})
		}
		columns = append(columns, c)
	}
	for i := range n / 2 {
		d := defaults[i%len(defaults)]
		columns = append(columns, goldenColumn{definition: d.definition + " DEFAULT (" + d.value() + ")", rows: []goldenRow{{sql: "NULL"}}})
	}
	return columns
}
