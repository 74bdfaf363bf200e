package outbox

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/walpost/walpost/internal/lib/pgname"
)

// Emit emits events with the columns of the default table. See Outbox.Emit.
func Emit(ctx context.Context, tx any, prefix string, events ...Event) error {
	return standard.Emit(ctx, tx, prefix, events...)
}

// Emit writes events only into the WAL, as transactional logical messages
// (pg_logical_emit_message), and not into a table. walpost relays them if source.messages.prefix is
// the prefix. The rules are those of Write. Because these events exist only in the WAL, they are
// lost if the slot is lost.
func (o *Outbox) Emit(ctx context.Context, tx any, prefix string, events ...Event) error {
	if prefix == "" || !pgname.IsPrefix(prefix) {
		return fmt.Errorf("outbox: the prefix must have 1 to %d bytes and no control characters (got %q)", pgname.MaxPrefix, prefix)
	}
	to, rows, err := o.prepare(ctx, tx, events)
	if err != nil || len(rows) == 0 {
		return err
	}
	contents := make([]row, len(rows))
	for i, r := range rows {
		contents[i] = row{o.content(r)}
	}
	_, err = to.Exec(ctx, "SELECT pg_logical_emit_message(true, $1::text, convert_to(content, 'UTF8')) FROM unnest($2::text[]) AS content",
		prefix, arrayText(contents, 0, false))
	if err != nil {
		return fmt.Errorf("outbox: emit %d events with the prefix %s: %w", len(events), pgname.QuoteLiteral(prefix), err)
	}
	return nil
}

// content is a row as a JSON object. An object or an array of JSON stands in it byte for byte. Every
// other payload is a string, because walpost takes the text of a string, and null for no value.
func (o *Outbox) content(r row) []byte {
	text := func(s string) []byte {
		b, _ := json.Marshal(s) // a text always has a JSON
		return b
	}
	b := []byte{}
	for i, column := range o.columns {
		b = append(b, "{,"[min(i, 1)])
		b = append(append(b, text(column)...), ':')
		switch {
		case r[i] == nil:
			b = append(b, "null"...)
		case i == payloadColumn && o.opts.PayloadType == "bytea":
			b = append(b, text(base64.StdEncoding.EncodeToString(r[i]))...)
		case i == payloadColumn && o.isJSON() && strings.ContainsRune("{[", rune(r[i][0])) && strings.ContainsRune("]}", rune(r[i][len(r[i])-1])):
			b = append(b, r[i]...)
		case i == headersColumn && o.opts.Headers == nil:
			b = append(b, r[i]...)
		default:
			b = append(b, text(string(r[i]))...)
		}
	}
	return append(b, '}')
}
