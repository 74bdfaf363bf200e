package router

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/walpost/walpost/cdc"
	"github.com/walpost/walpost/internal/conf"
)

// A message is routed as the row of a table that has exactly the columns that the options name. Its
// content is a JSON object with a field for each of them. docs/write-events.md has the rules.
type messages struct {
	rels   map[string]*cdc.Relation // by the name, which has the prefix; each has a plan
	rel    *cdc.Relation            // of the present message
	fields []string                 // the option that needs the column; "" if the field may be absent
	seen   []bool                   // which fields the present message has
	event  cdc.Event                // the present message as the insert of a row; reused
}

// CheckMessages returns why no message could be routed with these options, or nil.
func (r *Router) CheckMessages(prefix string) error {
	if r.debezium != nil {
		if r.debezium.problem != nil {
			return fmt.Errorf("source.messages: %s", r.debezium.problem)
		}
		return nil
	}
	rel, _ := r.messageColumns(cdc.Messages(prefix).Name)
	if p := r.makePlan(rel, r.cfg.converters(r.registry)); len(p.problems) > 0 {
		return fmt.Errorf("source.messages: %s", conf.Lines(p.problems))
	}
	return nil
}

// messageColumns returns the table that messages are taken as rows of, and for each column the
// option that needs it. The option is "" if a message may lack the field.
func (r *Router) messageColumns(name string) (rel *cdc.Relation, options []string) {
	rel = &cdc.Relation{Name: name}
	add := func(option, column string, oid uint32, typ string) {
		if rel.Index(column) < 0 {
			rel.Columns = append(rel.Columns, cdc.Column{Name: column, TypeOID: oid, TypeMod: -1, BaseTypeMod: -1, TypeName: typ, BaseName: typ})
			options = append(options, option)
		}
	}
	text := func(option, column string) { add(option, column, oidText, "text") }
	converted := func(option, column string, by *DelegatingConverter) {
		if by.Name == "bytes" || by.Name == "binary" { // no text is possible
			add(option, column, oidBytea, "bytea")
		} else {
			text(option, column)
		}
	}
	if r.cfg.Timestamp != "" {
		add(optionTimestamp, r.cfg.Timestamp, oidTimestamptz, "timestamptz")
	}
	if r.cfg.SchemaVersion != "" && enveloped(r.placements) {
		add(optionVersion, r.cfg.SchemaVersion, oidInt4, "int4")
	}
	for _, pl := range r.placements {
		if pl.place == inPartition {
			add(optionPlacement, pl.column, oidInt4, "int4")
		}
	}
	converted(optionPayload, r.cfg.Payload, &r.cfg.Value)
	converted(optionKey, cmp.Or(r.cfg.EventKey, "aggregate_id"), &r.cfg.Key)
	text(optionID, r.cfg.EventID)
	text(optionRoute, cmp.Or(r.cfg.RouteBy, "aggregate_type"))
	if r.cfg.SpanContext != "" { // a message without the field has no headers
		text("", r.cfg.SpanContext)
	}
	if r.cloud != nil {
		text(optionEventType, cmp.Or(r.cfg.CloudEvents.TypeField, "event_type"))
	}
	for _, pl := range r.placements {
		if pl.place == inHeaders { // a message without the field has no headers
			text("", pl.column)
			continue
		}
		text(optionPlacement, pl.column)
	}
	if r.ignoreMissing {
		for i, option := range options {
			if option == optionPlacement {
				options[i] = ""
			}
		}
	}
	return rel, options
}

// expand returns the message ev as the insert of a row. It is valid until the next call. What is
// wrong with the content is returned beside as much of the row as could be read.
func (m *messages) expand(r *Router, ev *cdc.Event) (*cdc.Event, *Problem) {
	name := ev.Row.Relation.Name
	if m.rel = m.rels[name]; m.rel == nil {
		if len(m.rels) >= maxPlans || m.rels == nil {
			m.rels = map[string]*cdc.Relation{}
		}
		m.rel, m.fields = r.messageColumns(name) // every name has the same fields
		m.rels[name] = m.rel
		m.seen = make([]bool, len(m.fields))
		m.event.Row.Values = make([]cdc.Value, len(m.fields))
	}
	m.event.Row.Relation = m.rel
	clear(m.seen)
	clear(m.event.Row.Values)
	m.event.Kind, m.event.LSN, m.event.Time = cdc.Insert, ev.LSN, ev.Time
	problem := m.read(ev.Row.Values[0].Bytes)
	for i, option := range m.fields {
		if problem == nil && !m.seen[i] && option != "" {
			problem = m.bad(i, nil, "the message has no field %q; write null if it has no value", m.rel.Columns[i].Name)
		}
	}
	return &m.event, problem
}

// bad is the problem of field i. raw is its text in the content.
func (m *messages) bad(i int, raw []byte, format string, args ...any) *Problem {
	c := column{name: m.rel.Columns[i].Name, option: m.fields[i]}
	return c.problem(ContentValid, raw, format, args...)
}

// read fills the values from a content. It returns the first thing that is wrong, and reads on behind
// a field that is wrong, so that the error can name the event.
func (m *messages) read(content []byte) (first *Problem) {
	unreadable := func(why string) *Problem {
		return (&column{}).problem(ContentValid, content, "the content of the message %s", why)
	}
	var syntax *json.SyntaxError
	switch {
	case !utf8.Valid(content):
		return unreadable("is not UTF-8")
	case len(bytes.TrimLeft(content, jsonSpace)) == 0:
		return unreadable("is empty")
	case bytes.TrimLeft(content, jsonSpace)[0] != '{':
		return unreadable("is not a JSON object")
	case !json.Valid(content):
		why := "is not JSON"
		if err := json.Unmarshal(content, new(json.RawMessage)); errors.As(err, &syntax) {
			why += ": " + err.Error() + " (at byte " + strconv.FormatInt(syntax.Offset, 10) + ")"
		}
		return unreadable(why)
	}
	eachField(content, func(name, value []byte) {
		text, err := unquote(name)
		i := m.rel.Index(string(text))
		if i < 0 || err != nil {
			return // as a column that no option names
		}
		var problem *Problem
		if m.seen[i] {
			problem = m.bad(i, value, "the message has the field %q twice", text)
		} else if m.event.Row.Values[i].Bytes, err = convertField(m.rel.Columns[i].TypeOID, value); err != nil {
			problem = m.bad(i, value, "field %q %s", text, err)
		}
		m.seen[i] = true
		if first == nil {
			first = problem
		}
	})
	return first
}

// convertField makes of a JSON value the text that Postgres would print of a column with this type.
// A string is its text, and null is NULL. Every other value is its own text, byte for byte.
func convertField(oid uint32, value []byte) ([]byte, error) {
	if value[0] != '"' {
		switch {
		case string(value) == "null":
			return nil, nil
		case oid == oidBytea:
			return nil, errors.New("must be a string, because records has a converter of bytes")
		case oid == oidTimestamptz:
			return nil, errors.New("must be a string with a time")
		}
		return value, nil
	}
	text, err := unquote(value)
	switch {
	case err != nil:
		return nil, err
	case oid == oidTimestamptz:
		t, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil {
			return nil, errors.New("must be a time with an offset, as in 2026-01-31T12:00:00.123456Z")
		}
		return t.UTC().AppendFormat(nil, "2006-01-02 15:04:05.999999+00"), nil
	case oid == oidBytea:
		digits, isHex := bytes.CutPrefix(text, []byte(`\x`))
		if isHex { // as Postgres prints it
			if _, err := hex.Decode(make([]byte, hex.DecodedLen(len(digits))), digits); err != nil {
				return nil, errors.New(`must have only pairs of hexadecimal digits after \x`)
			}
			return text, nil
		}
		raw := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
		n, err := base64.StdEncoding.Strict().Decode(raw, text)
		if err != nil || bytes.ContainsAny(text, "\r\n") {
			return nil, errors.New(`must be base64, or \x and hexadecimal digits`)
		}
		return append([]byte(`\x`), hex.EncodeToString(raw[:n])...), nil
	}
	return text, nil
}

const jsonSpace = " \t\r\n"

// eachField calls each for every field of a JSON object, which must be valid, with the name and the
// value as they stand in the object.
func eachField(object []byte, each func(name, value []byte)) {
	b := bytes.TrimLeft(object, jsonSpace)[1:]
	for {
		b = bytes.TrimLeft(b, jsonSpace+",")
		if b[0] == '}' {
			return
		}
		name := b[:valueEnd(b)]
		b = bytes.TrimLeft(b[len(name):], jsonSpace+":")
		value := b[:valueEnd(b)]
		each(name, value)
		b = b[len(value):]
	}
}

// valueEnd returns the length of the JSON value that b begins with.
func valueEnd(b []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default: // a part of a value that contains others, or of a number or a word
			if depth == 0 {
				return i + bytes.IndexAny(b[i:], jsonSpace+",}")
			}
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
}

// unquote returns the text of a valid JSON string. Postgres has no text with the character U+0000, and
// none with half of a surrogate pair. The text shares the bytes of the string if possible.
func unquote(quoted []byte) ([]byte, error) {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil
	}
	for s := string(inner); ; {
		_, rest, found := strings.Cut(s, `\`)
		if !found {
			break
		}
		if s = rest[1:]; rest[0] != 'u' {
			continue
		}
		unit := hexUnit(s)
		s = s[4:]
		if utf16.IsSurrogate(unit) {
			if low, isPair := strings.CutPrefix(s, `\u`); isPair && utf16.DecodeRune(unit, hexUnit(low)) != utf8.RuneError {
				s = low[4:]
				continue
			}
			return nil, errors.New("has half of a surrogate pair, which is not a character")
		}
		if unit == 0 {
			return nil, errors.New("has the character U+0000, which no text in Postgres can have")
		}
	}
	var text string
	err := json.Unmarshal(quoted, &text)
	return []byte(text), err
}

// hexUnit reads the four hexadecimal digits that s begins with.
func hexUnit(s string) rune {
	n, _ := strconv.ParseUint(s[:4], 16, 16) // valid JSON has them
	return rune(n)
}

// has reports whether the present message has the field of a column.
func (m *messages) has(c *column) bool { return c.index >= 0 && m.seen[c.index] }
