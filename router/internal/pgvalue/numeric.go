package pgvalue

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// A decimal is the java.math.BigDecimal of a number that Postgres prints.
type decimal struct {
	digits []byte // with a minus if the number is negative, without the point
	scale  int
}

// readDecimal reads a number without an exponent.
func readDecimal(raw []byte) (decimal, bool) {
	whole, fraction, point := bytes.Cut(raw, []byte("."))
	digits := raw
	if point {
		digits = make([]byte, 0, len(raw)-1)
		digits = append(append(digits, whole...), fraction...)
	}
	unsigned := bytes.TrimPrefix(digits, []byte("-"))
	if len(unsigned) == 0 {
		return decimal{}, false
	}
	for _, c := range unsigned {
		if c < '0' || c > '9' {
			return decimal{}, false
		}
	}
	return decimal{digits, len(fraction)}, true
}

// rescale is Java's BigDecimal.setScale without rounding.
func (d decimal) rescale(scale int) (decimal, bool) {
	if add := scale - d.scale; add > 0 {
		d.digits = append(bytes.Clone(d.digits), bytes.Repeat([]byte("0"), add)...)
	}
	for ; d.scale > scale; d.scale-- {
		last := len(d.digits) - 1
		if last < 0 || d.digits[last] != '0' {
			return d, false
		}
		d.digits = d.digits[:last]
	}
	d.scale = scale
	return d, true
}

func (d decimal) unscaled() *big.Int {
	if len(d.digits) <= 18 {
		if len(d.digits) == 0 {
			return new(big.Int)
		}
		n, _ := strconv.ParseInt(string(d.digits), 10, 64) //nolint:errcheck // digits were looked at
		return big.NewInt(n)
	}
	n, _ := new(big.Int).SetString(string(d.digits), 10)
	return n
}

// plain is Java's BigDecimal.toPlainString.
func (d decimal) plain() string {
	digits, sign := string(d.digits), ""
	if rest, ok := strings.CutPrefix(digits, "-"); ok {
		digits, sign = rest, "-"
	}
	if missing := d.scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	whole := strings.TrimLeft(digits[:len(digits)-d.scale], "0")
	if whole == "" {
		whole = "0"
	}
	if strings.Trim(digits, "0") == "" {
		sign = ""
	}
	if d.scale == 0 {
		return sign + whole
	}
	return sign + whole + "." + digits[len(digits)-d.scale:]
}

func (d decimal) text() any { return d.plain() }

// double parses the plain text, because strconv loses digits of a number that has an exponent and
// more than 800 digits.
func (d decimal) double() any {
	f, _ := double(d.plain(), 64) // a plain text is always a number
	return f
}

// numericShape is the precision and scale of a numeric as Debezium gets them from its JDBC driver.
// The driver reads no negative scale: numeric(5,-2) has the scale 2046. Without a typmod, each
// value has its own scale.
func numericShape(t pgType) (precision, scale int, free bool) {
	if t.mod < 0 {
		return 0, 0, true
	}
	mod := t.mod - 4
	precision, scale = int(mod>>16), int(mod&0xffff)
	return precision, scale, precision == 0 && scale == 0
}

func numeric(t pgType, m Modes) *representation {
	precision, scale, free := numericShape(t)
	decode := func(raw []byte) (decimal, error) {
		d, ok := readDecimal(raw)
		if !ok {
			return d, noValue(raw, "numeric")
		}
		if !free {
			if d, ok = d.rescale(scale); !ok {
				return d, errLeftOut // only a default can have more digits than the column
			}
		}
		return d, nil
	}
	var r *representation
	switch {
	case m.Decimal == "string":
		r = plain(connect.String, parseWith(decode, decimal.text))
	case m.Decimal == "double":
		r = plain(connect.Float64, parseWith(decode, decimal.double))
	case free:
		r = named(connect.Struct, "io.debezium.data.VariableScaleDecimal", parseWith(decode, func(d decimal) any {
			for d.scale > 0 && d.digits[len(d.digits)-1] == '0' {
				d.digits, d.scale = d.digits[:len(d.digits)-1], d.scale-1
			}
			return []any{int64(d.scale), connect.TwosComplement(d.unscaled())}
		}))
		r.schema.Doc = "Variable scaled decimal"
		r.schema.Fields = []connect.Field{{Name: "scale", Schema: &connect.Schema{Type: connect.Int32}}, {Name: "value", Schema: &connect.Schema{Type: connect.Bytes}}}
	default:
		r = exact(scale, parseWith(decode, func(d decimal) any {
			return &connect.Unscaled{Value: d.unscaled(), Scale: int32(d.scale)}
		}))
		r.schema.Params = append(r.schema.Params, connect.Param{Key: "connect.decimal.precision", Value: strconv.Itoa(precision)})
	}
	number := r.parse
	r.parse = func(raw []byte) (any, error) {
		if special, is := specialNumeric(raw, m); is {
			if special == nil {
				return nil, errLeftOut
			}
			return special, nil
		}
		return number(raw)
	}
	r.element = func(raw []byte) (any, error) {
		if _, is := specialNumeric(raw, m); is {
			return nil, errLeftOut // the JDBC driver cannot read it
		}
		return number(raw)
	}
	return r
}

// specialNumeric is the value for NaN and the infinities, or nil if there is none.
func specialNumeric(raw []byte, m Modes) (v any, is bool) {
	var name string
	switch string(raw) {
	case "NaN":
		name = "NAN"
	case "Infinity":
		name = "POSITIVE_INFINITY"
	case "-Infinity":
		name = "NEGATIVE_INFINITY"
	default:
		return nil, false
	}
	switch m.Decimal {
	case "string":
		return name, true
	case "double":
		f, _ := double(string(raw), 64)
		return f, true
	}
	return nil, true
}

func exact(scale int, parse func([]byte) (any, error)) *representation {
	r := named(connect.Bytes, connect.DecimalName, parse)
	r.schema.Params = []connect.Param{{Key: "scale", Value: strconv.Itoa(scale)}}
	return r
}

// money has two digits after the point, the default of Debezium's money.fraction.digits.
func money(m Modes) *representation {
	decode := func(raw []byte) (decimal, error) {
		d, ok := readDecimal([]byte(amount(string(raw))))
		if !ok {
			return decimal{}, noValue(raw, "amount of money that Debezium can read: a currency sign at the front, commas between thousands, a decimal point")
		}
		return d, nil
	}
	switch m.Decimal {
	case "string":
		return plain(connect.String, parseWith(decode, decimal.text))
	case "double":
		return plain(connect.Float64, parseWith(decode, decimal.double))
	}
	return exact(2, func(raw []byte) (any, error) {
		d, err := decode(raw)
		if err != nil {
			return nil, err
		}
		d, ok := halfUp(d, 2)
		if !ok {
			return nil, noValue(raw, "amount of money")
		}
		return &connect.Unscaled{Value: d.unscaled(), Scale: 2}, nil
	})
}

// halfUp is Java's BigDecimal.setScale with RoundingMode.HALF_UP.
func halfUp(d decimal, scale int) (decimal, bool) {
	if d.scale <= scale {
		return d.rescale(scale)
	}
	cut := len(d.digits) - (d.scale - scale)
	if cut < 0 {
		return d, false
	}
	up := d.digits[cut] >= '5'
	d.digits, d.scale = d.digits[:cut], scale
	if n := d.unscaled(); up {
		one := big.NewInt(1)
		if len(d.digits) > 0 && d.digits[0] == '-' {
			one.Neg(one)
		}
		d.digits = n.Add(n, one).Append(nil, 10)
	}
	return d, true
}

// amount removes the currency and the commas.
func amount(s string) string {
	if s == "" {
		return ""
	}
	negative := s[0] == '(' || s[0] == '-'
	if s[0] == '-' {
		s = s[1:]
	} else if s[0] == '(' && s[len(s)-1] == ')' && len(s) > 1 {
		s = s[1 : len(s)-1]
	}
	for i, r := range s { // remove the first character unless it belongs to the number
		if i > 0 {
			s = s[i:]
			break
		}
		if r >= '0' && r <= '9' || r == '.' {
			break
		}
	}
	s = strings.ReplaceAll(s, ",", "")
	if negative {
		s = "-" + s
	}
	return s
}
