package pgvalue

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// readDecimal returns the java.math.BigDecimal of a number without an exponent.
func readDecimal(raw []byte) (*connect.Unscaled, bool) {
	whole, fraction, _ := strings.Cut(string(raw), ".")
	value, ok := new(big.Int).SetString(whole+fraction, 10)
	return &connect.Unscaled{Value: value, Scale: int32(len(fraction))}, ok && raw[0] != '+'
}

func pow10(n int32) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// rescale is Java's BigDecimal.setScale with RoundingMode.HALF_UP. It reports whether nothing was rounded.
func rescale(d *connect.Unscaled, scale int32) (_ *connect.Unscaled, exact bool) {
	if scale >= d.Scale {
		return &connect.Unscaled{Value: d.Value.Mul(d.Value, pow10(scale-d.Scale)), Scale: scale}, true
	}
	unit := pow10(d.Scale - scale)
	value, rest := d.Value.QuoRem(d.Value, unit, new(big.Int))
	if exact = rest.Sign() == 0; rest.CmpAbs(unit.Rsh(unit, 1)) >= 0 {
		value.Add(value, big.NewInt(int64(rest.Sign())))
	}
	return &connect.Unscaled{Value: value, Scale: scale}, exact
}

func plainText(d *connect.Unscaled) any { return d.Plain() }

// toDouble parses the plain text, because strconv loses digits of a number that has an exponent and
// more than 800 digits.
func toDouble(d *connect.Unscaled) any {
	f, _ := double(d.Plain(), 64) // a plain text is always a number
	return f
}

// numericShape is the precision and scale of a numeric as Debezium gets them from its JDBC driver.
// The driver reads no negative scale: numeric(5,-2) has the scale 2046. Without a typmod, each
// value has its own scale.
func numericShape(t pgType) (precision, scale int32, free bool) {
	if t.mod < 0 {
		return 0, 0, true
	}
	mod := t.mod - 4
	precision, scale = mod>>16, mod&0xffff
	return precision, scale, precision == 0 && scale == 0
}

func numeric(t pgType, m Modes) *representation {
	precision, scale, free := numericShape(t)
	decode := func(raw []byte) (*connect.Unscaled, error) {
		d, ok := readDecimal(raw)
		if !ok {
			return nil, noValue(raw, "numeric")
		}
		if !free {
			if d, ok = rescale(d, scale); !ok {
				return nil, errLeftOut // only a default can have more digits than the column
			}
		}
		return d, nil
	}
	var r *representation
	switch {
	case m.Decimal == "string":
		r = plain(connect.String, parseWith(decode, plainText))
	case m.Decimal == "double":
		r = plain(connect.Float64, parseWith(decode, toDouble))
	case free:
		r = named(connect.Struct, "io.debezium.data.VariableScaleDecimal", parseWith(decode, func(d *connect.Unscaled) any {
			digits := d.Value.String() // of a fraction that ends in zeros, Debezium leaves them out
			zeros := min(len(digits)-len(strings.TrimRight(digits, "0")), int(d.Scale))
			if d.Value.Sign() == 0 {
				zeros = int(d.Scale)
			}
			d, _ = rescale(d, d.Scale-int32(zeros))
			return []any{int64(d.Scale), connect.TwosComplement(d.Value)}
		}))
		r.schema.Doc = "Variable scaled decimal"
		r.schema.Fields = []connect.Field{{Name: "scale", Schema: &connect.Schema{Type: connect.Int32}}, {Name: "value", Schema: &connect.Schema{Type: connect.Bytes}}}
	default:
		r = exact(scale, parseWith(decode, func(d *connect.Unscaled) any { return d }))
		r.schema.Params = append(r.schema.Params, connect.Param{Key: "connect.decimal.precision", Value: fmt.Sprint(precision)})
	}
	number := r.parse
	r.parse = func(raw []byte) (any, error) {
		if special, isSpecial := specialNumeric(raw, m); isSpecial {
			if special == nil {
				return nil, errLeftOut
			}
			return special, nil
		}
		return number(raw)
	}
	r.element = func(raw []byte) (any, error) {
		if _, isSpecial := specialNumeric(raw, m); isSpecial {
			return nil, errLeftOut // the JDBC driver cannot read it
		}
		return number(raw)
	}
	return r
}

// specialNumeric is the value for NaN and the infinities, or nil if there is none.
func specialNumeric(raw []byte, m Modes) (v any, isSpecial bool) {
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

func exact(scale int32, parse func([]byte) (any, error)) *representation {
	r := named(connect.Bytes, connect.DecimalName, parse)
	r.schema.Params = []connect.Param{{Key: "scale", Value: fmt.Sprint(scale)}}
	return r
}

// money has two digits after the point, the default of Debezium's money.fraction.digits.
func money(m Modes) *representation {
	decode := func(raw []byte) (*connect.Unscaled, error) {
		d, ok := readDecimal([]byte(amount(string(raw))))
		if !ok {
			return nil, noValue(raw, "amount of money that Debezium can read: a currency sign at the front, commas between thousands, a decimal point")
		}
		return d, nil
	}
	switch m.Decimal {
	case "string":
		return plain(connect.String, parseWith(decode, plainText))
	case "double":
		return plain(connect.Float64, parseWith(decode, toDouble))
	}
	return exact(2, parseWith(decode, func(d *connect.Unscaled) any {
		d, _ = rescale(d, 2)
		return d
	}))
}

// amountText is money with a sign or parentheses, and one character before the number.
var amountText = regexp.MustCompile(`^([(-]?)[^0-9.]?(-?[0-9.,]+)\)?$`)

// amount removes the currency and the commas.
func amount(s string) string {
	m := amountText.FindStringSubmatch(s)
	if m == nil {
		return s
	}
	number := strings.ReplaceAll(m[2], ",", "")
	if m[1] != "" {
		number = "-" + number
	}
	return number
}
