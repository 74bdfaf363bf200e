package connect

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var expandAnswers = []string{"json", "json with schemas", "string"}

// An expandQuestion is a document and the options for it.
type expandQuestion struct {
	nulls, names, text string
}

func (q expandQuestion) oracle() string {
	return fmt.Sprintf("expand\t%s\t%s\t%x", q.nulls, q.names, q.text)
}

// golden has the text quoted, so that it can be read.
func (q expandQuestion) golden() string {
	return q.nulls + " " + q.names + " " + strconv.QuoteToGraphic(q.text)
}

func (q expandQuestion) options() *Expander {
	o := &Expander{Payload: "payload"}
	if q.nulls == "optional_bytes" {
		o.NullBytes = true
	}
	o.FieldNames = NameAdjustment(q.names)
	return o
}

// ourExpansion answers as Oracle.java does, and says why a document stays text.
func ourExpansion(o *Expander, text string) ([]answer, error) {
	s, v, failed := o.Expand(text)
	if failed != nil {
		s, v = &Schema{Type: String, Optional: true}, text
	}
	var as []answer
	for _, c := range []Converter{NewJSON(JSONOptions{ReplaceNullWithDefault: true}), NewJSON(JSONOptions{Schemas: true, ReplaceNullWithDefault: true}), NewString()} {
		as = append(as, answerOf(c.Append(nil, "topic", s, v)))
	}
	return as, failed
}

// judgeExpansion says what is wrong with ours. It must be what Debezium's is, unless only the order of members differs, or Debezium's
// task had to die, loses members, or has null for the members with adjusted names.
func judgeExpansion(q expandQuestion, java []answer) (wrong string) {
	us, failed := ourExpansion(q.options(), q.text)
	asText, unadjusted := q.options(), q.options()
	asText.Text, unadjusted.FieldNames = true, "none"
	texts, unfit := ourExpansion(asText, q.text)
	named, _ := ourExpansion(unadjusted, q.text)
	lossy := named[1] != us[1] || (failed == nil) != (unfit == nil) ||
		failed != nil && (strings.Contains(failed.Error(), "do not all have the member") || strings.Contains(failed.Error(), "is both"))
	report := func(i int, why string) {
		wrong += fmt.Sprintf("\n%s: %s, %v\n  Debezium: %.2000s\n  we:       %.2000s", expandAnswers[i], why, failed, java[i], us[i])
	}
	reordered := false
	for i := range java {
		theirs, ok := java[i].text()
		ours, _ := us[i].text()
		switch {
		case us[i].failed():
			report(i, "we fail")
		case i < 2 && !json.Valid([]byte(ours)):
			report(i, "no JSON")
		case i < 2 && !ok, java[i] == us[i], lossy:
		case i < 2 && canonical(theirs) == canonical(ours):
			reordered = true
		case !reordered:
			report(i, "differs")
		}
	}
	// The text of a value goes through no schema.
	if !lossy && !reordered && texts[2] != java[2] {
		report(2, "differs where only text is wanted")
	}
	return wrong
}

func (g generator) expandQuestion() expandQuestion {
	return expandQuestion{pick(g, []string{"ignore", "ignore", "optional_bytes"}), pick(g, []string{"none", "none", "avro", "avro_unicode"}), g.document(1 + g.IntN(5))}
}

// TestGoldensOfExpansion holds Expand to what Debezium gave.
func TestGoldensOfExpansion(t *testing.T) {
	file := filepath.Join("testdata", "expand.txt")
	if *update && *oracle != "" {
		var questions []expandQuestion
		for _, text := range cornerDocuments {
			questions = append(questions, expandQuestion{"ignore", "none", text})
			if strings.Contains(text, "null") {
				questions = append(questions, expandQuestion{"optional_bytes", "none", text})
			}
		}
		for _, text := range cornerNames {
			questions = append(questions, expandQuestion{"ignore", "avro", text}, expandQuestion{"ignore", "avro_unicode", text})
		}
		g := newGenerator(1)
		for len(questions) < 400 {
			if q := g.expandQuestion(); len(q.text) < 300 {
				questions = append(questions, q)
			}
		}
		var lines, asked []string
		for _, q := range questions {
			lines, asked = append(lines, q.golden()), append(asked, q.oracle())
		}
		writeGolden(t, file, "What Debezium 3.6.1 makes of JSON payloads: table.json.payload.null.behavior, field.name.adjustment.mode, the payload.", lines, ask(t, asked), expandAnswers)
	}
	n := readGolden(t, file, expandAnswers, func(line string, java []answer) {
		fields := strings.SplitN(line, " ", 3)
		text, err := strconv.Unquote(fields[2])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if wrong := judgeExpansion(expandQuestion{fields[0], fields[1], text}, java); wrong != "" {
			t.Errorf("%s%s", line, wrong)
		}
	})
	if n < 400 {
		t.Errorf("only %d cases", n)
	}
}

// TestExpansionAtRandom asks Debezium, where -oracle is given.
func TestExpansionAtRandom(t *testing.T) {
	if *oracle == "" {
		t.Skip("no -oracle; testdata/expand.txt holds what it said")
	}
	g := seed(t)
	var questions []expandQuestion
	var asked []string
	for range *oracleN {
		q := g.expandQuestion()
		questions, asked = append(questions, q), append(asked, q.oracle())
	}
	wrong := 0
	for i, java := range ask(t, asked) {
		if text := judgeExpansion(questions[i], java); text != "" {
			t.Errorf("%s%s", questions[i].golden(), text)
			if wrong++; wrong > 10 {
				t.Fatal("and so on")
			}
		}
	}
}
