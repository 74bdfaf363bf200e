package convert

import (
	"strings"

	"github.com/walpost/walpost/internal/command/convert/input"
)

// managedClass is the class of Confluent Cloud's managed connector, which runs Debezium's.
const managedClass = "PostgresCdcSourceV2"

// cloudFormats are Confluent Cloud's names for the converters.
var cloudFormats = map[string]string{
	"JSON": jsonConverter, "STRING": stringConverter, "AVRO": confluentAvro,
	"JSON_SR": confluentJSON, "PROTOBUF": confluentProtobuf,
}

// cloud gives the options of a managed connector the names that they have in Kafka Connect.
func cloud(r *report) {
	e := r.in.ByName[input.ClassOption]
	if e == nil || strings.TrimSpace(e.Value) != managedClass {
		return
	}
	r.managed = true
	for _, o := range []struct{ which, format string }{{"key", "output.key.format"}, {"value", "output.data.format"}} {
		converter, label, class := o.which+".converter", o.format, "JSON"
		if e := r.in.ByName[o.format]; e != nil {
			class = strings.TrimSpace(e.Value)
			r.done[o.format] = true // its converter has a line
		}
		if known := cloudFormats[class]; known != "" {
			class = known
		}
		r.in.Put(&input.Entry{Name: converter, Label: label, Value: class})
		if class == jsonConverter {
			r.in.Put(&input.Entry{Name: converter + ".schemas.enable", Label: label, Value: "false"})
			if e := r.in.ByName["json.output.decimal.format"]; e != nil {
				r.done[e.Name] = true
				r.in.Put(&input.Entry{Name: converter + ".decimal.format", Label: e.Label, Value: e.Value})
			}
		}
	}
	for _, e := range r.in.List { // Confluent Cloud has RE2's syntax of a named group
		if strings.HasSuffix(e.Name, ".route.topic.regex") {
			e.Value = strings.ReplaceAll(e.Value, "(?P<", "(?<")
			e.Parts = input.Split(e.Value, false)
		}
	}
}
