package connect

import (
	"encoding/json"
	"fmt"
	"math/bits"
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

func (q expandQuestion) options() ExpandOptions {
	o := ExpandOptions{Payload: "payload"}
	if q.nulls == "optional_bytes" {
		o.NullBytes = true
	}
	o.FieldNames = map[string]NameAdjustment{"none": KeepNames, "avro": AvroNames, "avro_unicode": AvroUnicodeNames}[q.names]
	return o
}

// ourExpansion answers as Oracle.java does, with the expander's options as they stand, and says what was fixed.
func ourExpansion(o ExpandOptions, text string) ([]answer, difference) {
	s, v, f, err := NewExpander(o).expand(text)
	if err != nil {
		s, v = &Schema{Type: String, Optional: true}, text
	}
	var as []answer
	for _, c := range []Converter{NewJSON(JSONOptions{ReplaceNullWithDefault: true}), NewJSON(JSONOptions{Schemas: true, ReplaceNullWithDefault: true}), NewString()} {
		as = append(as, answerOf(c.Append(nil, "topic", s, v)))
	}
	return as, f
}

func (f difference) String() string {
	var s []string
	for i := range 16 {
		if f&point(i) != 0 {
			s = append(s, strconv.Itoa(i))
		}
	}
	return "fixed " + strings.Join(s, " ")
}

// judgeExpansion says what is wrong with ours. Where nothing was fixed it must be what Debezium's is; where the order of members is all
// that was, the same but for that; and where Debezium's task had to die, it must have died, or the comment about it is wrong.
func judgeExpansion(q expandQuestion, java []answer) (wrong string, f difference) {
	us, f := ourExpansion(q.options(), q.text)
	report := func(i int, why string) {
		wrong += fmt.Sprintf("\n%s: %s, %s\n  Debezium: %.2000s\n  we:       %.2000s", expandAnswers[i], why, f, java[i], us[i])
	}
	for i := range java {
		theirs, ok := java[i].text()
		ours, _ := us[i].text()
		switch {
		case f == 0 && java[i] != us[i]:
			report(i, "differs")
		case f == point(4) && i < 2 && (!ok || canonical(theirs) != canonical(ours)):
			report(i, "differs by more than order")
		case bits.OnesCount16(uint16(f)) == 1 && f&(point(1)|point(2)|point(6)) != 0 && i < 2 && !java[i].failed() && java[i] != us[i]:
			report(i, "Debezium did not fail")
		case us[i].failed():
			report(i, "we fail")
		case i < 2 && !json.Valid([]byte(ours)):
			report(i, "no JSON")
		}
	}
	// The text of a value goes through no schema.
	o := q.options()
	o.Text = true
	if us, _ = ourExpansion(o, q.text); f&(point(4)|point(5)|point(7)|point(8)) == 0 && us[2] != java[2] {
		report(2, "differs where only text is wanted")
	}
	return wrong, f
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
		if wrong, _ := judgeExpansion(expandQuestion{fields[0], fields[1], text}, java); wrong != "" {
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
	g := newGenerator(seed(t))
	var questions []expandQuestion
	var asked []string
	for range *oracleN {
		q := g.expandQuestion()
		questions, asked = append(questions, q), append(asked, q.oracle())
	}
	wrong, how := 0, map[string]int{}
	for i, java := range ask(t, asked) {
		text, f := judgeExpansion(questions[i], java)
		kind := f.String()
		if us, _ := ourExpansion(questions[i].options(), questions[i].text); f == 0 && us[2] == answerOf([]byte(questions[i].text), false, nil) {
			kind = "text"
		}
		how[kind]++
		if text != "" {
			t.Errorf("%s%s", questions[i].golden(), text)
			if wrong++; wrong > 10 {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d documents: %v", len(questions), how)
}
