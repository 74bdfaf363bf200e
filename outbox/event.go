package outbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/claim"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/topicname"
)

// A row is the values of an event, in the order of the columns. nil is NULL.
type row [][]byte

// prepare checks the events and the transaction, makes the rows, and then stores large payloads.
func (o *Outbox) prepare(ctx context.Context, tx any, events []Event) (anytx.Tx, []row, error) {
	rows, err := o.rows(ctx, events)
	if err != nil {
		return nil, nil, err
	}
	to, err := anytx.Of(ctx, tx)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w", err)
	}
	for i, r := range rows {
		if o.tooLarge(r[payloadColumn]) {
			if err := o.store(ctx, r); err != nil {
				return nil, nil, &EventError{Index: i, Event: events[i], Field: "Payload", Err: err}
			}
		}
	}
	return to, rows, nil
}

// rows checks events and makes their rows. The error is an *EventError.
func (o *Outbox) rows(ctx context.Context, events []Event) ([]row, error) {
	var shared map[string]string
	if o.opts.FromContext != nil && len(events) > 0 {
		shared = o.opts.FromContext(ctx)
	}
	rows, seen := make([]row, len(events)), map[string]int{}
	for i, e := range events {
		r, field, err := o.row(e, shared)
		if err == nil {
			if first, twice := seen[string(r[0])]; twice {
				field, err = "ID", fmt.Errorf("event %d has the same id %s", first, r[0])
			}
			seen[string(r[0])] = i
		}
		if err != nil {
			return nil, &EventError{Index: i, Event: e, Field: field, Err: err}
		}
		rows[i] = r
	}
	return rows, nil
}

// row makes the row of an event, or names the field that is wrong.
func (o *Outbox) row(e Event, shared map[string]string) (r row, field string, err error) {
	if e.ID == "" {
		e.ID = NewID()
	} else if !uuid.MatchString(e.ID) {
		return nil, "ID", fmt.Errorf("must be a UUID (got %q)", e.ID)
	}
	r = make(row, 0, len(o.columns))
	r = append(r, []byte(strings.ToLower(e.ID)))
	for _, f := range []struct{ name, value string }{
		{"AggregateType", e.AggregateType}, {"AggregateID", e.AggregateID}, {"Type", e.Type},
	} {
		err := textProblem([]byte(f.value))
		if f.value == "" {
			err = errors.New("is empty")
		}
		if err == nil && f.name == "AggregateType" {
			err = topicname.Check(o.opts.Topic(f.value))
		}
		if err != nil {
			return nil, f.name, err
		}
		r = append(r, []byte(f.value))
	}
	payload, err := o.payload(e.Payload)
	if err != nil {
		return nil, "Payload", err
	}
	r = append(r, payload)
	if o.opts.Headers == nil {
		headers, field, err := headersObject(e.Headers, shared)
		return append(r, headers), field, err
	}
	for h := range e.Headers {
		if !slices.Contains(o.opts.Headers, h) {
			return nil, "Headers", fmt.Errorf("the outbox has no column for the header %q: Options.Headers names the columns", h)
		}
	}
	for _, h := range o.opts.Headers {
		value, ok := e.Headers[h]
		if !ok {
			value, ok = shared[h]
		}
		if !ok {
			r = append(r, nil)
			continue
		}
		if err := textProblem([]byte(value)); err != nil {
			return nil, fmt.Sprintf("Headers[%q]", h), err
		}
		r = append(r, []byte(value))
	}
	return r, "", nil
}

// headersObject returns headers as a JSON object, or nil for none. shared are those of the context.
func headersObject(own, shared map[string]string) (object []byte, field string, err error) {
	all := make(map[string]string, len(own)+len(shared))
	for name, value := range shared {
		if !reserved(name) {
			all[name] = value
		}
	}
	for name, value := range own {
		if reserved(name) {
			return nil, "Headers", ownHeader(name)
		}
		all[name] = value
	}
	for name, value := range all {
		if err := cmp.Or(textProblem([]byte(name)), textProblem([]byte(value))); err != nil {
			return nil, fmt.Sprintf("Headers[%q]", name), err
		}
	}
	switch n := len(all); {
	case n == 0:
		return nil, "", nil
	case n > outboxtable.MaxHeaders:
		return nil, "Headers", fmt.Errorf("has %d headers, more than %d", n, outboxtable.MaxHeaders)
	}
	object, err = json.Marshal(all)
	return object, "Headers", err
}

// reserved reports whether a record has the header with this name from walpost, or from the column
// event_type, whatever the event gives.
func reserved(name string) bool {
	return outboxtable.ReservedHeader(name) || name == outboxtable.EventTypeHeader
}

func ownHeader(name string) error { return fmt.Errorf("the header %q is walpost's own", name) }

// payload returns the bytes of a payload, or nil for NULL.
func (o *Outbox) payload(v any) (b []byte, err error) {
	if isNil(v) {
		return nil, fmt.Errorf("is nil (%T): use outbox.Null for a record without a value", v)
	}
	switch v := v.(type) {
	case null:
		return nil, nil
	case []byte:
		b = v
	case json.RawMessage:
		b = v
	default:
		if s, ok := v.(string); ok && !o.isJSON() {
			b = []byte(s)
			break
		}
		if b, err = o.marshal(v); err != nil {
			return nil, err
		}
	}
	if b == nil {
		b = []byte{} // a slice without bytes is not NULL
	}
	if claimFields(b) != nil {
		return nil, errors.New("is an object with the field " + claim.Field + ", which only Write makes")
	}
	if o.tooLarge(b) && o.opts.Store == nil {
		return nil, fmt.Errorf("has %d bytes, more than Options.MaxPayload (%d), and Options.Store is not set", len(b), o.opts.MaxPayload)
	}
	switch {
	case o.opts.PayloadType == "bytea":
		return b, nil
	case o.isJSON() && !json.Valid(b):
		return nil, fmt.Errorf("is not JSON, which the column of the type %s needs (got %.40q)", o.opts.PayloadType, b)
	case o.opts.PayloadType == "jsonb":
		if err := escapesProblem(b); err != nil {
			return nil, err
		}
	}
	return b, textProblem(b)
}

func (o *Outbox) marshal(v any) ([]byte, error) {
	if o.opts.Marshal != nil {
		return o.opts.Marshal(v)
	}
	if _, own := v.(json.Marshaler); !own && isProto(v) {
		return nil, fmt.Errorf("is a message of Protocol Buffers (%T), which json.Marshal writes in a form of its own: set Options.Marshal to a function that calls proto.Marshal, with the PayloadType bytea, or protojson.Marshal", v)
	}
	return json.Marshal(v)
}

// isProto reports whether v is a proto.Message, or the struct of one. This package does not link
// Protocol Buffers.
func isProto(v any) bool {
	t := reflect.TypeOf(v)
	_, is := t.MethodByName("ProtoReflect")
	if !is && t.Kind() == reflect.Struct {
		_, is = reflect.PointerTo(t).MethodByName("ProtoReflect")
	}
	return is
}

// isNil reports whether v is nil, or a nil of a type that has one. Its JSON would be null.
func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface, reflect.Func, reflect.Chan:
		return r.IsNil()
	default:
		return false
	}
}

func (o *Outbox) isJSON() bool { return o.opts.PayloadType == "jsonb" || o.opts.PayloadType == "json" }

// textProblem returns why Postgres does not accept a text.
func textProblem(b []byte) error {
	switch {
	case !utf8.Valid(b):
		return errors.New("is not valid UTF-8")
	case bytes.IndexByte(b, 0) >= 0:
		return errors.New("has the character U+0000, which Postgres cannot store")
	}
	return nil
}

// escapesProblem returns why a jsonb cannot have an escape sequence of a valid JSON.
func escapesProblem(b []byte) error {
	var high rune // the first half of a surrogate pair, directly before i
	for i := 0; ; {
		next := bytes.IndexByte(b[i:], '\\')
		if high != 0 && next != 0 {
			return errLoneSurrogate
		}
		if next < 0 {
			return nil
		}
		i += next + 2
		if b[i-1] != 'u' {
			if high != 0 {
				return errLoneSurrogate
			}
			continue
		}
		n, _ := strconv.ParseUint(string(b[i:i+4]), 16, 32) // valid JSON has four digits
		i += 4
		switch r := rune(n); {
		case r == 0:
			return errors.New(`has the escape sequence \u0000, which a jsonb cannot have`)
		case high != 0 && utf16.DecodeRune(high, r) == utf8.RuneError:
			return errLoneSurrogate
		case high != 0:
			high = 0
		case utf16.IsSurrogate(r) && r >= 0xdc00:
			return errLoneSurrogate
		case utf16.IsSurrogate(r):
			high = r
		}
	}
}

var errLoneSurrogate = errors.New(`has half a surrogate pair, such as \ud800 alone, which a jsonb cannot have`)

// arrayText is one column of the rows as the text of an array. Every driver and every protocol can
// send a text.
func arrayText(rows []row, column int, binary bool) string {
	var b strings.Builder
	for i, r := range rows {
		b.WriteByte("{,"[min(i, 1)])
		switch v := r[column]; {
		case v == nil:
			b.WriteString("NULL")
		case binary:
			fmt.Fprintf(&b, `"\\x%x"`, v)
		default:
			b.WriteByte('"')
			_, _ = quoter.WriteString(&b, string(v))
			b.WriteByte('"')
		}
	}
	b.WriteByte('}')
	return b.String()
}

var quoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
