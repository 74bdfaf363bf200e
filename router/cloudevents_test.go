package router

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/walpost/walpost/cdc"
)

// A kafkaMessage reads a record as the protocol binding for Kafka says. What it gives is for the SDK.
type kafkaMessage struct {
	binding.MessageMetadataReader // for transformers, of which there are none
	rec                           *cdc.Record
}

var versions = spec.WithPrefix("ce_")

func (m kafkaMessage) header(name string) string {
	for _, h := range m.rec.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func (m kafkaMessage) ReadEncoding() binding.Encoding {
	switch {
	case format.IsFormat(m.header("content-type")):
		return binding.EncodingStructured
	case m.header("ce_specversion") != "":
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (m kafkaMessage) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	f := format.Lookup(m.header("content-type"))
	if f == nil {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, f, bytes.NewReader(m.rec.Value))
}

func (m kafkaMessage) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	version := versions.Version(m.header("ce_specversion"))
	for _, h := range m.rec.Headers {
		var err error
		name, isAttribute := strings.CutPrefix(h.Key, "ce_")
		switch attribute := version.Attribute(h.Key); {
		case h.Key == "content-type":
			err = w.SetAttribute(version.AttributeFromKind(spec.DataContentType), string(h.Value))
		case attribute != nil:
			err = w.SetAttribute(attribute, string(h.Value))
		case isAttribute:
			err = w.SetExtension(name, string(h.Value))
		}
		if err != nil {
			return err
		}
	}
	return w.SetData(bytes.NewReader(m.rec.Value))
}

// read is what the SDK finds in a record.
func read(t *testing.T, rec *cdc.Record) *event.Event {
	t.Helper()
	e, err := binding.ToEvent(t.Context(), kafkaMessage{rec: rec})
	if err != nil {
		t.Fatalf("%s: %v", show(rec), err)
	}
	if err := e.Validate(); err != nil {
		t.Errorf("%s: %v", show(rec), err)
	}
	return e
}

func cloudEvents(mode string, changes ...func(*Config)) func(*Config) {
	return func(c *Config) {
		c.CloudEvents = CloudEvents{Mode: mode, Source: "/mycontext/subcontext"}
		all(changes...)(c)
	}
}

func routed(t *testing.T, change func(*Config), ev *cdc.Event) *cdc.Record {
	t.Helper()
	cfg := DefaultConfig()
	cfg.TopicPrefix = "shop"
	change(&cfg)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.SetRunID(runID)
	rec := &cdc.Record{}
	if ok, err := r.Route(ev, rec); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return rec
}

// The examples of the protocol binding for Kafka 1.0.2, and the JSON event format's.
func TestTheExamplesOfTheSpecification(t *testing.T) {
	columns := []string{"id text", "aggregatetype text", "aggregateid text", "type text", "at timestamptz"}
	row := []string{"1234-1234-1234", "mytopic", "mykey", "com.example.someevent", "2018-04-05 03:56:24+00"}
	timed := func(c *Config) { c.Timestamp = "at" }
	typed := func(name string) func(*Config) {
		return func(c *Config) { c.Headers = []HeaderStep{{Insert: "content-type", Value: name}} }
	}
	const attributes = `'specversion':'1.0','id':'1234-1234-1234','source':'/mycontext/subcontext','type':'com.example.someevent','subject':'mykey','time':'2018-04-05T03:56:24Z'`
	for _, c := range []struct {
		change        func(*Config)
		typ, payload  string
		headers, want string
	}{
		{
			cloudEvents("binary", timed, typed("application/avro"), func(c *Config) { c.Value.Name = "bytes" }), "bytea", `\x0244`,
			`content-type:"application/avro" ce_specversion:"1.0" ce_id:"1234-1234-1234" ce_source:"/mycontext/subcontext" ce_type:"com.example.someevent" ce_subject:"mykey" ce_time:"2018-04-05T03:56:24Z"`,
			"\x02D",
		},
		{
			cloudEvents("structured", timed, typed("application/xml")), "text", `<much wow="xml"/>`,
			"", `{'datacontenttype':'application/xml',` + attributes + `,'data':'<much wow=\'xml\'/>'}`,
		},
		{
			cloudEvents("structured", timed), "jsonb", `{"appinfoA": "abc", "appinfoB": 123, "appinfoC": true}`,
			"", `{` + attributes + `,'datacontenttype':'application/json','data':{'appinfoA': 'abc', 'appinfoB': 123, 'appinfoC': true}}`,
		},
		{
			cloudEvents("structured", timed, func(c *Config) { c.Value.Name = "bytes" }), "bytea", `\x7b202278797a223a20313233207d`,
			"", `{` + attributes + `,'datacontenttype':'application/octet-stream','data_base64':'eyAieHl6IjogMTIzIH0='}`,
		},
	} {
		rec := routed(t, c.change, insert(table(append(columns, "payload "+c.typ)...), append(row, c.payload)...))
		headers := strings.Join(strings.Fields(show(rec))[5:], " ")
		if c.headers == "" {
			c.headers = `content-type:"application/cloudevents+json; charset=UTF-8"`
		}
		if got := strings.ReplaceAll(string(rec.Value), `"`, `'`); got != strings.ReplaceAll(c.want, `"`, `'`) || !strings.HasSuffix(headers, c.headers) || string(rec.Key) != "mykey" {
			t.Errorf("%s\n%s, want\n%s\n%s", headers, got, c.headers, c.want)
		}
		e := read(t, rec)
		if e.ID() != row[0] || e.Source() != "/mycontext/subcontext" || e.Type() != row[3] || e.Subject() != "mykey" || !e.Time().Equal(rec.Time) {
			t.Errorf("the SDK finds %v", e)
		}
	}
}

// Whatever the converter, the SDK finds the same in both modes: the attributes, and the value of a record that is no CloudEvent.
func TestBothModesAreTheSameEvent(t *testing.T) {
	rel := table("id int8", "aggregate_type text", "aggregate_id text", "event_type text", "payload text", "b bytea", "at timestamp", "tenant text")
	row := func(payload string, more ...string) *cdc.Event {
		return insert(rel, slices.Concat([]string{"42", "order", "k-ä", `Placed "now"`, payload, `\x00ff`}, more)...)
	}
	with := func(name string) func(*Config) { return func(c *Config) { c.Value.Name = name } }
	ofBytes := func(c *Config) { c.Payload = "b" }
	placed := func(s string) func(*Config) { return func(c *Config) { c.AdditionalPlacement = s } }
	timed := func(c *Config) { c.Timestamp = "at" }
	for name, c := range map[string]struct {
		change func(*Config)
		ev     *cdc.Event
		media  string
	}{
		"JSON text":             {all(), row(` {"a": [1, "ä"]}`, null, null), "application/json"},
		"a number":              {all(), row(`1e3`, null, null), "application/json"},
		"text":                  {all(), row("say \"ä\"\x01\n😀", null, null), "text/plain; charset=UTF-8"},
		"empty text":            {all(), row("", null, null), "text/plain; charset=UTF-8"},
		"text that is not UTF8": {all(), row("\xff", null, null), "text/plain; charset=UTF-8"},
		"json":                  {with("json"), row("text", null, null), "application/json"},
		"json null":             {with("json"), row(null, null, null), "application/json"},
		"schemas":               {schemas, row("text", null, null), "application/json"},
		"bytes":                 {all(ofBytes, with("bytes")), row("", null, null), "application/octet-stream"},
		"binary":                {all(ofBytes, with("binary")), row("", null, null), "application/octet-stream"},
		"binary with json":      {func(c *Config) { c.Value.Name, c.Value.Delegate = "binary", Converter{Name: "json"} }, row("text", null, null), "application/json"},
		"an envelope":           {all(with("json"), placed("tenant:envelope")), row("1", null, "acme"), "application/json"},
		"an envelope as text":   {placed("tenant:envelope"), row("1", null, "acme"), "text/plain; charset=UTF-8"},
		"an extension":          {placed("tenant:header:ce_tenant,tenant:header:other"), row("1", null, "acme"), "application/json"},
		"a type of its own":     {placed("tenant:header:content-type"), row(`<a/>`, null, "application/xml"), "application/xml"},
		"text by its own type":  {placed("tenant:header:content-type"), row(`1`, null, "text/csv"), "text/csv"},
		"a type that is null":   {placed("tenant:header:content-type"), row(`1`, null, null), "application/json"},
		"an own attribute":      {placed("tenant:header:ce_source,tenant:header:ce_source"), row(`1`, null, "/mine"), "application/json"},
		"no attribute":          {placed("tenant:header:ce_datacontenttype"), row(`1`, null, "application/json"), "application/json"},
		"a time":                {timed, row(`1`, "2026-01-31 12:00:00.123456", null), "application/json"},
		"a time that is null":   {timed, row(`1`, null, null), "application/json"},
	} {
		plain := routed(t, c.change, c.ev)
		before, after := show(plain), ""
		b := routed(t, cloudEvents("binary", c.change), c.ev)
		s := routed(t, cloudEvents("structured", c.change), c.ev)
		if !bytes.Equal(b.Value, plain.Value) || !bytes.Equal(b.Key, plain.Key) || b.Topic != plain.Topic {
			t.Errorf("%s: %s, want %s", name, show(b), before)
		}
		for _, h := range plain.Headers { // they stay, except what is an attribute
			for _, rec := range []*cdc.Record{b, s} {
				attribute := h.Key == "content-type" || strings.HasPrefix(h.Key, "ce_") && h.Key != "ce_datacontenttype"
				if kept := slices.ContainsFunc(rec.Headers, func(x cdc.Header) bool { return x.Key == h.Key && bytes.Equal(x.Value, h.Value) }); !kept && !attribute {
					t.Errorf("%s: %s, and there was %s", name, show(rec), h.Key)
				}
			}
		}
		inBinary, inStructured := read(t, b), read(t, s)
		if inBinary.DataContentType() != c.media || inBinary.ID() != "42" || inBinary.Type() != `Placed "now"` || inBinary.Subject() != "k-ä" {
			t.Errorf("%s: the SDK finds %v", name, inBinary)
		}
		if n := strings.Count(string(s.Value), `"datacontenttype":`); n != 1 {
			t.Errorf("%s: %d types of the content: %s", name, n, s.Value)
		}
		if inStructured.Context.String() != inBinary.Context.String() {
			t.Errorf("%s: the SDK finds %v\nand %v", name, inBinary, inStructured)
		}
		want := string(plain.Value)
		if name == "text that is not UTF8" {
			want = "\uFFFD"
		}
		if got := string(inStructured.Data()); got != want {
			t.Errorf("%s: the data is %q, want %q\n%s", name, got, want, s.Value)
		}
		if name == "an extension" && inStructured.Extensions()["tenant"] != "acme" || name == "an own attribute" && inStructured.Source() != "/mine" {
			t.Errorf("%s: %v", name, inStructured)
		}
		if timed := !inStructured.Time().IsZero(); timed != (name == "a time") || timed && inStructured.Time() != plain.Time {
			t.Errorf("%s: %v", name, inStructured.Time())
		}
		if after = show(plain); before != after {
			t.Errorf("%s: %s became %s", name, before, after)
		}
	}
}

// A tombstone deletes a key in a compacted topic, in both modes.
func TestATombstoneIsACloudEventWithoutData(t *testing.T) {
	for _, mode := range []string{"binary", "structured"} {
		rec := routed(t, cloudEvents(mode, func(c *Config) { c.Tombstone = true }), insert(outbox, "u-1", "order", "k", "Deleted", null))
		if e := read(t, rec); rec.Value != nil || e.Type() != "Deleted" || e.DataContentType() != "" || e.Data() != nil {
			t.Errorf("%s: %s", mode, show(rec))
		}
	}
}

func TestAMessageIsACloudEvent(t *testing.T) {
	content := `{"id": "m-1", "aggregate_type": "order", "aggregate_id": "k", "event_type": "Placed", "payload": {"a": 1}}`
	ev := &cdc.Event{Kind: cdc.Message, LSN: 7, Row: cdc.Row{Relation: cdc.Messages("outbox"), Values: []cdc.Value{{Bytes: []byte(content)}}}}
	if e := read(t, routed(t, cloudEvents("structured"), ev)); e.ID() != "m-1" || e.Type() != "Placed" || string(e.Data()) != `{"a": 1}` {
		t.Error(e)
	}
}

func TestARowThatIsNoCloudEvent(t *testing.T) {
	for want, ev := range map[string]*cdc.Event{
		"records.cloudevents.type.field: column event_type is empty, and a CloudEvent needs a type": insert(outbox, "u-1", "order", "k", null, "1"),
		"router.table.field.event.id: column id is empty, and a CloudEvent needs an id":             insert(outbox, "", "order", "k", "P", "1"),
		`records.cloudevents.type.field: there is no column "event_type"`:                           insert(table("id uuid", "aggregate_type text", "aggregate_id text", "payload jsonb"), "u-1", "order", "k", "1"),
		"must be set, because the table has both event_type and type":                               insert(table("id uuid", "aggregate_type text", "aggregate_id text", "type text", "event_type text", "payload jsonb"), "u-1", "order", "k", "P", "P", "1"),
		"Field 'event_type' is not of type STRING":                                                  insert(table("id uuid", "aggregate_type text", "aggregate_id text", "event_type int4", "payload jsonb"), "u-1", "order", "k", "1", "1"),
	} {
		if got := result(t, cloudEvents("binary"), ev); !strings.Contains(got, want) || got[0] != '!' {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestAConfigurationWithoutCloudEvents(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.CloudEvents.Mode = "batch" }, `records.cloudevents: must be one of none, binary, structured (got "batch")`},
		{func(c *Config) { c.CloudEvents.Source = "/a" }, `records.cloudevents: must be binary or structured if source or type.field is set (got "none")`},
		{cloudEvents("binary", func(c *Config) { c.CloudEvents.Source = "" }), "records.cloudevents.source: is required with records.cloudevents"},
		{cloudEvents("binary", func(c *Config) { c.CloudEvents.Source = "a b" }), `records.cloudevents.source: must be a URI reference such as /shop/orders (got "a b")`},
		{cloudEvents("binary", func(c *Config) { c.CloudEvents.Source = "/%zz" }), "records.cloudevents.source: must be a URI reference"},
		{cloudEvents("structured", avroValues), `records.cloudevents: must be binary with records.value.converter avro, whose values are no part of a JSON document (got "structured")`},
		{cloudEvents("structured", func(c *Config) { c.ClaimCheck = ClaimCheck{Over: 1 << 20, Store: "file", Path: "/x"} }), `records.cloudevents: must be binary with records.claim_check`},
		{cloudEvents("binary", avroValues), ""},
		{cloudEvents("binary", func(c *Config) { c.DebeziumMessages = true }), "records.cloudevents: contradicts source.messages.format debezium"},
		{cloudEvents("binary", func(c *Config) { c.Headers = []HeaderStep{{Drop: []string{"x", "ce_subject"}}} }), "records.headers[0]: contradicts records.cloudevents, which needs the header ce_subject"},
	} {
		cfg := DefaultConfig()
		cfg.TopicPrefix = "shop"
		c.change(&cfg)
		got := fmt.Sprint(cfg.Validate())
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// It costs no allocation more than the same record without it; a document needs no second copy of the payload.
func TestACloudEventCostsTwoAllocations(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"binary": cloudEvents("binary"), "binary, avro": cloudEvents("binary", avroValues),
		"structured": cloudEvents("structured"), "structured, json": cloudEvents("structured", jsonValues),
	} {
		costsTwoAllocations(t, name, change)
	}
}
