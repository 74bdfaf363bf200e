package router

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
	"github.com/walpost/walpost/router/internal/connect"
)

// CloudEvents says whether records are CloudEvents 1.0, and how the protocol binding for Kafka 1.0.2
// writes them.
type CloudEvents struct {
	Mode string `suffix:""` // none | binary | structured
	// The attribute `source`, a URI reference, which identifies an event together with its id.
	Source string `suffix:".source" example:"/shop/orders"`
	// The column with the attribute `type`. By default `event_type` or `type`, whichever the table has.
	TypeField string `suffix:".type.field" example:"event_type"`
}

const (
	optionCloudEvents = "records.cloudevents"
	optionEventType   = "records.cloudevents.type.field"
)

func (c *CloudEvents) on() bool { return c.Mode == "binary" || c.Mode == "structured" }

// validate adds what is wrong with c, or with the rest of the configuration because of it.
func (c *CloudEvents) validate(ps *conf.Problems, of *Config) {
	if !c.on() {
		if c.Source != "" || c.TypeField != "" {
			ps.Add(optionCloudEvents, conf.MustBe, "binary or structured if source or type.field is set", c.Mode)
		}
		return
	}
	const source = optionCloudEvents + ".source"
	if c.Source == "" {
		ps.Add(source, conf.Required, "with records.cloudevents: every CloudEvent has a source", nil)
	} else if _, err := url.Parse(c.Source); err != nil || strings.ContainsAny(c.Source, " <>\"") {
		ps.Add(source, conf.MustBe, "a URI reference such as /shop/orders", c.Source)
	}
	if of.DebeziumMessages {
		ps.Add(optionCloudEvents, conf.Contradicts, "source.messages.format debezium, whose records are no CloudEvents", c.Mode)
	}
	if c.Mode == "structured" && of.ClaimCheck.On() {
		ps.Add(optionCloudEvents, conf.MustBe, "binary with records.claim_check, whose references are no CloudEvents", c.Mode)
	}
	for i, step := range of.Headers {
		for _, name := range step.Drop {
			if slices.Contains(cloudHeaders[:], name) {
				ps.Add(fmt.Sprintf("records.headers[%d]", i), conf.Contradicts, "records.cloudevents, which needs the header "+name, nil)
			}
		}
	}
	if name := of.Value.Name; c.Mode == "structured" && name != "string" && name != "json" && name != "bytes" && name != "binary" {
		ps.Add(optionCloudEvents, conf.MustBe, "binary with records.value.converter "+name+", whose values are no part of a JSON document", c.Mode)
	}
}

// cloud makes CloudEvents of records. It is nil if records are none.
type cloud struct {
	structured bool
	source     []byte
	text       connect.Converter
	value      []byte // room for the present record's value in structured mode; never nil
}

func (c *Config) cloud() *cloud {
	if !c.CloudEvents.on() {
		return nil
	}
	return &cloud{
		structured: c.CloudEvents.Mode == "structured", source: []byte(c.CloudEvents.Source),
		text: connect.NewJSON(connect.JSONOptions{}), value: []byte{},
	}
}

// cloudHeaders are the headers of binary mode.
var cloudHeaders = [...]string{"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time", contentType}

const (
	attributePrefix = "ce_"
	contentType     = "content-type"
)

// What headers share: nothing changes the bytes of a record.
var (
	specVersion = []byte("1.0")
	mediaJSON   = []byte("application/json")
	mediaText   = []byte("text/plain; charset=UTF-8")
	mediaBytes  = []byte("application/octet-stream")
	mediaAvro   = []byte("application/avro")
	mediaFormat = []byte("application/cloudevents+json; charset=UTF-8")
)

// mediaType is the type of the converter's values, or nil if each value decides. ofBytes is whether the
// converter gets bytes.
func (c *DelegatingConverter) mediaType(ofBytes bool) []byte {
	name := c.Name
	if name == "binary" && !ofBytes {
		name = c.Delegate.Name
	}
	switch name {
	case "string":
		return nil
	case "json":
		return mediaJSON
	case "avro":
		return mediaAvro
	}
	return mediaBytes
}

// cloudEvents adds to a plan what CloudEvents need.
func (p *planner) cloudEvents(made *plan) {
	c, _ := p.typed(optionEventType, p.either(optionEventType, p.cfg.CloudEvents.TypeField, "event_type", "type"), connect.String)
	made.eventType, made.more = &c, made.more+len(cloudHeaders)
	ofBytes := made.envelope == nil && made.payload.typ != nil && made.payload.typ.Schema.Type == connect.Bytes
	made.mediaType = p.cfg.Value.mediaType(ofBytes)
}

// event makes rec, which is complete otherwise, a CloudEvent. What the record's own headers say has
// precedence, unless it is null. A record without a value has the form of binary mode in both modes:
// it stays a tombstone.
func (c *cloud) event(buf []byte, p *plan, row *row, rec *cdc.Record) ([]byte, *Problem) {
	id, eventType, subject := row.text(&p.id), row.text(p.eventType), row.text(&p.key)
	switch {
	case len(id) == 0:
		return buf, p.id.problem(ValueSet, nil, "column %s is empty, and a CloudEvent needs an id", p.id.name)
	case len(eventType) == 0:
		return buf, p.eventType.problem(ValueSet, nil, "column %s is empty, and a CloudEvent needs a type", p.eventType.name)
	}
	own := func(text []byte) []byte {
		at := len(buf)
		buf = append(buf, text...)
		return buf[at:len(buf):len(buf)]
	}
	c.header(rec, "ce_specversion", specVersion)
	c.header(rec, "ce_id", own(id))
	c.header(rec, "ce_source", c.source)
	c.header(rec, "ce_type", own(eventType))
	if len(subject) > 0 {
		c.header(rec, "ce_subject", own(subject))
	}
	if p.stamp != nil && row.text(p.stamp) != nil {
		at := len(buf)
		buf = rec.Time.AppendFormat(buf, "2006-01-02T15:04:05.999Z07:00")
		c.header(rec, "ce_time", buf[at:len(buf):len(buf)])
	}
	if rec.Value == nil {
		return buf, nil
	}
	media := p.mediaType
	if media == nil {
		if media = mediaText; utf8.Valid(rec.Value) && json.Valid(rec.Value) {
			media = mediaJSON
		}
	}
	isJSON := string(media) == string(mediaJSON)
	c.header(rec, contentType, media)
	if c.structured {
		buf = c.document(buf, p, rec, isJSON)
	}
	return buf, nil
}

// header adds a header, unless the record has it.
func (c *cloud) header(rec *cdc.Record, name string, value []byte) {
	i := slices.IndexFunc(rec.Headers, func(h cdc.Header) bool { return h.Key == name })
	switch {
	case i >= 0 && rec.Headers[i].Value == nil:
		rec.Headers[i].Value = value
	case i < 0:
		rec.Headers = append(rec.Headers, cdc.Header{Key: name, Value: value})
	}
}

// document makes the value a document in the JSON event format: of the headers of binary mode, which the
// record then lacks, and of the value, which is JSON if valid is set.
func (c *cloud) document(buf []byte, p *plan, rec *cdc.Record, valid bool) []byte {
	at, isJSON := len(buf), false
	for i, h := range rec.Headers {
		name := memberName(h.Key)
		if name == "" || h.Value == nil || slices.ContainsFunc(rec.Headers[:i], func(b cdc.Header) bool { return b.Key == h.Key && b.Value != nil }) {
			continue
		}
		if name == "datacontenttype" {
			isJSON = ofJSON(string(h.Value))
		}
		buf = append(append(append(buf, `,"`...), name...), `":`...)
		buf = c.appendString(buf, h.Value)
	}
	buf[at] = '{'
	switch value := rec.Value; {
	case string(p.mediaType) == string(mediaBytes):
		buf = append(base64.StdEncoding.AppendEncode(append(buf, `,"data_base64":"`...), value), '"')
	case isJSON && valid:
		buf = append(append(buf, `,"data":`...), value...)
	default:
		buf = c.appendString(append(buf, `,"data":`...), value)
	}
	buf = append(buf, '}')
	rec.Value = buf[at:len(buf):len(buf)]
	rec.Headers = slices.DeleteFunc(rec.Headers, func(h cdc.Header) bool { return memberName(h.Key) != "" })
	rec.Headers = append(rec.Headers, cdc.Header{Key: contentType, Value: mediaFormat})
	return buf
}

// memberName is the name that a header of binary mode has in a document, or "" for any other header.
func memberName(header string) string {
	if header == contentType {
		return "datacontenttype"
	}
	name, ok := strings.CutPrefix(header, attributePrefix)
	if !ok || name == "data" || name == "datacontenttype" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "" // not the name of an attribute
	}
	return name
}

// ofJSON reports whether a media type declares JSON.
func ofJSON(media string) bool {
	media, _, _ = strings.Cut(media, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

func (c *cloud) appendString(buf, text []byte) []byte {
	buf, _, _ = c.text.AppendText(buf, "", nil, text) // a JSON string of any text
	return buf
}
