package registry

import (
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/walpost/walpost/internal/fault"
	"github.com/walpost/walpost/internal/testenv"
)

const (
	order = `{"type":"object","properties":{"n":{"type":"integer"},"lines":{"type":"array","items":{"$ref":"line.json"}}},"required":["n"],"additionalProperties":false}`
	line  = `{"type":"object","properties":{"sku/code":{"type":"string"},"qty":{"anyOf":[{"type":"integer","minimum":1},{"type":"null"}]},"unit":{"$ref":"http://units.example/unit.json"}}}`
	unit  = `{"$id":"http://units.example/unit.json","enum":["kg","m"]}`
)

func jsonSchema(text string, refs ...sr.SchemaReference) sr.Schema {
	return sr.Schema{Schema: text, Type: sr.TypeJSON, References: refs}
}

// orders has the JSON schema of orders, which refers to others.
func orders(t *testing.T) *srfake.Registry {
	r := fake(t)
	r.SeedSchema("unit", 1, 1, jsonSchema(unit))
	r.SeedSchema("line", 3, 2, jsonSchema(line, sr.SchemaReference{Name: "http://units.example/unit.json", Subject: "unit", Version: 1}))
	r.SeedSchema("orders-value", 1, 3, jsonSchema(order, sr.SchemaReference{Name: "line.json", Subject: "line", Version: 3}))
	return r
}

// validated calls Validate until there is an answer.
func validated(t *testing.T, c *Client, text string) (path, why string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		path, why, err := c.Validate("orders-value", []byte(text))
		if err == nil {
			return path, why
		}
		if fault.Awaits(err) == nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no answer")
	return "", ""
}

func TestWhatDoesNotFitHasAPath(t *testing.T) {
	r := orders(t)
	for _, delivers := range []bool{false, true} {
		c := client(t, Config{URLs: []string{r.URL()}})
		if delivers {
			defer c.Deliver(t.Context(), slog.New(slog.DiscardHandler))()
		}
		for _, of := range []struct{ text, path, why string }{
			{`{"n":1,"lines":[{"sku/code":"a","qty":null,"unit":"kg"}]}`, "", ""},
			{`{"n":"1"}`, "/n", `version 1 of subject "orders-value" at /n: got string, want integer`},
			{`{}`, "", `at its root: missing property 'n'`},
			{`{"n":1,"m":2}`, "", `additional properties 'm' not allowed`},
			{`{"n":1,"lines":[{},{"sku/code":7}]}`, "/lines/1/sku~1code", "got number, want string"},
			{`{"n":1,"lines":[{"unit":"lb"}]}`, "/lines/0/unit", "value must be one of 'kg', 'm'"},
			{`{"n":1,"lines":[{"qty":0}]}`, "/lines/0/qty", "'anyOf' failed"},
			{`{"n":1`, "", "is no JSON: "},
			{`{"n":1} {}`, "", "is no JSON: "},
			{"\x00\x00\x00\x00\x01{}", "", "is no JSON: "},
		} {
			if path, why := validated(t, c, of.text); path != of.path || !strings.Contains(why, of.why) || (why == "") != (of.why == "") {
				t.Errorf("%s: at %q: %s", of.text, path, why)
			}
		}
	}
}

// A version that was registered before a document was written is in force for it.
func TestADocumentIsNotRefusedByAVersionThatWasReplaced(t *testing.T) {
	r := orders(t)
	c := client(t, Config{URLs: []string{r.URL()}})
	defer c.Deliver(t.Context(), slog.New(slog.DiscardHandler))()
	const wide = `{"n":1,"m":2}`
	if _, why := validated(t, c, wide); why == "" {
		t.Error("it fits version 1")
	}
	r.SeedSchema("orders-value", 2, 4, jsonSchema(`{"properties":{"n":{"maximum":5}}}`))
	if _, why := validated(t, c, wide); why != "" {
		t.Error(why)
	}
	if path, why := validated(t, c, `{"n":6}`); path != "/n" || !strings.Contains(why, "version 2") {
		t.Errorf("at %q: %s", path, why)
	}
}

// While the registry is down, what is known goes on, and what does not fit waits.
func TestTheLatestVersionIsAskedForEachMinute(t *testing.T) {
	r := orders(t)
	var asked atomic.Int32
	var down atomic.Bool
	r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		if down.Load() {
			http.Error(w, "no leader", http.StatusServiceUnavailable)
		}
		return down.Load()
	})
	c := client(t, Config{URLs: []string{r.URL()}})
	for range 3 {
		if _, why := validated(t, c, `{"n":1}`); why != "" {
			t.Fatal(why)
		}
	}
	if asked.Load() != 3 { // of them two for references
		t.Errorf("asked %d times", asked.Load())
	}
	c.latests["orders-value"].asked = time.Now().Add(-latestAgain - time.Second)
	r.SeedSchema("orders-value", 2, 4, jsonSchema(`false`))
	if _, why := validated(t, c, `{"n":1}`); !strings.Contains(why, "version 2") {
		t.Errorf("a minute later: %q", why)
	}
	r.SeedSchema("orders-value", 3, 5, jsonSchema(`{"maximum":7}`))
	if _, why := validated(t, c, `7`); why != "" {
		t.Error(why)
	}

	down.Store(true)
	var logs testenv.Output
	defer c.Deliver(t.Context(), slog.New(slog.NewTextHandler(&logs, nil)))()
	c.latests["orders-value"].asked = time.Time{}
	if _, why, err := c.Validate("orders-value", []byte(`7`)); why != "" || err != nil {
		t.Errorf("%q, %v", why, err)
	}
	_, _, err := c.Validate("orders-value", []byte(`8`))
	waitsForALeader(t, err)
	const unknown = `msg="latest schema is not known: events that fit the former one go on, and others wait" subject=orders-value version=3 err=`
	for from := asked.Load(); asked.Load() < from+3; {
		time.Sleep(time.Millisecond)
	}
	down.Store(false)
	for pending := fault.Awaits(err); !pending.Ready(); {
		time.Sleep(time.Millisecond)
	}
	if text := logs.String(); strings.Count(text, unknown) != 1 || strings.Count(text, "latest schemas are known again") != 1 {
		t.Errorf("logged:\n%s", text)
	}
}

func TestASchemaThatCannotBeUsedIsWaitedFor(t *testing.T) {
	for name, of := range map[string]struct {
		seed func(*srfake.Registry)
		want string
	}{
		"none": {func(*srfake.Registry) {}, `subject "orders-value" has no schema`},
		"Avro": {func(r *srfake.Registry) { r.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: text}) }, "is no JSON schema"},
		"remote reference": {func(r *srfake.Registry) {
			r.SeedSchema("orders-value", 1, 1, jsonSchema(`{"$ref":"http://127.0.0.1:1/x.json"}`))
		}, "walpost does not fetch it from elsewhere"},
		"file": {func(r *srfake.Registry) {
			r.SeedSchema("orders-value", 1, 1, jsonSchema(`{"$ref":"file:///etc/passwd"}`))
		}, "walpost does not fetch it from elsewhere"},
		"pattern": {func(r *srfake.Registry) { r.SeedSchema("orders-value", 1, 1, jsonSchema(`{"pattern":"(?<=a)b"}`)) }, "cannot be used: "},
		"multipleOf": {func(r *srfake.Registry) {
			r.SeedSchema("orders-value", 1, 1, jsonSchema(`{"items":{"multipleOf":1e-9999999}}`))
		}, "it has at /items/multipleOf a number with an exponent beyond 400"},
		"minimum in a reference": {func(r *srfake.Registry) {
			r.SeedSchema("bound", 1, 1, jsonSchema(`{"minimum":1e-9999999}`))
			r.SeedSchema("orders-value", 1, 2, jsonSchema(`{"$ref":"a"}`, sr.SchemaReference{Name: "a", Subject: "bound", Version: 1}))
		}, "it has at /minimum a number"},
		"lost reference": {func(r *srfake.Registry) {
			r.SeedSchema("gone", 1, 1, jsonSchema(unit))
			r.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
				gone := strings.HasPrefix(req.URL.Path, "/subjects/gone/")
				if gone {
					http.NotFound(w, req)
				}
				return gone
			})
			r.SeedSchema("orders-value", 1, 2, jsonSchema(`{"$ref":"a"}`, sr.SchemaReference{Name: "a", Subject: "gone", Version: 1}))
		}, `version 1 of subject "gone"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := fake(t)
			of.seed(r)
			c := client(t, Config{URLs: []string{r.URL()}})
			if _, _, err := c.Validate("orders-value", []byte(`1`)); !fault.Retryable(err) || !strings.Contains(err.Error(), of.want) || fault.Hint(err) == "" {
				t.Errorf("%v", err)
			}
		})
	}
}

// The validator would panic: it computes with exact numbers.
func TestANumberWithAHugeExponentDoesNotFit(t *testing.T) {
	r := fake(t)
	r.SeedSchema("orders-value", 1, 1, jsonSchema(`{"properties":{"a/b":{"items":{"minimum":1}}}}`))
	c := client(t, Config{URLs: []string{r.URL()}})
	for _, exponent := range []string{"e2000000", "E-2000000", "e99999999999999999999"} {
		if path, why := validated(t, c, `{"a/b":[1,2`+exponent+`]}`); path != "/a~1b/1" || !strings.Contains(why, "exponent") {
			t.Errorf("at %q: %s", path, why)
		}
	}
	if _, why := validated(t, c, `{"a/b":[1e3,2.5E+300]}`); why != "" {
		t.Error(why)
	}
}
