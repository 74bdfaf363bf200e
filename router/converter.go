package router

import (
	"slices"
	"strings"

	"github.com/walpost/walpost/router/internal/connect"
)

// A Converter is one of Kafka Connect's converters with its options. As in Connect, options of
// other converters are ignored.
type Converter struct {
	Name          string     // string | json | bytes | binary; of headers: simple | string | json
	Schemas       bool       // json: schemas.enable
	DecimalFormat string     // json: decimal.format: base64 | numeric; empty is base64
	NullDefault   bool       // json: replace.null.with.default
	Delegate      *Converter // binary: delegate.converter.type, for values that are not bytes; nil for none
}

var (
	recordConverters   = []string{"string", "json", "bytes", "binary"}
	headerConverters   = []string{"simple", "string", "json"}
	delegateConverters = []string{"string", "json", "bytes"}
)

func (c *Converter) validate(option string, names []string) (ps []Problem) {
	if !slices.Contains(names, c.Name) {
		ps = append(ps, badOption(option, "must be one of %s (got %q)", strings.Join(names, ", "), c.Name))
	}
	switch strings.ToLower(c.DecimalFormat) {
	case "", "base64", "numeric":
	default:
		ps = append(ps, badOption(option+".decimal.format", "must be one of base64, numeric (got %q)", c.DecimalFormat))
	}
	if c.Delegate != nil {
		if c.Name != "binary" {
			ps = append(ps, badOption(option+".delegate.converter.type", "belongs to %s: binary (the converter is %s)", option, c.Name))
		}
		ps = append(ps, c.Delegate.validate(option+".delegate.converter.type", delegateConverters)...)
	}
	return ps
}

// schemas reports whether the converter writes schemas for values that are not bytes.
func (c *Converter) schemas() bool {
	return c.Name == "json" && c.Schemas || c.Delegate != nil && c.Delegate.schemas()
}

// text reports whether the converter writes a value that is not bytes as Java's toString does.
func (c *Converter) text() bool {
	return c.Name == "string" || c.Delegate != nil && c.Delegate.text()
}

func (c *Converter) make() connect.TextConverter {
	switch c.Name {
	case "json":
		o := connect.JSONOptions{Schemas: c.Schemas, ReplaceNullWithDefault: c.NullDefault}
		if strings.EqualFold(c.DecimalFormat, "numeric") {
			o.DecimalFormat = connect.Numeric
		}
		return connect.NewJSON(o)
	case "bytes":
		return connect.NewByteArray()
	case "binary":
		if c.Delegate == nil {
			return connect.NewBinary(nil)
		}
		return connect.NewBinary(c.Delegate.make())
	case "simple":
		return connect.NewSimpleHeader()
	}
	return connect.NewString()
}

// converters must be used by one goroutine at a time, because they remember schemas.
type converters struct{ key, value, header connect.TextConverter }

func (c *Config) converters() converters {
	return converters{key: c.Key.make(), value: c.Value.make(), header: c.Header.make()}
}
