package router

import (
	"strings"

	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/router/internal/connect"
)

// A Converter is one of Kafka Connect's converters with its options. Its keys begin with the key of
// the converter.
type Converter struct {
	Name string `suffix:""` // string | json | bytes | binary; of headers: simple | string | json
	// Whether `json` writes the schema with each value.
	Schemas bool `suffix:".schemas.enable"`
	// How `json` and `json_schema` write decimals.
	DecimalFormat string `suffix:".decimal.format" words:"|base64|numeric" fold:"true"`
	// Whether `json` writes a field's default instead of a null.
	NullDefault bool `suffix:".replace.null.with.default"`
}

// A DelegatingConverter is a Converter that may be binary, which leaves values that are not bytes
// to another converter. The Delegate has no Name if there is none.
type DelegatingConverter struct {
	Converter `suffix:""`
	// With `binary`: the converter of values that aren't bytes.
	Delegate Converter `suffix:".delegate.converter.type" words:"|string|json|bytes"`
	// With a registry: register missing schemas, instead of waiting for them.
	AutoRegister bool `suffix:".auto.register.schemas"`
	// Without `auto.register.schemas`: use the subject's latest version, which must encode values
	// identically or differ only in annotations (`json_schema`) or comments (`protobuf`).
	UseLatest bool `suffix:".use.latest.version"`
	// With a registry: what a subject is named after.
	Subjects string `suffix:".subject.name.strategy" words:"topic|record|topic_record"`
	// With `json_schema`: whether schemas allow more fields.
	MoreProperties bool `suffix:".object.additional.properties"`
	// With `protobuf`: make nullable fields `optional`, so that a zero isn't a null.
	OptionalFields bool `suffix:".optional.for.nullables"`
	// With `protobuf`: write nullable fields as wrappers, such as `google.protobuf.StringValue`.
	Wrappers bool `suffix:".wrapper.for.nullables"`
	// With `protobuf`: adjust names that it doesn't allow.
	ScrubNames bool `suffix:".scrub.invalid.names"`
}

// A Registry gives the ids of schemas. Its error is what Route returns, in place of a *RowError.
type Registry = connect.Registry

// A Validator checks payloads. Its error is what Route returns, in place of a *RowError.
type Validator interface {
	// Validate checks a JSON document against the latest schema of a subject. If the document does not fit, why says it, and path
	// is the JSON pointer to what does not fit.
	Validate(subject string, document []byte) (path, why string, err error)
}

// awaited is a Registry that keeps its error for Route, because a converter's error is about the row.
type awaited struct {
	Registry
	err error // of the Validator, too
}

func (a *awaited) SchemaID(subject, schema, format string, register, latest bool) (uint32, error) {
	id, err := a.Registry.SchemaID(subject, schema, format, register, latest)
	if err != nil {
		a.err = err
	}
	return id, err
}

// validate adds what is wrong. Options of a converter that was not chosen would do nothing.
func (c *Converter) validate(ps *conf.Problems, option string) {
	if c.Name != "json" && (c.Schemas || !c.NullDefault || c.numeric() && c.Name != "json_schema") {
		ps.Add(option, conf.MustBe, "json if schemas.enable, decimal.format or replace.null.with.default is set", c.Name)
	}
}

func (c *DelegatingConverter) validate(ps *conf.Problems, option string) {
	c.Converter.validate(ps, option)
	delegate := option + ".delegate.converter.type"
	if c.Delegate.Name != "" && c.Name != "binary" {
		ps.Add(delegate, conf.Contradicts, "a converter other than binary", c.Delegate.Name)
	}
	c.Delegate.validate(ps, delegate)
	if !c.registered() && (!c.AutoRegister || c.UseLatest || c.Subjects != "topic") {
		ps.Add(option, conf.MustBe, "avro, json_schema or protobuf if auto.register.schemas, use.latest.version or subject.name.strategy is set", c.Name)
	}
	if c.Name != "json_schema" && !c.MoreProperties {
		ps.Add(option, conf.MustBe, "json_schema if object.additional.properties is false", c.Name)
	}
	if c.Name != "protobuf" && (c.OptionalFields || c.Wrappers || c.ScrubNames) {
		ps.Add(option, conf.MustBe, "protobuf if optional.for.nullables, wrapper.for.nullables or scrub.invalid.names is set", c.Name)
	}
	if c.AutoRegister && c.UseLatest {
		ps.Add(option+".use.latest.version", conf.Contradicts, "auto.register.schemas, which registers the schema of each record", nil)
	}
}

// schemas reports whether the converter writes schemas.
func (c *Converter) schemas() bool { return c.Name == "json" && c.Schemas }

// schemas reports whether the converter writes schemas for values that are not bytes.
func (c *DelegatingConverter) schemas() bool {
	return c.registered() || c.Converter.schemas() || c.Delegate.schemas()
}

// registered reports whether the converter needs a schema registry.
func (c *DelegatingConverter) registered() bool {
	return c.Name == "avro" || c.Name == "json_schema" || c.Name == "protobuf"
}

// numeric reports whether the converter writes decimals as numbers.
func (c *Converter) numeric() bool { return strings.EqualFold(c.DecimalFormat, "numeric") }

// text reports whether the converter writes a value that is not bytes as Java's toString does.
func (c *DelegatingConverter) text() bool { return c.Name == "string" || c.Delegate.Name == "string" }

func (c *DelegatingConverter) make(key bool, registry connect.Registry) connect.Converter {
	o := connect.RegistryOptions{Registry: registry, Key: key, Subjects: c.Subjects, Register: c.AutoRegister, Latest: c.UseLatest}
	switch c.Name {
	case "avro":
		return connect.NewAvro(o)
	case "json_schema":
		return connect.NewJSONSchema(connect.JSONSchemaOptions{RegistryOptions: o, NumericDecimals: c.numeric(), Closed: !c.MoreProperties})
	case "protobuf":
		return connect.NewProtobuf(connect.ProtobufOptions{RegistryOptions: o, Optional: c.OptionalFields, Wrappers: c.Wrappers, Scrub: c.ScrubNames})
	}
	if c.Name == "binary" && c.Delegate.Name != "" {
		return connect.NewBinary(c.Delegate.make())
	}
	return c.Converter.make()
}

func (c *Converter) make() connect.Converter {
	switch c.Name {
	case "json":
		return connect.NewJSON(connect.JSONOptions{
			Schemas: c.Schemas, NumericDecimals: c.numeric(), ReplaceNullWithDefault: c.NullDefault,
		})
	case "bytes":
		return connect.NewByteArray()
	case "binary":
		return connect.NewBinary(nil)
	case "simple":
		return connect.NewSimpleHeader()
	}
	return connect.NewString()
}

// converters must be used by one goroutine at a time, because they remember schemas.
type converters struct{ key, value, header connect.Converter }

func (c *Config) converters(registry connect.Registry) converters {
	return converters{key: c.Key.make(true, registry), value: c.Value.make(false, registry), header: c.Header.make()}
}

// Registered reports whether a converter needs a schema registry.
func (r *Records) Registered() bool { return r.Key.registered() || r.Value.registered() }

// Validates reports whether payloads are checked.
func (r *Records) Validates() bool { return r.PayloadCheck == "json_schema" }
