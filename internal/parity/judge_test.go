package parity

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestAFileIsWrittenAsItWasRead(t *testing.T) {
	files, err := ReadCorpus("../../router/testdata/debezium")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if d := Diff(string(text), string(f.Bytes())); d != "" {
			t.Errorf("%s:\n%s", f.Path, d)
		}
	}
}

func outcome(records ...Record) Outcome { return Outcome{Records: records} }

func TestEveryPartOfARecordIsCompared(t *testing.T) {
	at := time.UnixMilli(981173106789)
	record := func(change func(*Record)) Outcome {
		r := Record{
			Topic: "t", Partition: 1, Time: at, Key: []byte("k"), Value: []byte("v"),
			Headers: []Header{{"id", []byte("1")}, {"empty", []byte{}}},
		}
		change(&r)
		return outcome(r)
	}
	same := record(func(*Record) {})
	want := same.String()
	if d := same.Compare(want); d != "" {
		t.Fatalf("a record differs from itself:\n%s", d)
	}
	for name, change := range map[string]func(*Record){
		"topic":            func(r *Record) { r.Topic = "T" },
		"partition":        func(r *Record) { r.Partition = 2 },
		"timestamp":        func(r *Record) { r.Time = at.Add(time.Millisecond) },
		"clock":            func(r *Record) { r.Time = time.Now() },
		"key":              func(r *Record) { r.Key = []byte("K") },
		"null key":         func(r *Record) { r.Key = nil },
		"value":            func(r *Record) { r.Value = []byte("v ") },
		"null value":       func(r *Record) { r.Value = nil },
		"empty value":      func(r *Record) { r.Value = []byte{} },
		"text null":        func(r *Record) { r.Value = []byte("null") },
		"long value":       func(r *Record) { r.Value = []byte(strings.Repeat("v", longest+1)) },
		"header name":      func(r *Record) { r.Headers[0].Key = "ID" },
		"header value":     func(r *Record) { r.Headers[0].Value = []byte("2") },
		"null header":      func(r *Record) { r.Headers[1].Value = nil },
		"order of headers": func(r *Record) { r.Headers[0], r.Headers[1] = r.Headers[1], r.Headers[0] },
		"headers":          func(r *Record) { r.Headers = r.Headers[:1] },
	} {
		if got := record(change); got.Compare(want) == "" {
			t.Errorf("%s: no difference", name)
		}
	}
	twice := outcome(same.Records[0], same.Records[0])
	if twice.Compare(want) == "" {
		t.Error("a record that comes twice is no difference")
	}
	one, other := strings.Repeat("v", longest+1), strings.Repeat("v", longest)+"w"
	if quote([]byte(one)) == quote([]byte(other)) {
		t.Error("long values that differ at the end are shown alike")
	}
}

func TestFailuresAreComparedButNotTheirReasons(t *testing.T) {
	r := Record{Topic: "t", Key: []byte("k"), Time: time.Now()}
	debezium := Outcome{Records: []Record{r}, Failure: "java.lang.NullPointerException"}
	for _, c := range []struct {
		name string
		got  Outcome
		same bool
	}{
		{"another reason", Outcome{Records: []Record{r}, Failure: "the topic is NULL"}, true},
		{"a refusal before anything is read", Outcome{Failure: "records.key.converter: …", AtStart: true}, true},
		{"a failure at an earlier row", Outcome{Failure: "the topic is NULL"}, false},
		{"no failure", Outcome{Records: []Record{r}}, false},
		{"nothing", Outcome{}, false},
	} {
		if d := c.got.Compare(debezium.String()); (d == "") != c.same {
			t.Errorf("%s: %q", c.name, d)
		}
	}
	fine := outcome(r)
	refusal := Outcome{Failure: "x", AtStart: true}
	if refusal.Compare(fine.String()) == "" {
		t.Error("a refusal of what Debezium takes is no difference")
	}
}

func TestAListedDifferenceMustBeAsListed(t *testing.T) {
	c := &Case{Group: "g", Name: "n"}
	list := List{"g_n": {Name: "g_n", Comment: "# why\n", Want: "- a\n+ b\n"}}
	for _, j := range []struct {
		list       List
		difference string
		fine       bool
	}{{nil, "", true}, {nil, "- a\n", false}, {list, "- a\n+ b\n", true}, {list, "- a\n+ c\n", false}, {list, "", false}} {
		if got := j.list.Judge(c, j.difference); (got == "") != j.fine {
			t.Errorf("%q: %q", j.difference, got)
		}
	}
}

func TestARandomCaseIsTheSameEveryTime(t *testing.T) {
	a, n := Random(7, 45)
	b, m := Random(7, 45)
	if a.Text() != b.Text() || n != m {
		t.Error("two cases of one seed differ")
	}
	if c, _ := Random(7, 46); c.Text() == a.Text() {
		t.Error("two numbers give one case")
	}
}
