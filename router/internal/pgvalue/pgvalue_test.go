package pgvalue

import (
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/router/internal/connect"
)

// The values of Debezium's options, with the default first.
var (
	timeModes     = []string{"adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"}
	decimalModes  = []string{"precise", "string", "double"}
	binaryModes   = []string{"bytes", "base64", "base64-url-safe", "hex"}
	intervalModes = []string{"numeric", "string"}
	hstoreModes   = []string{"json", "map"}
)

func mustColumn(t testing.TB, c cdc.Column, m Modes) *Type {
	t.Helper()
	c.Name = "v"
	typ, err := Column(&c, m)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

func TestUnsetModesAreDebeziumsDefaults(t *testing.T) {
	first := Modes{timeModes[0], decimalModes[0], binaryModes[0], intervalModes[0], hstoreModes[0]}
	for _, c := range readGolden(t) {
		unset, err1 := Column(&c.column, Modes{})
		set, err2 := Column(&c.column, first)
		if (err1 == nil) != (err2 == nil) || err1 == nil && renderSchema(unset.Schema) != renderSchema(set.Schema) {
			t.Errorf("%s: %v, %v", c.definition, err1, err2)
		}
	}
}

func TestARefusalNamesColumnAndType(t *testing.T) {
	for want, c := range map[string]cdc.Column{
		"column place is a box: Debezium leaves":                    {Name: "place", TypeOID: 603, TypeMod: -1, TypeName: "box", BaseName: "box", BaseTypeMod: -1},
		"column x is a type with OID 70000: Debezium leaves":        {Name: "x", TypeOID: 70000, TypeMod: -1},
		"column tags is a public.pair[]: Debezium leaves":           {Name: "tags", TypeOID: 70000, TypeMod: -1, TypeName: "public.pair[]", BaseName: "_pair", ElementType: 70001, ElementName: "pair"},
		"column tags is a citext[]: Debezium leaves":                {Name: "tags", TypeOID: 70000, TypeMod: -1, TypeName: "citext[]"}, // no catalog, no element
		"column m is a xml[] or so: Debezium leaves":                {Name: "m", TypeOID: 70000, TypeMod: -1, TypeName: "xml[] or so", ElementType: pgtype.XMLOID, ElementName: "x", BaseName: "_x", BaseTypeMod: -1},
		"column many is a numeric(10,2)[] under a domain: Debezium": {Name: "many", TypeOID: 70000, TypeMod: -1, TypeName: "numeric(10,2)[] under a domain", ElementType: 70001, ElementName: "price", BaseName: "_price"},
	} {
		if _, err := Column(&c, Modes{}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, must begin with %s", err, want)
		}
	}
}

// TestADomainOverAnEnumIsTheEnum: Debezium itself does not start on a database that has such a domain (a NullPointerException in its
// TypeRegistry), so this is not from a run of it.
func TestADomainOverAnEnumIsTheEnum(t *testing.T) {
	typ := mustColumn(t, cdc.Column{TypeOID: 70000, BaseType: 70001, BaseName: "mood", BaseTypeMod: -1, EnumLabels: []string{"sad", "ok"}, HasDefault: true, Default: "'sad'::mood"}, Modes{})
	if got, want := renderSchema(typ.Schema), `STRING? io.debezium.data.Enum/1 "allowed"="sad,ok"`; got != want || !typ.Text {
		t.Errorf("%s, must be %s", got, want)
	}
}

func TestExtensionTypesAreKnownByName(t *testing.T) {
	if typ, err := Column(&cdc.Column{Name: "v", TypeOID: 70000, TypeMod: -1, BaseName: "citext"}, Modes{}); err != nil || !typ.Text {
		t.Error(err)
	}
	if _, err := Column(&cdc.Column{Name: "v", TypeOID: 3000, BaseName: "citext"}, Modes{}); err == nil {
		t.Error("one of Postgres' own types is taken for an extension's")
	}
}

func TestAColumnWithoutCatalogHasItsTypmod(t *testing.T) {
	typ := mustColumn(t, cdc.Column{TypeOID: pgtype.TimestampOID, TypeMod: 3}, Modes{})
	if typ.Schema.Name != "io.debezium.time.Timestamp" || !typ.Schema.Optional {
		t.Errorf("%s", renderSchema(typ.Schema))
	}
	typ = mustColumn(t, cdc.Column{TypeOID: pgtype.NumericOID, TypeMod: -1}, Modes{})
	if typ.Schema.Type != connect.Struct {
		t.Errorf("%s", renderSchema(typ.Schema))
	}
}

func TestAValueThatDebeziumCannotHoldIsAnErrorWhereNothingCanStandForIt(t *testing.T) {
	numeric := cdc.Column{TypeOID: pgtype.NumericOID, TypeMod: (10<<16 | 2) + 4}
	if v, err := mustColumn(t, numeric, Modes{}).Parse([]byte("NaN")); v != nil || err != nil {
		t.Errorf("a column that may be NULL: %v, %v", v, err)
	}
	numeric.NotNull, numeric.HasDefault, numeric.Default = true, true, "0"
	if v, err := mustColumn(t, numeric, Modes{}).Parse([]byte("NaN")); v != nil || err != nil {
		t.Errorf("a column with a default: %v, %v", v, err)
	}
	numeric.HasDefault = false
	if v, err := mustColumn(t, numeric, Modes{}).Parse([]byte("NaN")); err == nil || !strings.Contains(err.Error(), `Debezium turns "NaN" into NULL, and stops because the column is NOT NULL`) {
		t.Errorf("a column that must not be NULL: %v, %v", v, err)
	}
}

func TestTextThatIsNoneOfTheTypeIsAnError(t *testing.T) {
	for oid, bad := range map[uint32][]string{
		pgtype.BoolOID:        {"", "true", "x"},
		pgtype.Int2OID:        {"", "32768", "1.0", " 1", "1_0"},
		pgtype.Int4OID:        {"2147483648"},
		pgtype.Int8OID:        {"9223372036854775808", "0x1"},
		pgtype.Float4OID:      {"", "inf", "0x1p3", "1_0", "nan"},
		pgtype.Float8OID:      {"", "Inf", "1e", "--1"},
		pgtype.NumericOID:     {"", "-", ".", "1e5", "+1", "1.2.3", "--1", "1-"},
		oidMoney:              {"", "$", "1.234,56 €", "-", "()", "kr1"},
		pgtype.ByteaOID:       {"", "\\", "00ff", "\\x0", "\\xzz", "abc\\000"},
		pgtype.BitOID:         {"2", "1x"},
		pgtype.DateOID:        {"", "2024-2-29", "2024-02-30", "2023-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "2024-02-29 AD", "0000-01-01", "Infinity", "20240229", "2024-02-29T00:00:00"},
		pgtype.TimeOID:        {"", "1:00:00", "24:00:01", "12:60:00", "12:34", "12:34:56.", "12:34:56.1234567", "12:34:56Z"},
		pgtype.TimetzOID:      {"12:34:56", "12:34:56Z", "12:34:56+2", "12:34:56+19", "12:34:56+02:", "12:34:56+02:00:00:00", "12:34:56+01:02:03"},
		pgtype.TimestampOID:   {"", "2024-02-29", "2024-02-29T12:34:56", "2024-02-30 00:00:00", "2024-02-29 12:34:56+00", "2024-02-29 12:34:56 AD", "now"},
		pgtype.TimestamptzOID: {"2024-02-29 12:34:56", "2024-02-29 12:34:56+01", "2024-02-29 12:34:56+00:30", "2024-02-29 12:34:56-00"},
		pgtype.IntervalOID:    {"", "1", "year", "1 year 2", "1 decade", "@ 1 year", "P1Y", "1:2", "2147483648:00:00", "12:34:56 1 day"},
		pgtype.PointOID:       {"", "1,2", "(1)", "(1,2", "(a,b)", "(1,2,3)"},
	} {
		typ := mustColumn(t, cdc.Column{TypeOID: oid, TypeMod: -1}, Modes{})
		for _, raw := range bad {
			if v, err := typ.Parse([]byte(raw)); err == nil {
				t.Errorf("OID %d: %q is read as %v", oid, raw, v)
			} else if !strings.Contains(err.Error(), strconv.Quote(raw)) {
				t.Errorf("OID %d: %q: %v", oid, raw, err)
			}
		}
	}
	ints := mustColumn(t, cdc.Column{TypeOID: 1007, TypeMod: -1, ElementType: pgtype.Int4OID, ElementName: "int4", BaseName: "_int4", BaseTypeMod: -1}, Modes{})
	for _, raw := range []string{"", "1", "{", "}", "{1", "1}", "{1 2}", `{"1}`, `{"1\}`, "{{1}", "[1:2]", "[1:2]=1", "{x}", "{null}"} {
		if v, err := ints.Parse([]byte(raw)); err == nil {
			t.Errorf("the array %q is read as %v", raw, v)
		}
	}
	store := mustColumn(t, cdc.Column{TypeOID: 70000, TypeMod: -1, BaseName: "hstore", BaseTypeMod: -1}, Modes{})
	for _, raw := range []string{`a=>1`, `"a"`, `"a"=>`, `"a"=>1`, `"a"=>"1`, `"a"=>"1\`, `"a"=>"1",`, `"a"=>"1", `, `"a"=>"1","b"=>"2"`} {
		if v, err := store.Parse([]byte(raw)); err == nil {
			t.Errorf("the hstore %q is read as %v", raw, v)
		}
	}
}

func TestTwosComplementIsTheShortest(t *testing.T) {
	for n, want := range map[int64]string{0: "00", 1: "01", 127: "7f", 128: "0080", 255: "00ff", 256: "0100", -1: "ff", -128: "80", -129: "ff7f", -256: "ff00", -32768: "8000", -32769: "ff7fff"} {
		if got := connect.TwosComplement(big.NewInt(n)); renderValue(&connect.Schema{Type: connect.Bytes}, got) != "x'"+want+"'" {
			t.Errorf("%d is %x, must be %s", n, got, want)
		}
	}
}

// TestDaysAreTheCalendars walks through all days from 5000 BC to 10000 AD in both calendars.
func TestDaysAreTheCalendars(t *testing.T) {
	want, _ := (&civil{year: -4999, month: 1, day: 1}).days()
	for year := int64(-4999); year < 10_000; year++ {
		for month := int64(1); month <= 12; month++ {
			for day := int64(1); day <= 32; day++ {
				got, valid := (&civil{year: year, month: month, day: day}).days()
				if !valid {
					break
				}
				if got != want {
					t.Fatalf("%d-%d-%d is day %d, must be %d", year, month, day, got, want)
				}
				if y, m, d := connect.Civil(got); y != year || m != month || d != day {
					t.Fatalf("day %d is %d-%d-%d, must be %d-%d-%d", got, y, m, d, year, month, day)
				}
				want++
			}
		}
	}
	julian := func(year, month, day int64) int64 {
		c := civil{year: year, month: month, day: day}
		days, _ := c.days()
		return julianDays(c, days)
	}
	if midnight(1970, 1, 1).Unix() != 0 || julian(1582, 10, 4)+1 != julian(1582, 10, 15) || julian(-4712, 1, 1) != -2_440_588 {
		t.Error("the calendars do not begin where they should")
	}
}

func TestAValueOwnsItsBytes(t *testing.T) {
	for _, c := range readGolden(t) {
		for _, m := range runs {
			typ, err := Column(&c.column, m)
			if err != nil {
				continue
			}
			for _, r := range c.rows {
				raw := append([]byte{}, r.raw...)
				v, err := typ.Parse(raw)
				if err != nil || r.raw == nil {
					continue
				}
				before := renderValue(typ.Schema, v)
				for i := range raw {
					raw[i] = '#'
				}
				if after := renderValue(typ.Schema, v); after != before {
					t.Fatalf("%s: %s became %s when its text was overwritten", c.definition, before, after)
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	columns := readGolden(f)
	for i, c := range columns {
		for _, r := range c.rows {
			f.Add(i, string(r.raw), c.column.Default)
		}
	}
	f.Fuzz(func(t *testing.T, i int, raw, expr string) {
		if i < 0 || i >= len(columns) {
			return
		}
		for _, m := range runs {
			c := columns[i].column
			c.HasDefault, c.Default = expr != "", expr
			typ, err := Column(&c, m)
			if err != nil {
				continue
			}
			renderSchema(typ.Schema) // with a default that is none of the type it would panic
			if v, err := typ.Parse([]byte(raw)); err == nil {
				renderValue(typ.Schema, v)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, bench := range []struct {
		name string
		oid  uint32
		mod  int32
		raw  string
	}{
		{"int8", pgtype.Int8OID, -1, "9007199254740993"},
		{"bool", pgtype.BoolOID, -1, "t"},
		{"float8", pgtype.Float8OID, -1, "1234.5678"},
		{"timestamp", pgtype.TimestampOID, -1, "2024-02-29 12:34:56.123456"},
		{"timestamptz", pgtype.TimestamptzOID, -1, "2024-02-29 12:34:56.123456+00"},
		{"date", pgtype.DateOID, -1, "2024-02-29"},
		{"numeric", pgtype.NumericOID, (10<<16 | 2) + 4, "1234.50"},
		{"numeric free", pgtype.NumericOID, -1, "1234.50"},
		{"bytea", pgtype.ByteaOID, -1, `\x` + strings.Repeat("00ff", 128)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			typ, raw := mustColumn(b, cdc.Column{TypeOID: bench.oid, TypeMod: bench.mod}, Modes{}), []byte(bench.raw)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := typ.Parse(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAGeometrySaysItsByteOrder(t *testing.T) {
	typ := mustColumn(t, cdc.Column{TypeOID: 70000, TypeMod: -1, BaseName: "geometry", BaseTypeMod: -1}, Modes{})
	for raw, want := range map[string]string{
		"0020000001FFFFFFFF":   "{wkb: x'0020000001ffffffff', srid: -1}",
		"0101000020E610000000": "{wkb: x'0101000020e610000000', srid: 4326}",
		"01010000":             "null",
		"0101000020E61000":     "null",
		"zz":                   "null",
	} {
		if v, err := typ.Parse([]byte(raw)); err != nil || renderValue(typ.Schema, v) != want {
			t.Errorf("%s gives %s, %v; must be %s", raw, renderValue(typ.Schema, v), err, want)
		}
	}
}
