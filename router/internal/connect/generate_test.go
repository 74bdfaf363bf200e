package connect

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// A generator makes schemas, values and documents that have little in common but the trouble they can make.
type generator struct {
	*rand.Rand
	words []string // what names begin with
}

func newGenerator(seed uint64) generator {
	return generator{rand.New(rand.NewPCG(seed, 7)), []string{"a", "b", "c", "é", "my-field", "io.debezium.data.Uuid", `q"\`, "😀", "x y"}}
}

func (g generator) one(in int) bool { return g.IntN(in) == 0 }

func pick[T any](g generator, of []T) T { return of[g.IntN(len(of))] }

var pieces = []string{
	"a", "b", "order", " ", "é", "ß", "日本", "😀", "\U0010FFFF", "\u0000", "\u0001", "\u001f", "\b", "\f", "\n", "\r", "\t", "\v", "\u007f", "\u0080",
	"\u2028", "\u2029", "\uFEFF", "\uFFFD", "\uE000", "\uD7FF", "\uFFFF", `"`, `\`, "/", "'", "<", ">", "&", "=", "{", "}", "[", "]", ",", ":", "null", "\u00a0", "0", "$",
}

func (g generator) text() string {
	var b strings.Builder
	for range g.IntN(6) {
		b.WriteString(pick(g, pieces))
	}
	if g.one(40) { // longer than Jackson's buffers
		return strings.Repeat(b.String()+"x", 1+g.IntN(3000))
	}
	return b.String()
}

func (g generator) word() string {
	return pick(g, g.words) + strconv.Itoa(g.IntN(30))
}

// javaNaN has the bits of Java's NaN, as values from Postgres do.
var javaNaN = math.Float64frombits(0x7FF8000000000000)

func (g generator) double() float64 {
	switch g.IntN(8) {
	case 0:
		return pick(g, []float64{0, math.Copysign(0, -1), javaNaN, math.Inf(1), math.Inf(-1), math.MaxFloat64, 5e-324, 1e7, 1e-3, 9999999.999999999, 0.001, 0.00099999, 1e21, 2e-323, 1e23, 2e-3, 9007199254740993})
	case 1:
		return float64(g.IntN(2000) - 1000)
	case 2:
		return float64(g.IntN(1_000_000)) / 100
	case 3:
		f, _ := strconv.ParseFloat(strconv.Itoa(g.IntN(200))+"e"+strconv.Itoa(g.IntN(640)-330), 64) //nolint:errcheck // it is one
		return f
	case 4:
		return math.Float64frombits(g.Uint64() >> (12 + g.IntN(52))) // subnormal
	case 5:
		return math.Ldexp(1, g.IntN(2098)-1074)
	}
	f := math.Float64frombits(g.Uint64())
	if math.IsNaN(f) {
		return 1
	}
	return f
}

func (g generator) float() float32 {
	switch g.IntN(6) {
	case 0:
		return pick(g, []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), math.MaxFloat32, 1e-45, 3e-45, 1e7, 1e-3, 1.1, 2e-3, 3.3e33, 8.5e9})
	case 1:
		return float32(g.IntN(100_000)) / 100
	case 2:
		return math.Float32frombits(g.Uint32() >> (9 + g.IntN(23)))
	case 3:
		return float32(math.Ldexp(1, g.IntN(277)-149))
	}
	f := math.Float32frombits(g.Uint32())
	if f != f {
		return 1
	}
	return f
}

func (g generator) bigInt() *big.Int {
	v := new(big.Int)
	switch g.IntN(4) {
	case 0:
		v.SetInt64(int64(g.IntN(600) - 300))
	case 1: // around the powers of two
		v.Lsh(big.NewInt(1), uint(g.IntN(130)))
		v.Add(v, big.NewInt(int64(g.IntN(3)-1)))
	case 2: // trailing zeros
		v.Exp(big.NewInt(10), big.NewInt(int64(g.IntN(30))), nil)
	default:
		for range 1 + g.IntN(4) {
			v.Lsh(v, 64).Add(v, new(big.Int).SetUint64(g.Uint64()))
		}
		v.Rsh(v, uint(g.IntN(64)))
	}
	if g.one(2) {
		v.Neg(v)
	}
	return v
}

func (g generator) schema(depth int) *Schema {
	s := &Schema{Type: Type(1 + g.IntN(int(Struct)))}
	if depth == 0 && s.Type > Bytes {
		s.Type = String
	}
	switch {
	case s.Type == Bytes && g.one(2):
		s.Name, s.Version = DecimalName, 1
		s.Params = []Param{{"scale", strconv.Itoa(g.IntN(12) - 2)}}
		if g.one(2) {
			s.Params = append(s.Params, Param{"connect.decimal.precision", "20"})
		}
	case s.Type == Bytes && g.one(4):
		s.Name, s.Version, s.Params = "io.debezium.data.Bits", 1, []Param{{"length", "9"}}
	case s.Type == Int32 && g.one(2):
		s.Name, s.Version = pick(g, []string{DateName, TimeName}), 1
	case s.Type == Int64 && g.one(2):
		s.Name, s.Version = TimestampName, 1
	case s.Type == Struct && g.one(5):
		s.Name, s.Version = "io.debezium.data.VariableScaleDecimal", 1
		s.Fields = []Field{{"scale", &Schema{Type: Int32}}, {"value", &Schema{Type: Bytes}}}
	case g.one(3):
		s.Name = g.word()
		if g.one(2) {
			s.Version = int32(1 + g.IntN(3))
		}
		if g.one(3) {
			s.Params = []Param{{"allowed", g.text()}, {g.word(), "x"}}
		}
	}
	if g.one(6) {
		if s.Doc = g.text(); strings.TrimSpace(s.Doc) == "" {
			s.Doc = "doc"
		}
	}
	switch {
	case s.Type == Array:
		s.Elem = g.schema(depth - 1)
	case s.Type == Map:
		if s.Key = g.schema(0); g.one(2) {
			s.Key = &Schema{Type: String}
		}
		if isByteArray(s.Key, nil) || s.Key.Name == TimeName {
			s.Key = &Schema{Type: Int32}
		}
		s.Elem = g.schema(depth - 1)
	case s.Type == Struct && s.Fields == nil:
		for range g.IntN(4) {
			if name := g.word(); !slices.ContainsFunc(s.Fields, func(f Field) bool { return f.Name == name }) {
				s.Fields = append(s.Fields, Field{name, g.schema(depth - 1)})
			}
		}
	}
	s.Optional = g.one(2)
	if g.one(4) && s.Type != Struct && s.Type != Map && s.Name != DecimalName {
		s.Default = g.value(s)
		s.HasDefault = s.Default != nil
	}
	return s
}

// value makes a value of s, null only where Connect's data model has it.
func (g generator) value(s *Schema) any {
	if s.Optional && g.one(5) {
		return nil
	}
	switch s.Name {
	case DecimalName:
		scale, err := strconv.Atoi(s.Params[0].Value)
		if err != nil {
			panic(err)
		}
		if g.one(20) {
			scale++
		}
		return &Unscaled{Value: g.bigInt(), Scale: int32(scale)}
	case DateName:
		return int64(g.IntN(4_000_000) - 2_400_000) // 4600 BC to 6300
	case TimeName:
		return int64(g.IntN(millisOfDay + 1))
	case TimestampName:
		if g.one(5) {
			return int64(g.IntN(60_000)-30_000) * millisOfDay
		}
		return g.Int64N(1<<48) - 1<<47
	}
	switch s.Type { //nolint:exhaustive // a Struct comes after it
	case Int8:
		return int64(int8(g.Uint32()))
	case Int16:
		return int64(int16(g.Uint32()))
	case Int32:
		return int64(int32(g.Uint32()) >> g.IntN(32))
	case Int64:
		return int64(g.Uint64()) >> g.IntN(64)
	case Float32:
		return g.float()
	case Float64:
		return g.double()
	case Boolean:
		return g.one(2)
	case String:
		return g.text()
	case Bytes:
		b := make([]byte, g.IntN(9))
		for i := range b {
			b[i] = byte(g.Uint32())
		}
		return b
	case Array:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.value(s.Elem))
		}
		return list
	case Map:
		entries, seen := []Entry{}, map[string]bool{}
		for range g.IntN(4) {
			e := Entry{g.value(s.Key), g.value(s.Elem)}
			// Java has only one entry for keys that are equal, and a key that is null may have a name like one that is not.
			key := fmt.Sprint(valueNotation(s.Key, e.Key))
			if seen[key] || e.Key == nil || e.Key == "null" {
				continue
			}
			seen[key] = true
			entries = append(entries, e)
		}
		return entries
	}
	values := []any{}
	for _, f := range s.Fields {
		values = append(values, g.value(f.Schema))
	}
	return values
}

// document makes the text of a JSON document, or of what is nearly one.
func (g generator) document(depth int) string {
	d := g.node(depth, pick(g, []string{"{", "{", "{", "["}))
	if g.one(25) && len(d) > 0 {
		at := g.IntN(len(d))
		for at < len(d) && d[at]&0xC0 == 0x80 {
			at++
		}
		d = d[:at] + pick(g, []string{"", ",", "}", "]", `"`, "0", "-", " ", "\n", "\x01", "a", `\`, "e1", ".5"}) + d[at:]
	}
	return pick(g, []string{"", "", "", "", "", "", "", "", " "}) + d + pick(g, []string{"", "", "", " ", "x", "{}", "\n"})
}

var (
	jsonNames = []string{"a", "b", "c", "a-b", "a_b", "1a", "é", "😀", "a.b", "o", "list", "", "_", "payload", "\\u0061", "\\ud83d", "\t", "x y", "名"}
	jsonTexts = []string{`""`, `"x"`, `"é😀"`, `"\n\t\b\f\r\/\"\\"`, `"\u00e9"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\ud83d\ud83d\ude00"`, `"\u0000"`, `"null"`, "\"\u2028\"", `"\u20AC"`, `"\ud83dx"`, "\"\x7f\""}
	jsonBad   = []string{"nul", "tru", "01", "1.", ".5", "+1", "-", "'x'", "NaN", "Infinity", `"\x"`, `"\u12"`, "1e", "1e+", "--1", "00", "-01", "\"\n\"", "1 2", "{,}", "[,]", "[1,]", `{"a":1,}`, `{"a"}`, `{a:1}`, "/**/1", "\u00a01", "TRUE"}
)

func (g generator) node(depth int, kind string) string {
	space := func() string { return pick(g, []string{"", "", "", " ", "\n", "\t ", "\r\n"}) }
	if kind == "" {
		kind = pick(g, []string{"{", "{", "[", "[", "n", "i", "i", "d", "s", "s", "b", "l"})
	}
	if depth == 0 && (kind == "{" || kind == "[") {
		kind = "e"
	}
	switch kind {
	case "{":
		var parts []string
		for range g.IntN(5) {
			parts = append(parts, space()+`"`+strings.ReplaceAll(pick(g, jsonNames[:4+g.IntN(len(jsonNames)-3)]), "\t", `\t`)+`"`+space()+":"+space()+g.node(depth-1, "")+space())
		}
		return "{" + space() + strings.Join(parts, ",") + "}"
	case "[":
		var parts []string
		of := pick(g, []string{"{", "{", "{", "[", "i", "d", "s", "b", "l", ""})
		for range g.IntN(5) {
			k := of
			if g.one(8) {
				k = "n"
			} else if g.one(30) {
				k = ""
			}
			parts = append(parts, space()+g.node(depth-1, k)+space())
		}
		return "[" + space() + strings.Join(parts, ",") + "]"
	case "e":
		return pick(g, []string{"{}", "[]", "[ ]", "{ }", "[[]]", "[{}]", "[null]"})
	case "n":
		return "null"
	case "i":
		return pick(g, []string{strconv.Itoa(g.IntN(100)), strconv.Itoa(-g.IntN(100)), "2147483647", "-2147483648", "-0", "0"})
	case "l":
		if g.one(8) {
			return pick(g, []string{"9223372036854775808", "-9223372036854775809", "12345678901234567890123"})
		}
		return pick(g, []string{"2147483648", "-2147483649", "9223372036854775807", "-9223372036854775808", "3000000000", "9999999999"})
	case "d":
		return pick(g, []string{"1.5", "-0.0", "1e3", "1E400", "-1e400", "1e-400", "0.1", "1.10", "123456789.123456789", "1e23", "2e-3", "4.9e-324", "0e0", "1E+2", "100.0", strconv.FormatFloat(g.Float64(), 'g', -1, 64)})
	case "b":
		return pick(g, []string{"true", "false"})
	}
	if g.one(60) {
		return pick(g, jsonBad)
	}
	return pick(g, jsonTexts)
}
