package connect

import (
	"flag"
	"testing"
)

var jsonSchemaOracle = registryConverter{
	file:  "jsonschema.txt",
	class: "io.confluent.connect.json.JsonSchemaConverter", provider: "io.confluent.kafka.schemaregistry.json.JsonSchemaProvider",
	classPath: flag.String("oracle.jsonschema", "", "with -oracle: the class path of Confluent's JsonSchemaConverter"),
	names:     []string{"json schema", "numeric", "closed", "subject"},
	options:   []string{"", "decimal.format=NUMERIC", "object.additional.properties=false", recordNames},
	make: func(o RegistryOptions, option string) Converter {
		return NewJSONSchema(JSONSchemaOptions{RegistryOptions: o, NumericDecimals: option == "decimal.format=NUMERIC", Closed: option == "object.additional.properties=false"})
	},
	corners: cornerJSONSchemas, random: newGenerator, unknown: answerOf(nil, false, errNoDefault),
}

func TestGoldensOfJSONSchema(t *testing.T) { jsonSchemaOracle.goldens(t) }
func TestJSONSchemaAtRandom(t *testing.T)  { jsonSchemaOracle.atRandom(t) }
