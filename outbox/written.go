package outbox

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
)

// Written returns the events that the transaction tx has written to the table, in their order. A
// Payload is []byte or Null, as it is in the table. Written is for tests: package outboxtest calls it.
//
// The time of a row is the time at which its transaction began, so Written reads the whole table
// for the rows of that microsecond.
func (o *Outbox) Written(ctx context.Context, tx any) (events []Event, err error) {
	from, err := anytx.Of(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	events, _, err = o.read(ctx, from, outboxtable.DefaultTimeColumn+" = now()")
	return events, err
}

// WrittenAfter returns the events whose seq is greater than after, in their order, and the greatest
// seq of the table, or 0. db is a pool, a connection or a transaction, of pgx or database/sql. Like
// Written, it is for tests, and reads the whole table.
func (o *Outbox) WrittenAfter(ctx context.Context, db any, after int64) (events []Event, last int64, err error) {
	from, err := anytx.Any(db)
	if err != nil {
		return nil, 0, fmt.Errorf("outbox: %w", err)
	}
	return o.read(ctx, from, fmt.Sprintf("%s > %d", outboxtable.DefaultOrderColumn, after))
}

// read returns the events for which a condition holds, and the greatest seq of the table.
func (o *Outbox) read(ctx context.Context, from anytx.Tx, condition string) (events []Event, last int64, err error) {
	names := make([]string, len(o.columns))
	for i, c := range o.columns {
		names[i] = pgname.QuoteIdent(c)
	}
	text := names[payloadColumn]
	if o.opts.PayloadType != "bytea" {
		text = "convert_to(" + text + "::text, 'UTF8')"
	}
	names[payloadColumn] = "encode(" + text + ", 'base64')"
	if o.opts.Headers == nil { // NULL in a table without the column
		names[headersColumn] = "to_jsonb(written) ->> '" + outboxtable.HeadersColumn + "'"
	}
	var result string
	seq := outboxtable.DefaultOrderColumn
	err = from.QueryRow(ctx, fmt.Sprintf("SELECT coalesce(json_agg(json_build_array(%s) ORDER BY %s) FILTER (WHERE %s), '[]')::text, coalesce(max(%[2]s), 0) FROM %[4]s AS written",
		strings.Join(names, ", "), seq, condition, o.table.Name.SQL()), nil, &result, &last)
	var rows [][]*string
	if err == nil {
		err = json.Unmarshal([]byte(result), &rows)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("outbox: read %s: %w", o.table.Name, err)
	}
	for _, r := range rows {
		e := Event{ID: *r[0], AggregateType: *r[1], AggregateID: *r[2], Type: *r[3], Payload: Null}
		if p := r[payloadColumn]; p != nil {
			if e.Payload, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(*p, "\n", "")); err != nil {
				return nil, 0, fmt.Errorf("outbox: read %s: %w", o.table.Name, err)
			}
		}
		if o.opts.Headers == nil && r[headersColumn] != nil {
			if e.Headers, err = readHeaders(*r[headersColumn]); err != nil {
				return nil, 0, fmt.Errorf("outbox: read %s: the column %s %w", o.table.Name, outboxtable.HeadersColumn, err)
			}
		}
		for i, h := range o.opts.Headers {
			if v := r[len(columns)+i]; v != nil {
				if e.Headers == nil {
					e.Headers = map[string]string{}
				}
				e.Headers[h] = *v
			}
		}
		events = append(events, e)
	}
	return events, last, nil
}

// readHeaders reads a JSON object as the relay does: a value that is no string is its JSON.
func readHeaders(object string) (headers map[string]string, err error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(object), &values); err != nil {
		return nil, fmt.Errorf("has no JSON object (%.40q)", object)
	}
	if len(values) == 0 {
		return nil, nil
	}
	headers = map[string]string{}
	for name, value := range values {
		text := string(value)
		if value[0] == '"' {
			err = json.Unmarshal(value, &text)
		}
		if err != nil {
			return nil, err
		}
		if text != "null" || value[0] == '"' { // a header without a value
			headers[name] = text
		}
	}
	return headers, nil
}
