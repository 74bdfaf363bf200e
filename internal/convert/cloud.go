package convert

import "strings"

// managedClass is the class of Confluent Cloud's managed connector, which runs Debezium's.
const managedClass = "PostgresCdcSourceV2"

// cloudFormats are Confluent Cloud's names for the converters.
var cloudFormats = map[string]string{
	"JSON": jsonConverter, "STRING": stringConverter, "AVRO": "io.confluent.connect.avro.AvroConverter",
	"JSON_SR": "io.confluent.connect.json.JsonSchemaConverter", "PROTOBUF": "io.confluent.connect.protobuf.ProtobufConverter",
}

// cloud gives the options of a managed connector the names that they have in Kafka Connect.
func (c *conversion) cloud() {
	e := c.in.byName[classOption]
	if e == nil || strings.TrimSpace(e.value) != managedClass {
		return
	}
	c.managed = true
	for _, o := range []struct{ which, format string }{{"key", "output.key.format"}, {"value", "output.data.format"}} {
		converter, label, class := o.which+".converter", o.format, "JSON"
		if e := c.in.byName[o.format]; e != nil {
			class = strings.TrimSpace(e.value)
			c.done[o.format] = true // its converter has a line
		}
		if known := cloudFormats[class]; known != "" {
			class = known
		}
		c.in.put(&entry{name: converter, label: label, value: class})
		if class == jsonConverter {
			c.in.put(&entry{name: converter + ".schemas.enable", label: label, value: "false"})
			if e := c.in.byName["json.output.decimal.format"]; e != nil {
				c.done[e.name] = true
				c.in.put(&entry{name: converter + ".decimal.format", label: e.label, value: e.value})
			}
		}
	}
	for _, e := range c.in.list { // Confluent Cloud has RE2's syntax of a named group
		if strings.HasSuffix(e.name, ".route.topic.regex") {
			e.value = strings.ReplaceAll(e.value, "(?P<", "(?<")
			e.parts = split(e.value, false)
		}
	}
}
