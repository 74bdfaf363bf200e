package connect

import (
	enc "encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A registryConverter is one of Confluent's converters, which no repository of Maven that walpost uses has. Its answers were recorded
// with the one of github.com/confluentinc/schema-registry at 794611bd86d (8.5.0). No part of it is in this repository. Its sources are
// compiled by javac, with -sourcepath for its modules and those that they need: (json-schema|protobuf)-(converter|provider|serializer),
// protobuf-types, schema-converter, schema-serializer, schema-types, client, avro-types, json-serializer and
// kafka-connect-schema-backup-*. The class path has their dependencies: everit-json-schema 1.14.6, json-sKema 0.29.0 and
// org.json 20250107, or protobuf-java 4.34.0, wire-schema 6.4.5 and proto-google-common-protos 2.53.0; and of Kafka's and Bouncy Castle's
// classes that a released Kafka lacks, stubs that call the old ones. Then
//
//	go test ./router/internal/connect -run 'JSONSchema|Protobuf' -update -oracle <a java of 19 or newer> -oracle.jsonschema <class path> -oracle.protobuf <class path>
//
// writes the files anew, or compares at random without -update. The class path has the classes, the resources, and the dependencies.
type registryConverter struct {
	file            string
	class, provider string
	common          string // the file with a schema that many answers have
	classPath       *string
	names, options  []string // what the file calls the options, and key=value, or "" for none; the last one names subjects
	make            func(o RegistryOptions, option string) Converter

	corners []string
	random  func(seed uint64) generator
	unknown answer // to what Debezium does not have
}

// ours answers as RegistryOracle.java does.
func (c *registryConverter) ours(s *Schema, v any) []answer {
	var as []answer
	for i, option := range c.options {
		ids := &schemaIDs{}
		o, names := RegistryOptions{Registry: ids, Subjects: "topic"}, i == len(c.options)-1
		if names {
			o.Subjects = "record"
		}
		b, null, err := c.make(o, option).Append(nil, "topic", s, v)
		switch {
		case err != nil || null:
		case names:
			b = []byte(ids.subjects[0])
		default:
			b = append([]byte(ids.texts[enc.BigEndian.Uint32(b[1:])-1]+" "), b[5:]...)
		}
		as = append(as, answerOf(b, null, err))
	}
	return c.shorten(as)
}

// shorten replaces the schema of all values that are no structs.
func (c *registryConverter) shorten(as []answer) []answer {
	if c.common == "" {
		return as
	}
	long, err := os.ReadFile(filepath.Join("testdata", c.common))
	if err != nil {
		panic(err)
	}
	quoted := strings.Trim(strconv.QuoteToGraphic(string(long)), `"`)
	for i := range as {
		as[i] = answer(strings.Replace(string(as[i]), quoted, c.common, 1))
	}
	return as
}

func (c *registryConverter) ask(t *testing.T, questions []string) [][]answer {
	t.Helper()
	all := askJava(t, *oracle, c, questions)
	for i := range all {
		all[i] = c.shorten(all[i])
	}
	return all
}

// compare does not compare messages, which are those of a NullPointerException or of a library.
func (c *registryConverter) compare(t *testing.T, question string, java, us []answer) (wrong bool) {
	t.Helper()
	for i := range java {
		if java[i] != us[i] && !(java[i].failed() && us[i].failed()) {
			t.Errorf("%s\n%s\n  Java: %.3000s\n  we:   %.3000s", question, c.names[i], java[i], us[i])
			wrong = true
		}
	}
	return wrong
}

// goldens holds the schemas, the values and the names of subjects to what the real converter gave.
func (c *registryConverter) goldens(t *testing.T) {
	file := filepath.Join("testdata", c.file)
	if *update && *c.classPath != "" {
		var questions []string
		for _, q := range append(append([]string(nil), cornerValues...), c.corners...) {
			questions = append(questions, "value\t"+q)
		}
		g := c.random(1)
		for len(questions) < 250 {
			s := g.schema(2)
			if q := valueQuestion(s, g.value(s)); len(q) < 600 {
				questions = append(questions, q)
			}
		}
		writeGolden(t, file, "What Confluent's "+c.class[strings.LastIndexByte(c.class, '.')+1:]+" makes of values: see registry_test.go.", questions, c.ask(t, questions), c.names)
	}
	n := readGolden(t, file, c.names, func(question string, answers []answer) {
		fields := strings.Split(question, "\t")
		s := parseSchema(t, []byte(fields[1]))
		c.compare(t, question, answers, c.ours(s, parseValue(t, s, []byte(fields[2]))))
	})
	if n < 250 {
		t.Errorf("only %d cases", n)
	}
}

// atRandom asks the real converter, if its class path is given.
func (c *registryConverter) atRandom(t *testing.T) {
	if *c.classPath == "" || *update {
		t.Skip("no class path of the converter; testdata/" + c.file + " holds what it said")
	}
	questions, ours := atRandom(t, c.random, c.ours)
	wrong, failed := 0, 0
	for i, java := range c.ask(t, questions) {
		if java[0].failed() {
			failed++
		}
		if c.unknown != "" && ours[i][0] == c.unknown {
			continue
		}
		if c.compare(t, questions[i], java, ours[i]) {
			if wrong++; wrong > 10 {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d values, of which the converter refuses %d", len(questions), failed)
}

const recordNames = "value.subject.name.strategy=io.confluent.kafka.serializers.subject.RecordNameStrategy"
