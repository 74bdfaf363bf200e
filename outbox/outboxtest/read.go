package outboxtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/anytx"
	"github.com/walpost/walpost/internal/lib/outboxtable"
	"github.com/walpost/walpost/internal/lib/pgname"
	"github.com/walpost/walpost/outbox"
)

// read returns the events of the rows for which a condition holds, in their order, and the greatest seq of the table.
// It reads the whole table: created_at and seq have no index.
func read(ctx context.Context, o *outbox.Outbox, from anytx.Tx, condition string) (events []outbox.Event, last int64, err error) {
	opts := o.Options()
	table, err := pgname.ParseTable(opts.Table)
	if err != nil {
		return nil, 0, err
	}
	payload := "payload"
	if opts.PayloadType != "bytea" {
		payload = "convert_to(payload::text, 'UTF8')"
	}
	// The headers are NULL in a table without the column.
	columns := []string{"id", "aggregate_type", "aggregate_id", "event_type", "encode(" + payload + ", 'base64')", "to_jsonb(written) ->> '" + outboxtable.HeadersColumn + "'"}
	for _, h := range opts.Headers {
		columns = append(columns, pgname.QuoteIdent(h))
	}
	var result string
	seq := outboxtable.DefaultOrderColumn
	err = from.QueryRow(ctx, fmt.Sprintf("SELECT coalesce(json_agg(json_build_array(%s) ORDER BY %s) FILTER (WHERE %s), '[]')::text, coalesce(max(%[2]s), 0) FROM %[4]s AS written",
		strings.Join(columns, ", "), seq, condition, table.SQL()), nil, &result, &last)
	var rows [][]*string
	if err == nil {
		err = json.Unmarshal([]byte(result), &rows)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", table, err)
	}
	for _, r := range rows {
		e := outbox.Event{ID: *r[0], AggregateType: *r[1], AggregateID: *r[2], Type: *r[3], Payload: outbox.Null}
		if p := r[4]; p != nil {
			if e.Payload, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(*p, "\n", "")); err != nil {
				return nil, 0, fmt.Errorf("read %s: %w", table, err)
			}
		}
		if opts.Headers == nil && r[5] != nil {
			if e.Headers, err = readHeaders(*r[5]); err != nil {
				return nil, 0, fmt.Errorf("read %s: the column %s %w", table, outboxtable.HeadersColumn, err)
			}
		}
		for i, h := range opts.Headers {
			if v := r[6+i]; v != nil {
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
