package connect

import (
	enc "encoding/binary"
	"flag"
	"path/filepath"
	"strings"
	"testing"
)

// Confluent's JsonSchemaConverter is in no repository of Maven that walpost uses. testdata/jsonschema.txt was recorded with the one of
// github.com/confluentinc/schema-registry at 794611bd86d (8.5.0): the sources of json-schema-converter, json-schema-provider,
// json-schema-serializer, schema-converter, schema-serializer, schema-types, client, avro-types, json-serializer and
// kafka-connect-schema-backup-* are compiled by javac, with -sourcepath for these modules and with their dependencies (everit-json-schema
// 1.14.6, json-sKema 0.29.0, org.json 20250107) as the class path. No part of it is in this repository. Then
//
//	go test ./router/internal/connect -run JSONSchema -update -oracle <a java of 19 or newer> -oracle.jsonschema <class path>
//
// writes the file anew, or compares at random without -update. The class path has the classes, the resources, and the dependencies.
var oracleJSONSchema = flag.String("oracle.jsonschema", "", "with -oracle: the class path of Confluent's JsonSchemaConverter")

var jsonSchemaConverters = []string{"json schema", "numeric", "closed", "subject"}

// ourJSONSchemas answers as JSONSchemaOracle.java does.
func ourJSONSchemas(s *Schema, v any) []answer {
	var as []answer
	for _, name := range jsonSchemaConverters {
		ids := &schemaIDs{}
		o := JSONSchemaOptions{RegistryOptions: RegistryOptions{Registry: ids, Subjects: "topic"}, NumericDecimals: name == "numeric", Closed: name == "closed"}
		if name == "subject" {
			o.Subjects = "record"
		}
		b, null, err := NewJSONSchema(o).Append(nil, "topic", s, v)
		switch {
		case err != nil || null:
		case name == "subject":
			b = []byte(ids.subjects[0])
		default:
			b = append([]byte(ids.texts[enc.BigEndian.Uint32(b[1:])]+" "), b[5:]...)
		}
		as = append(as, answerOf(b, null, err))
	}
	return as
}

// compareJSONSchemas does not compare messages, which are those of a NullPointerException or of a library.
func compareJSONSchemas(t *testing.T, question string, java, us []answer) (wrong bool) {
	t.Helper()
	for i := range java {
		if java[i] != us[i] && !(java[i].failed() && us[i].failed()) {
			t.Errorf("%s\n%s\n  Java: %.3000s\n  we:   %.3000s", question, jsonSchemaConverters[i], java[i], us[i])
			wrong = true
		}
	}
	return wrong
}

// TestGoldensOfJSONSchema holds the schemas, the values and the names of subjects to what the real converter gave.
func TestGoldensOfJSONSchema(t *testing.T) {
	file := filepath.Join("testdata", "jsonschema.txt")
	if *update && *oracleJSONSchema != "" {
		var questions []string
		for _, q := range append(append([]string(nil), cornerValues...), cornerJSONSchemas...) {
			questions = append(questions, "value\t"+q)
		}
		g := newGenerator(1)
		for len(questions) < 250 {
			s := g.schema(2)
			if q := valueQuestion(s, g.value(s)); len(q) < 600 {
				questions = append(questions, q)
			}
		}
		writeGolden(t, file, "What Confluent's JsonSchemaConverter makes of values: see jsonschema_test.go.", questions, askJava(t, *oracle, *oracleJSONSchema, questions), jsonSchemaConverters)
	}
	n := readGolden(t, file, jsonSchemaConverters, func(question string, answers []answer) {
		fields := strings.Split(question, "\t")
		s := parseSchema(t, []byte(fields[1]))
		compareJSONSchemas(t, question, answers, ourJSONSchemas(s, parseValue(t, s, []byte(fields[2]))))
	})
	if n < 250 {
		t.Errorf("only %d cases", n)
	}
}

// TestJSONSchemaAtRandom asks the real converter, where -oracle.jsonschema is given.
func TestJSONSchemaAtRandom(t *testing.T) {
	if *oracleJSONSchema == "" || *update {
		t.Skip("no -oracle.jsonschema; testdata/jsonschema.txt holds what it said")
	}
	questions, ours := atRandom(t, ourJSONSchemas)
	wrong, failed := 0, 0
	unknown := answerOf(nil, false, errNoDefault)
	for i, java := range askJava(t, *oracle, *oracleJSONSchema, questions) {
		if java[0].failed() {
			failed++
		}
		if ours[i][0] == unknown {
			continue
		}
		if compareJSONSchemas(t, questions[i], java, ours[i]) {
			if wrong++; wrong > 10 {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d values, of which the converter refuses %d", len(questions), failed)
}
